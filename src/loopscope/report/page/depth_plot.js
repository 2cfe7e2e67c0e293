// Utility over recurrent depth, for a set (with intervals, best depth and decline) or for one question.

import { loopsOf } from "./data.js";
import { chart, h, s } from "./dom.js";
import { axisFormat, linear, number, plural, ticks } from "./numbers.js";

const LOGARITHMIC = 16;
const EDGE = { left: 58, right: 14, top: 16, bottom: 42 };

/** Axes of utility and depth, with the update t → t+1 shaded; `inside` draws on them with the places of both. */
function depthChart({ label, depths, range: [low, high], transition, height, title = "loops", role }, inside) {
  return chart(label, (width) => {
    const pad = (high - low || Math.abs(high) || 1e-9) * 0.07;
    const y = linear(low - pad, high + pad, height - EDGE.bottom, EDGE.top);
    const place = depths.at(-1) > LOGARITHMIC ? Math.log : (depth) => depth;
    const along = linear(place(depths[0]), place(depths.at(-1)), EDGE.left + 10, width - EDGE.right);
    const x = (depth) => along(place(depth));
    const values = ticks(low, high, 4);
    const format = axisFormat(values);
    const [from, to] = transition === undefined ? [0, 0] : loopsOf(transition);
    const middle = (height - EDGE.bottom + EDGE.top) / 2;
    return s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, role },
      depths[0] <= from && to <= depths.at(-1) && s("rect", { x: x(from), width: x(to) - x(from), y: EDGE.top - 6, height: height - EDGE.bottom - EDGE.top + 6, fill: "var(--accent-soft)" }),
      values.map((value) => [s("line", { x1: EDGE.left, x2: width, y1: y(value), y2: y(value), stroke: "var(--line)" }), s("text", { x: EDGE.left - 7, y: y(value) + 4, "text-anchor": "end" }, format.text(value))]),
      s("text", { transform: `translate(11 ${middle}) rotate(-90)`, "text-anchor": "middle", class: "axis-title" }, `utility, ${format.unit("nats")}`),
      depthLabels(depths, x, height - EDGE.bottom + 16),
      s("text", { x: (EDGE.left + width) / 2, y: height - 2, "text-anchor": "middle", class: "axis-title" }, title),
      inside(x, y, width),
    );
  });
}

function depthLabels(depths, x, y) {
  let last = -Infinity;
  return depths.map((depth) => {
    if (x(depth) - last < 22) return null;
    last = x(depth);
    return s("text", { x: last, y, "text-anchor": "middle" }, String(depth));
  });
}

function depthPlot({ label, depths, means, peak, decline, transition, range, height = 210 }) {
  const ends = [means.map((mean) => mean.low ?? mean.value), means.map((mean) => mean.high ?? mean.value)];
  return depthChart({ label, depths, range: range ?? [Math.min(...ends[0]), Math.max(...ends[1])], transition, height }, (x, y, width) => {
    const line = (values) => values.map((value, i) => `${x(depths[i])},${y(value)}`);
    const at = (depth) => [x(depth), y(means[depths.indexOf(depth)].value)];
    return [
      s("polygon", { points: [...line(ends[1]), ...line(ends[0]).reverse()].join(" "), fill: "var(--band)" }),
      s("polyline", { points: line(means.map((mean) => mean.value)).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 1.8 }),
      depths.map((depth, i) => s("circle", { cx: at(depth)[0], cy: at(depth)[1], r: 3, fill: "var(--accent)" }, s("title", {}, `after ${plural(depth, "loop")}: ${number(means[i].value)} nats`))),
      // A closer plot may leave out the depths that are marked in the whole one.
      depths.includes(peak) && peakMark(at(peak), width),
      decline && depths.includes(decline.to) && declineMark(at(decline.to)),
    ];
  });
}

const CLOSE = 0.12;

/** The plot, and a closer one of its later depths where the first ones leave no room to see them. */
export function depthPlots(properties) {
  const { depths, means } = properties;
  const values = means.map((mean) => mean.value);
  const spread = (list) => Math.max(...list) - Math.min(...list);
  const from = Math.max(values.indexOf(Math.max(...values)) - 1, 0);
  const rest = values.slice(from);
  if (from === 0 || rest.length < 3 || spread(rest) > CLOSE * spread(values)) return depthPlot(properties);
  return [
    depthPlot({ ...properties, peak: undefined, decline: properties.decline?.to < depths[from] ? properties.decline : null }),
    h("p", { class: "soft small" }, `From ${plural(depths[from], "loop")} on:`),
    depthPlot({ ...properties, depths: depths.slice(from), means: means.slice(from), range: undefined, height: 180 }),
  ];
}

const peakMark = ([cx, cy], width) => [
  s("circle", { cx, cy, r: 7, fill: "none", stroke: "var(--accent)", "stroke-width": 1.4 }),
  s("text", { x: cx, y: cy - 11, "text-anchor": cx > width - 40 ? "end" : "middle", class: "peak" }, "best"),
];

const declineMark = ([cx, cy]) => [
  s("path", { d: `M${cx - 6},${cy + 8} h12 l-6,10 z`, fill: "var(--finite)" }),
  s("text", { x: cx - 10, y: cy + 18, "text-anchor": "end" }, "clearly lower"),
];

const OUTCOME_COLOURS = ["var(--progressing)", "var(--neutral)", "var(--directional)", "var(--finite)"];

/** The paths of all measured updates of one question, each between its two loops, on one axis of utility.
 * `paths` are {transition, before, grid, outcome, href, words}; the open one is drawn thick. */
export function pathsPlot({ label, paths, transition, height = 230 }) {
  const values = (path) => Array.from(path.grid, (gain) => path.before + gain);
  const all = paths.flatMap(values);
  const depths = [...new Set(paths.flatMap((path) => loopsOf(path.transition)))].sort((a, b) => a - b);
  const range = [Math.min(...all), Math.max(...all)];
  return depthChart({ label, depths, range, transition, height, title: "loops, and the updates between them", role: "group" }, (x, y) =>
    paths.map((path) => segment(path, values(path), x, y, path.transition === transition)),
  );
}

function segment({ transition, outcome, href, words }, values, x, y, open) {
  const [from, to] = loopsOf(transition).map(x);
  const points = values.map((value, i) => `${linear(0, values.length - 1, from, to)(i)},${y(value)}`).join(" ");
  return s(
    "a",
    { href, "aria-label": words, "aria-current": open && "page" },
    s("title", {}, words),
    s("polyline", { points, fill: "none", stroke: "transparent", "stroke-width": 14 }),
    s("polyline", { points, fill: "none", stroke: OUTCOME_COLOURS[outcome], "stroke-width": open ? 3.4 : 2 }),
    s("circle", { cx: from, cy: y(values[0]), r: 3, fill: "var(--ink)" }),
    s("circle", { cx: to, cy: y(values.at(-1)), r: 3, fill: "var(--ink)" }),
  );
}
