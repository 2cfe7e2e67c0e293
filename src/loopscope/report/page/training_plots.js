// Drawings of the view of a training: gains of all updates over the steps, and utility over depth at every step.

import { chart, s } from "./dom.js";
import { axisFormat, linear, number, ticks } from "./numbers.js";

const HEIGHT = 230;
const EDGE = { left: 58, right: 44, top: 14, bottom: 40 };
const WIDE_RANGE = 5;

const ends = (point) => [point.value, point.low ?? point.value, point.high ?? point.value];

const path = (points) => points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join(" ");

/** Axes with room for names at the right edge. */
function frame(width, low, high, title, marks) {
  const pad = (high - low || 1) * 0.06;
  const y = linear(low - pad, high + pad, HEIGHT - EDGE.bottom, EDGE.top);
  const levels = ticks(low, high, 4);
  const format = axisFormat(levels);
  const shown = [];
  for (const mark of marks) if (!shown.length || mark.x - shown.at(-1).x > 44) shown.push(mark);
  const parts = [
    levels.map((level) => [
      s("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(level), y2: y(level), class: Math.abs(level) < 1e-12 ? "training-zero" : "training-grid-line" }),
      s("text", { x: EDGE.left - 7, y: y(level) + 4, "text-anchor": "end" }, format.text(level)),
    ]),
    shown.map((mark) => s("text", { x: mark.x, y: HEIGHT - EDGE.bottom + 16, "text-anchor": "middle" }, mark.text)),
    s("text", { x: (EDGE.left + width - EDGE.right) / 2, y: HEIGHT - 4, "text-anchor": "middle", class: "axis-title" }, title),
    s("text", { transform: `translate(11 ${(HEIGHT - EDGE.bottom + EDGE.top) / 2}) rotate(-90)`, "text-anchor": "middle", class: "axis-title" }, format.unit("nats")),
  ];
  return { y, parts };
}

/** Steps on a linear axis, or on a logarithmic one where most of them lie at its beginning. */
function stepPlace(steps, width) {
  const wide = steps.length > 2 && WIDE_RANGE * steps[steps.length >> 1] < steps.at(-1);
  const place = wide ? (step) => Math.log10(1 + step) : (step) => step;
  const x = linear(place(steps[0]), place(steps.at(-1)), EDGE.left + 6, width - EDGE.right - 6);
  return (step) => x(place(step));
}

/** The mean gain of every update over the steps, with intervals. */
export function stepLines(updates, chosen) {
  const lines = updates.map((each) => ({ ...each, points: each.moments.map((moment) => ({ step: moment.step, ...moment.numbers.gain })) }));
  const label = `Mean gain over the steps. ${lines.map((line) => `${line.update}: ${line.points.map((point) => `${number(point.value)} at step ${point.step}`).join(", ")}`).join(". ")}.`;
  return chart(label, (width) => {
    const every = lines.flatMap((line) => line.points);
    const values = [0, ...every.flatMap(ends)];
    const steps = [...new Set(every.map((point) => point.step))].sort((a, b) => a - b);
    const x = stepPlace(steps, width);
    const { y, parts } = frame(width, Math.min(...values), Math.max(...values), "training step", steps.map((step) => ({ x: x(step), text: step.toLocaleString("en") })));
    const names = apart(lines.map((line) => ({ line, y: y(line.points.at(-1).value) + 4 })));
    return s(
      "svg",
      { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT },
      parts,
      lines.map((line) => {
        const name = line.transition === chosen.transition ? "chosen" : "other";
        const at = (which) => line.points.map((point) => [x(point.step), y(point[which] ?? point.value)]);
        return [
          s("path", { d: `${path(at("high"))} ${path(at("low").reverse()).replace("M", "L")} Z`, class: `training-band ${name}` }),
          s("path", { d: path(at("value")), class: `training-line ${name}` }, s("title", {}, line.update)),
          at("value").map(([cx, cy], i) => s("circle", { cx, cy, r: 3, class: `training-dot ${name}` }, s("title", {}, `${line.update} at step ${line.points[i].step}: ${number(line.points[i].value)} nats`))),
        ];
      }),
      names.map((each) => s("text", { x: width - EDGE.right + 2, y: each.y, class: each.line.transition === chosen.transition ? "peak" : null }, each.line.update)),
    );
  });
}

/** Names at least a line apart, in the order of their places. */
function apart(names) {
  const ordered = names.slice().sort((a, b) => a.y - b.y);
  ordered.forEach((each, at) => {
    if (at) each.y = Math.max(each.y, ordered[at - 1].y + 13);
  });
  const below = ordered.at(-1).y - (HEIGHT - EDGE.bottom + 4);
  if (below > 0) for (const each of ordered) each.y -= below;
  return ordered;
}

/** Utility over depth, one line for each step. */
export function depthLines(moments, trained) {
  const label = `Mean utility by depth. ${moments.map((moment) => `Step ${moment.step}: best at ${moment.best.value}`).join(". ")}.`;
  return chart(label, (width) => {
    const every = moments.flatMap((moment) => moment.means);
    const values = every.map((mean) => mean.value);
    const depths = [...new Set(every.map((mean) => mean.depth))].sort((a, b) => a - b);
    const x = linear(depths[0], depths.at(-1), EDGE.left + 6, width - EDGE.right - 6);
    const { y, parts } = frame(width, Math.min(...values), Math.max(...values), "depth, loops", depths.map((depth) => ({ x: x(depth), text: String(depth) })));
    const last = moments.length - 1;
    return s(
      "svg",
      { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT },
      trained && depths[0] <= trained && trained <= depths.at(-1) && s("line", { x1: x(trained), x2: x(trained), y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "training-rule" }),
      parts,
      moments.map((moment, at) => {
        const opacity = last ? 0.3 + (0.7 * at) / last : 1;
        const best = moment.means.find((mean) => mean.depth === moment.best.value);
        const words = `step ${moment.step}: best depth ${moment.best.value}, ${number(best.value)} nats`;
        return s(
          "g",
          { opacity: opacity.toFixed(2) },
          s("path", { d: path(moment.means.map((mean) => [x(mean.depth), y(mean.value)])), class: "training-depths" }, s("title", {}, words)),
          s("circle", { cx: x(best.depth), cy: y(best.value), r: 4.5, class: "training-best" }, s("title", {}, words)),
        );
      }),
      apart([...new Set([0, last])].map((at) => ({ step: moments[at].step, y: y(moments[at].means.at(-1).value) + 4 }))).map((each) => s("text", { x: width - EDGE.right + 2, y: each.y }, each.step.toLocaleString("en"))),
    );
  });
}
