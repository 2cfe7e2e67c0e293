// Small drawings of the view of two runs: a difference with its interval, and both runs' utility over depth.

import { chart, h, s } from "./dom.js";
import { axisFormat, linear, number, ticks } from "./numbers.js";

/** A difference and its interval on an axis that all rows of a group share, zero in the middle. */
export function differenceStrip(metric, reach) {
  const at = (value) => `${linear(-reach, reach, 2, 98)(value)}%`;
  const box = h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "zero", vars: { left: "50%" } }));
  if (metric.low !== null) box.append(h("span", { class: "range", vars: { left: at(metric.low), right: `${100 - parseFloat(at(metric.high))}%` } }));
  if (metric.value !== null) box.append(h("span", { class: "dot", vars: { left: at(metric.value) } }));
  return box;
}

const HEIGHT = 210;
const EDGE = { left: 52, right: 12, top: 10, bottom: 38 };

const SMALL = 0.3;

/** Mean utility of both runs on one pair of axes; once more without the first depths where these hide all others. */
export function bothDepths(sets, transition) {
  const curves = sets.map((set) => set.overview.depth.depths.map((depth, at) => ({ depth, ...set.overview.depth.means[at] })));
  const depths = [...new Set(curves.flat().map((point) => point.depth))].sort((a, b) => a - b);
  const later = (from) => curves.map((curve) => curve.filter((point) => point.depth >= from));
  const span = (kept) => {
    const values = kept.flat().map((point) => point.value);
    return Math.max(...values) - Math.min(...values);
  };
  const from = depths.slice(1, -2).find((depth) => depth <= transition && span(later(depth)) < SMALL * span(curves));
  return [depthChart(curves, transition), from && depthChart(later(from), transition)];
}

function depthChart(curves, transition) {
  const every = curves.flat();
  const label = `Mean utility by depth. First run: ${spoken(curves[0])}. Second run: ${spoken(curves[1])}.`;
  return chart(label, (width) => {
    const depths = [...new Set(every.map((point) => point.depth))].sort((a, b) => a - b);
    const values = every.flatMap((point) => [point.value, point.low ?? point.value, point.high ?? point.value]);
    const pad = (Math.max(...values) - Math.min(...values) || 1) * 0.06;
    const x = linear(depths[0], depths.at(-1), EDGE.left, width - EDGE.right);
    const y = linear(Math.min(...values) - pad, Math.max(...values) + pad, HEIGHT - EDGE.bottom, EDGE.top);
    const levels = ticks(Math.min(...values), Math.max(...values), 4);
    const level = axisFormat(levels);
    const shown = depths.filter((_, at) => at % Math.ceil(depths.length / 12) === 0);
    return s(
      "svg",
      { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT },
      s("rect", { x: x(transition), y: EDGE.top, width: Math.max(0, x(transition + 1) - x(transition)), height: HEIGHT - EDGE.bottom - EDGE.top, class: "pair-update" }),
      levels.map((tick) => [
        s("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(tick), y2: y(tick), class: "pair-grid-line" }),
        s("text", { x: EDGE.left - 7, y: y(tick) + 4, "text-anchor": "end" }, level.text(tick)),
      ]),
      shown.map((depth) => s("text", { x: x(depth), y: HEIGHT - EDGE.bottom + 16, "text-anchor": "middle" }, depth)),
      s("text", { x: (EDGE.left + width - EDGE.right) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, `depth, loops (all questions of each run; ${level.unit("nats")})`),
      curves.map((curve, side) => [
        curve.every((point) => point.low !== null) && s("path", { d: `${path(curve, x, y, "high")} ${path(curve.slice().reverse(), x, y, "low").replace("M", "L")} Z`, class: `pair-band ${side ? "second" : "first"}` }),
        s("path", { d: path(curve, x, y, "value"), class: `pair-line ${side ? "second" : "first"}` }),
        curve.map((point) => s("circle", { cx: x(point.depth), cy: y(point.value), r: side ? 3 : 3.4, class: `pair-dot ${side ? "second" : "first"}` })),
      ]),
    );
  });
}

const path = (points, x, y, name) => points.map((point, at) => `${at ? "L" : "M"}${x(point.depth).toFixed(1)},${y(point[name]).toFixed(1)}`).join(" ");

const spoken = (points) => points.map((point) => `${number(point.value)} at ${point.depth}`).join(", ");
