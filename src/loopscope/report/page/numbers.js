// Numbers as text (three significant digits, a true minus, powers of ten where they are needed) and as places on an axis.

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

const raised = (power) => [...String(power)].map((digit) => SUPERSCRIPT[digit]).join("");

export function number(value, { sign = false, digits = 3 } = {}) {
  if (!Number.isFinite(value)) return "—";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const mark = value < 0 ? "−" : sign ? "+" : "";
  const [mantissa, power] = size.toExponential(digits - 1).split("e");
  const exponent = Number(power);
  if (exponent >= -3 && exponent < 4) return mark + size.toFixed(Math.max(0, digits - 1 - exponent));
  return `${mark}${Number(mantissa)}×10${raised(exponent)}`;
}

/** A number on an axis: the same without idle zeros. */
export const tickText = (value) => number(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");

export const signed = (value) => number(value, { sign: true });

export const scale = (value) => (Number.isFinite(value) ? String(Math.round(value * 1000) / 1000) : "—");

const power = (exponent) => `10${raised(exponent)}`;

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

export function linear(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Round ticks of a linear axis. */
export function ticks(low, high, wanted = 5) {
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
export const symlog = (value, threshold) => Math.sign(value) * Math.log10(1 + Math.abs(value) / threshold);

const MARGIN = 1e-4;

/** The paper's effect margin, or a lower power of ten where most numbers lie below it. */
export function symlogThreshold(values) {
  const sizes = values.filter((value) => value > 0).sort();
  if (!sizes.length) return MARGIN;
  const middle = sizes[sizes.length >> 1];
  return middle > MARGIN ? MARGIN : 10 ** Math.floor(Math.log10(middle));
}

/** Powers of ten on both sides of zero, at most `most` on each. */
export function symlogTicks(threshold, limit, most) {
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
