// Utility over recurrent depth, for a set (with intervals, best depth and decline) or for one question.

import { loopsOf } from "./data.js";
import { chart, h, s } from "./dom.js";
import { axisFormat, linear, number, plural, ticks } from "./numbers.js";

const LOGARITHMIC = 16;

function depthPlot({ label, depths, means, peak, decline, transition, range, height = 210 }) {
  return chart(label, (width) => {
    const left = 58;
    const bottom = 42;
    const top = 16;
    const lows = means.map((mean) => mean.low ?? mean.value);
    const highs = means.map((mean) => mean.high ?? mean.value);
    const low = range?.[0] ?? Math.min(...lows);
    const high = range?.[1] ?? Math.max(...highs);
    const pad = (high - low || Math.abs(high) || 1) * 0.07;
    const y = linear(low - pad, high + pad, height - bottom, top);
    const place = depths.at(-1) > LOGARITHMIC ? Math.log : (depth) => depth;
    const x = linear(place(depths[0]), place(depths.at(-1)), left + 10, width - 12);
    const at = (index) => [x(place(depths[index])), y(means[index].value)];
    const parts = grid(ticks(low, high, 4), y, left, width, "utility", (height - bottom + top) / 2);
    parts.push(...depthLabels(depths, (depth) => x(place(depth)), width, height - bottom + 16));
    parts.push(s("text", { x: (left + width) / 2, y: height - 2, "text-anchor": "middle", class: "axis-title" }, "loops"));
    if (transition !== undefined && loopsOf(transition).every((depth) => depths.includes(depth))) {
      const [from, to] = loopsOf(transition).map((depth) => x(place(depth)));
      parts.unshift(s("rect", { x: from, width: to - from, y: top - 6, height: height - bottom - top + 6, fill: "var(--accent-soft)" }));
    }
    if (means[0].low !== null && means[0].low !== undefined) {
      const upper = highs.map((value, i) => `${x(place(depths[i]))},${y(value)}`);
      const lower = lows.map((value, i) => `${x(place(depths[i]))},${y(value)}`).reverse();
      parts.push(s("polygon", { points: [...upper, ...lower].join(" "), fill: "var(--band)" }));
    }
    parts.push(s("polyline", { points: depths.map((_, i) => at(i).join(",")).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 1.8 }));
    depths.forEach((depth, i) => {
      const [cx, cy] = at(i);
      parts.push(s("circle", { cx, cy, r: 3, fill: "var(--accent)" }, s("title", {}, `after ${plural(depth, "loop")}: ${number(means[i].value)} nats`)));
    });
    // A closer plot may leave out the depths that are marked in the whole one.
    if (depths.includes(peak)) parts.push(...peakMark(at(depths.indexOf(peak)), peak, width));
    if (decline && depths.includes(decline.to)) parts.push(...declineMark(at(depths.indexOf(decline.to))));
    return s("svg", { viewBox: `0 0 ${width} ${height}`, height }, parts);
  });
}

/** Lines across with their numbers, and the axis title beside them. */
function grid(values, y, left, width, title, middle) {
  const format = axisFormat(values);
  return [
    ...values.map((value) => s("g", {}, s("line", { x1: left, x2: width, y1: y(value), y2: y(value), stroke: "var(--line)" }), s("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, format.text(value)))),
    s("text", { transform: `translate(11 ${middle}) rotate(-90)`, "text-anchor": "middle", class: "axis-title" }, `${title}, ${format.unit("nats")}`),
  ];
}

const CLOSE = 0.12;

/** The plot, and a closer one of its later depths where the first ones leave no room to see them. */
export function depthPlots(properties) {
  const { depths, means } = properties;
  const values = means.map((mean) => mean.value);
  const spread = (list) => Math.max(...list) - Math.min(...list);
  const best = values.indexOf(Math.max(...values));
  const from = Math.max(best - 1, 0);
  const rest = values.slice(from);
  if (from === 0 || rest.length < 3 || spread(rest) > CLOSE * spread(values)) return depthPlot(properties);
  return [
    depthPlot({ ...properties, peak: undefined, decline: properties.decline?.to < depths[from] ? properties.decline : null }),
    h("p", { class: "soft small" }, `From ${plural(depths[from], "loop")} on:`),
    depthPlot({ ...properties, depths: depths.slice(from), means: means.slice(from), range: undefined, height: 180 }),
  ];
}

function depthLabels(depths, x, width, y) {
  let last = -Infinity;
  return depths.map((depth) => {
    const at = x(depth);
    if (at - last < 22) return null;
    last = at;
    return s("text", { x: at, y, "text-anchor": "middle" }, String(depth));
  });
}

function peakMark([cx, cy], depth, width) {
  const anchor = cx > width - 40 ? "end" : "middle";
  return [
    s("circle", { cx, cy, r: 7, fill: "none", stroke: "var(--accent)", "stroke-width": 1.4 }),
    s("text", { x: cx, y: cy - 11, "text-anchor": anchor, class: "peak" }, "best"),
  ];
}

const declineMark = ([cx, cy]) => [
  s("path", { d: `M${cx - 6},${cy + 8} h12 l-6,10 z`, fill: "var(--finite)" }),
  s("text", { x: cx - 10, y: cy + 18, "text-anchor": "end" }, "clearly lower"),
];

const OUTCOME_COLOURS = ["var(--progressing)", "var(--neutral)", "var(--directional)", "var(--finite)"];

/** The paths of all measured updates of one question, each between its two loops, on one axis of utility.
 * `paths` are {transition, before, grid, outcome, href, words}; the open one is drawn thick. */
export function pathsPlot({ label, paths, transition, height = 230 }) {
  const curves = paths.map((path) => ({ ...path, values: Array.from(path.grid, (gain) => path.before + gain) }));
  return chart(label, (width) => {
    const [left, right, top, bottom] = [58, 14, 14, 42];
    const values = curves.flatMap((curve) => curve.values);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const pad = (high - low || 1e-9) * 0.08;
    const depths = [...new Set(curves.flatMap((curve) => loopsOf(curve.transition)))].sort((a, b) => a - b);
    const x = linear(depths[0], depths.at(-1), left + 6, width - right);
    const y = linear(low - pad, high + pad, height - bottom, top);
    const open = curves.find((curve) => curve.transition === transition);
    const [from, to] = loopsOf(transition);
    return s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, role: "group" },
      open && s("rect", { x: x(from), width: x(to) - x(from), y: top - 6, height: height - bottom - top + 6, fill: "var(--accent-soft)" }),
      grid(ticks(low, high, 4), y, left, width, "utility", (height - bottom + top) / 2),
      depthLabels(depths, x, width, height - bottom + 16),
      s("text", { x: (left + width) / 2, y: height - 2, "text-anchor": "middle", class: "axis-title" }, "loops, and the way between them"),
      curves.map((curve) => segment(curve, x, y, curve === open)),
    );
  });
}

function segment({ transition, values, outcome, href, words }, x, y, open) {
  const [from, to] = loopsOf(transition);
  const points = values.map((value, i) => `${x(from + ((to - from) * i) / (values.length - 1))},${y(value)}`).join(" ");
  const ends = [0, values.length - 1].map((i) => s("circle", { cx: x(i ? to : from), cy: y(values[i]), r: 3, fill: "var(--ink)" }));
  return s(
    "a",
    { href, "aria-label": words, "aria-current": open && "page" },
    s("title", {}, words),
    s("polyline", { points, fill: "none", stroke: "transparent", "stroke-width": 14 }),
    s("polyline", { points, fill: "none", stroke: OUTCOME_COLOURS[outcome], "stroke-width": open ? 3.4 : 2 }),
    ends,
  );
}
