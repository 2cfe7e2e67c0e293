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

const size = (value) => Math.floor(Math.log10(value));

/** One power of ten for numbers up to `most`: none where they can be written out. */
const shared = (most) => (most > 0 && (size(most) < -2 || size(most) > 3) ? size(most) : 0);

const fixed = (value, exponent, decimals, sign) => {
  if (!Number.isFinite(value)) return "—";
  return (value < 0 ? "−" : sign && value > 0 ? "+" : "") + (Math.abs(value) / 10 ** exponent).toFixed(decimals);
};

/** A unit with the power of ten that its numbers share. */
const unit = (name, exponent) => (exponent ? `10${raised(exponent)} ${name}` : name);

/** One format for all numbers of a column: the same decimals, and one power of ten, which `unit` puts into its head
 * and `whole` behind a number that stands alone.
 * The largest has three digits; where a tenth of them are much smaller there are up to two more. */
export function columnFormat(values, { sign = true } = {}) {
  const sizes = Float64Array.from(values, Math.abs).filter((value) => value > 0 && Number.isFinite(value)).sort();
  const most = sizes.at(-1) ?? 0;
  const exponent = shared(most);
  const least = sizes[Math.floor(sizes.length / 10)] ?? most;
  const top = most > 0 ? size(most) : 0;
  const more = most > 0 ? Math.min(2, Math.max(0, top - size(least) - 1)) : 0;
  const decimals = Math.max(0, 2 - (top - exponent) + more);
  const text = (value) => fixed(value, exponent, decimals, sign);
  return { text, unit: (name) => unit(name, exponent), whole: (value) => text(value) + (exponent ? `×10${raised(exponent)}` : "") };
}

/** The same for the ticks of an axis, which are equally far from each other. */
export function axisFormat(values) {
  const exponent = shared(values.reduce((most, value) => Math.max(most, Math.abs(value)), 0));
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) / 10 ** exponent : 1;
  let decimals = Math.max(0, -size(step));
  if (Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals += 1;
  return { text: (value) => (Math.abs(value) < 1e-12 * 10 ** exponent ? "0" : fixed(value, exponent, decimals, false)), unit: (name) => unit(name, exponent) };
}

export const share = (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)}%` : "—");

export const signed = (value) => number(value, { sign: true });

export const scale = (value) => (Number.isFinite(value) ? String(Math.round(value * 1000) / 1000) : "—");

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

/** The paper's effect margin, or a lower power of ten where most numbers lie below it. */
const MARGIN = 1e-4;
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
    ...powers.map((exponent) => ({ value: -(10 ** exponent), text: `−10${raised(exponent)}` })).reverse(),
    { value: 0, text: "0" },
    ...powers.map((exponent) => ({ value: 10 ** exponent, text: `10${raised(exponent)}` })),
  ];
}
