// A path φ(α) as a drawing: axes with titles, the measured line, its quadratic model, and scales that are named above it.

import { s } from "./dom.js";
import { axisFormat, linear, scale, ticks } from "./numbers.js";

export const EDGE = { left: 62, right: 16, bottom: 44 };
const LINE = 15;
const NAME = 32;

let drawn = 0;

/** What is drawn: a curve of [α, φ] pairs on a part of the axis, with whatever else is known of it.
 * `named` are scales {symbol, words, value, fill}; `under` and `over` are what the caller draws before and after. */
export function pathPlot(width, { curve, points = [], A, Q, height, domain = [0, 1], range, named = [], safeEnd, bounds, under = () => [], over = () => [], title = "gain φ(α)", across = "share α of the update", ruled = true }) {
  const x = linear(...domain, EDGE.left, width - EDGE.right);
  const marks = named.filter(({ value }) => value >= domain[0] && value <= domain[1]).sort((a, b) => a.value - b.value);
  // A name that would touch the one before it stands on the next line.
  marks.forEach((mark, i) => (mark.line = i && x(mark.value) - x(marks[i - 1].value) < NAME ? marks[i - 1].line + 1 : 0));
  const top = 12 + LINE * (1 + Math.max(-1, ...marks.map((mark) => mark.line)));
  const bottom = height - EDGE.bottom;
  const y = linear(...range, bottom, top);
  const frame = { x: EDGE.left, y: top, width: width - EDGE.left - EDGE.right, height: bottom - top };
  const clip = `path-${drawn++}`;
  const inside = s("g", { "clip-path": `url(#${clip})` });
  if (safeEnd > 0) inside.append(s("rect", { ...frame, width: Math.max(0, x(Math.min(safeEnd, domain[1])) - x(0)), fill: "var(--safe)" }));
  if (bounds) inside.append(boundBand(A, bounds, x, y));
  if (Q !== undefined) inside.append(sampled((alpha) => A * alpha + Q * alpha * alpha, domain, x, y, { stroke: "var(--model)", "stroke-dasharray": "6 4", "stroke-width": 1.6 }));
  inside.append(s("polyline", { points: curve.map(([alpha, value]) => `${x(alpha)},${clamp(y(value))}`).join(" "), class: "measured", fill: "none", stroke: "var(--curve)", "stroke-width": 2.2 }));
  for (const [alpha, value] of points) inside.append(s("circle", { cx: x(alpha), cy: clamp(y(value)), r: 2.2, fill: "var(--curve)" }));
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, height },
    under({ x, y, top, bottom }),
    s("defs", {}, s("clipPath", { id: clip }, s("rect", { ...frame, height: frame.height + 2 }))),
    axes(width, { x, y, range, domain, top, bottom, title, across, ruled }),
    marks.map((mark) => guide(mark, x(mark.value), top - 6 - LINE * mark.line, bottom)),
    inside,
    over({ x, y, top, bottom }),
  );
}

function axes(width, { x, y, range, domain, top, bottom, title, across, ruled }) {
  const values = ticks(...range, 5);
  const format = axisFormat(values);
  const along = ticks(...domain, 4);
  const alphas = axisFormat(along);
  return [
    values.map((value) => [
      ruled && s("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value), stroke: "var(--line)" }),
      s("text", { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, format.text(value)),
    ]),
    s("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(0), y2: y(0), stroke: "var(--line-strong)", "stroke-width": 1.4 }),
    along.map((value) => s("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, alphas.text(value))),
    s("text", { x: (EDGE.left + width - EDGE.right) / 2, y: bottom + 36, "text-anchor": "middle", class: "axis-title" }, across),
    s("text", { x: 0, y: 0, transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "axis-title" }, `${title}, ${format.unit("nats")}`),
  ];
}

const clamp = (value) => Math.max(-1e5, Math.min(1e5, value));

function sampled(f, [from, to], x, y, style) {
  const points = Array.from({ length: 81 }, (_, i) => from + ((to - from) * i) / 80).map((alpha) => `${x(alpha)},${clamp(y(f(alpha)))}`);
  return s("polyline", { points: points.join(" "), class: "model", fill: "none", ...style });
}

/** αA − L_D·α²/2 ≤ φ ≤ αA − μ·α²/2, where curvature is bounded on both sides. */
function boundBand(A, { L_D, mu }, x, y) {
  const at = (bound) => (alpha) => `${x(alpha)},${clamp(y(A * alpha - (bound * alpha * alpha) / 2))}`;
  const steps = Array.from({ length: 61 }, (_, i) => i / 60);
  return s("polygon", { points: [...steps.map(at(mu)), ...steps.map(at(L_D)).reverse()].join(" "), fill: "var(--band)" });
}

/** A dashed line at a scale, and its name above the plot on its line. */
function guide({ symbol, words, value, fill }, at, y, bottom) {
  return s(
    "g",
    { class: "named" },
    s("line", { x1: at, x2: at, y1: y + 4, y2: bottom, stroke: fill, "stroke-width": 1, "stroke-dasharray": "2 3" }),
    s("text", { x: at, y, "text-anchor": "middle", class: "mark" }, symbol, s("title", {}, `${words}: ${scale(value)}`)),
  );
}

/** The measured path with room around it; the quadratic may leave the frame. */
export function pathRange(values) {
  const low = values.reduce((least, value) => Math.min(least, value), 0);
  const high = values.reduce((most, value) => Math.max(most, value), 0);
  const pad = (high - low || 1e-9) * 0.14;
  return [low - pad, high + pad];
}
