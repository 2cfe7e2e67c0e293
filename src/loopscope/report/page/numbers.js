// Numbers as text: three significant digits, a true minus, powers of ten where they are needed.

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

const raised = (power) => [...String(power)].map((digit) => SUPERSCRIPT[digit]).join("");

function number(value, { sign = false, digits = 3 } = {}) {
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
const tickText = (value) => number(value).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");

const signed = (value) => number(value, { sign: true });

const scale = (value) => (Number.isFinite(value) ? String(Math.round(value * 1000) / 1000) : "—");

const power = (exponent) => `10${raised(exponent)}`;

const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
