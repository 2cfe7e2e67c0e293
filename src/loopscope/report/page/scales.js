// From numbers to places on paper.

function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Round ticks of a linear axis. */
function ticks(low, high, wanted = 5) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / wanted;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * base).find((candidate) => candidate >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * span; at++) found.push(at * step);
  return found;
}

/** Symmetric logarithm: linear around zero within the threshold, logarithmic beyond. */
const symlog = (value, threshold) => Math.sign(value) * Math.log10(1 + Math.abs(value) / threshold);

const MARGIN = 1e-4;

/** The paper's effect margin, or a lower power of ten where most numbers lie below it. */
function symlogThreshold(values) {
  const sizes = values.filter((value) => value > 0).sort();
  if (!sizes.length) return MARGIN;
  const middle = sizes[sizes.length >> 1];
  return middle > MARGIN ? MARGIN : 10 ** Math.floor(Math.log10(middle));
}

/** Powers of ten on both sides of zero, at most `most` on each. */
function symlogTicks(threshold, limit, most) {
  const lowest = Math.round(Math.log10(threshold));
  const highest = Math.max(lowest, Math.floor(Math.log10(Math.max(limit, threshold))));
  const stride = Math.max(1, Math.ceil((highest - lowest + 1) / most));
  const powers = [];
  for (let exponent = highest; exponent >= lowest; exponent -= stride) powers.unshift(exponent);
  return [
    ...powers.map((exponent) => ({ value: -(10 ** exponent), text: `−${power(exponent)}` })).reverse(),
    { value: 0, text: "0" },
    ...powers.map((exponent) => ({ value: 10 ** exponent, text: power(exponent) })),
  ];
}
