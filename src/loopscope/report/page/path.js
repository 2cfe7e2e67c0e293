// φ(α) of one update with its quadratic model, scales, boundary, safe range and bounds, and the slider that moves along it.

import { chart, h, replace, s } from "./dom.js";
import { linear, number, scale, signed, tickText, ticks } from "./numbers.js";
import { onGrid, page, readGrid } from "./data.js";

function pathPlot(record, details, alphaNow) {
  const A = page.slope[record];
  const Q = page.quadratic[record];
  const gain = page.gain[record];
  const words = `Gain along the update: slope ${signed(A)}, full step ${signed(gain)}, predicted scale ${scale(page.scale[record])}.`;
  const box = chart(words, (width) => drawPath(width, { A, Q, gain, record, details, alpha: alphaNow() }));
  return box;
}

const quadratic = (A, Q) => (alpha) => A * alpha + Q * alpha * alpha;

function sampledCurve(details, gain) {
  const stored = details.path ?? details.grid;
  if (stored) return Array.from(stored, (value, i) => [i / (stored.length - 1), value]);
  return [[0, 0], [1, gain]];
}

function drawPath(width, { A, Q, gain, record, details, alpha }) {
  const height = Math.min(380, Math.max(270, width * 0.62));
  const [left, right, top, bottom] = [54, 14, 14, 66];
  const curve = sampledCurve(details, gain);
  const values = curve.map(([, value]) => value);
  const [low, high] = pathRange(values);
  const x = linear(0, 1, left, width - right);
  const y = linear(low, high, height - bottom, top);
  const clip = `clip-${record}`;
  const inside = s("g", { "clip-path": `url(#${clip})` });
  const plotted = [
    s("defs", {}, s("clipPath", { id: clip }, s("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom }))),
  ];
  if (details.safe_end > 0) {
    inside.append(s("rect", { x: x(0), width: x(Math.min(details.safe_end, 1)) - x(0), y: top, height: height - top - bottom, fill: "var(--safe)" }));
  }
  if (details.L_D !== undefined && Number.isFinite(details.L_D)) inside.append(boundBand(A, details, x, y));
  for (const value of ticks(low, high, 5)) {
    plotted.push(s("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: "var(--line)" }));
    plotted.push(s("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, tickText(value)));
  }
  plotted.push(s("line", { x1: left, x2: width - right, y1: y(0), y2: y(0), stroke: "var(--line-strong)", "stroke-width": 1.4 }));
  for (const value of [0, 0.25, 0.5, 0.75, 1]) plotted.push(s("text", { x: x(value), y: height - bottom + 21, "text-anchor": "middle" }, String(value)));
  inside.append(smooth(quadratic(A, Q), x, y, { stroke: "var(--model)", "stroke-dasharray": "6 4", "stroke-width": 1.6 }));
  inside.append(s("polyline", { points: curve.map(([a, value]) => `${x(a)},${y(value)}`).join(" "), fill: "none", stroke: "var(--curve)", "stroke-width": 2 }));
  plotted.push(inside);
  if (details.grid) {
    page.meta.grid.forEach((a, i) => plotted.push(s("circle", { cx: x(a), cy: y(details.grid[i]), r: 2.2, fill: "var(--curve)" })));
  }
  plotted.push(...scaleMarks(record, details, x, height - bottom));
  const now = phiAt(details, gain, alpha);
  plotted.push(s("line", { x1: x(alpha), x2: x(alpha), y1: top, y2: height - bottom, stroke: "var(--accent)", "stroke-width": 1.2 }));
  if (Number.isFinite(now)) plotted.push(s("circle", { cx: x(alpha), cy: y(now), r: 5.5, fill: "var(--accent)", stroke: "var(--surface)", "stroke-width": 2 }));
  return s("svg", { viewBox: `0 0 ${width} ${height}`, height }, plotted);
}

/** The measured path with room around it; the quadratic may leave the frame. */
function pathRange(values) {
  const low = Math.min(0, ...values);
  const high = Math.max(0, ...values);
  const pad = (high - low || 1e-9) * 0.14;
  return [low - pad, high + pad];
}

function smooth(f, x, y, style) {
  const points = Array.from({ length: 81 }, (_, i) => `${x(i / 80)},${clamp(y(f(i / 80)))}`);
  return s("polyline", { points: points.join(" "), fill: "none", ...style });
}

const clamp = (value) => Math.max(-1e5, Math.min(1e5, value));

/** αA − L_D·α²/2 ≤ φ ≤ αA − μ·α²/2, where curvature is bounded on both sides. */
function boundBand(A, details, x, y) {
  const at = (bound) => (alpha) => A * alpha - (bound * alpha * alpha) / 2;
  const mu = Number.isFinite(details.mu) ? details.mu : 0;
  const steps = Array.from({ length: 61 }, (_, i) => i / 60);
  const upper = steps.map((a) => `${x(a)},${clamp(y(at(mu)(a)))}`);
  const lower = steps.map((a) => `${x(a)},${clamp(y(at(details.L_D)(a)))}`).reverse();
  return s("polygon", { points: [...upper, ...lower].join(" "), fill: "var(--band)" });
}

/** The scales that matter, as marks under the axis. */
function scaleMarks(record, details, x, baseline) {
  const marks = namedScales(record, details).filter((mark) => mark.value >= 0 && mark.value <= 1);
  marks.sort((a, b) => a.value - b.value);
  let [last, level] = [-Infinity, 0];
  return marks.flatMap((mark) => {
    const at = x(mark.value);
    level = at - last < 26 ? (level + 1) % 2 : 0;
    last = at;
    const y = baseline + 38 + level * 15;
    return [
      s("path", { d: `M${at},${baseline + 1} l4,7 h-8 z`, fill: mark.fill }),
      s("text", { x: at, y, "text-anchor": "middle", class: "mark" }, mark.symbol, s("title", {}, `${mark.words}: ${scale(mark.value)}`)),
    ];
  });
}

export function namedScales(record, details) {
  const star = Number.isFinite(details.optimum_low) ? (details.optimum_low + details.optimum_high) / 2 : page.optimum[record];
  const boundary = Number.isFinite(details.boundary_low) ? (details.boundary_low + details.boundary_high) / 2 : NaN;
  return [
    { symbol: "α̂", words: "scale that the quadratic model predicts", value: page.scale[record], fill: "var(--model)" },
    { symbol: "α*", words: Number.isFinite(details.optimum_low) ? "best scale of the FP64 path" : "best scale on the grid", value: star, fill: "var(--curve)" },
    { symbol: "r²", words: "root of the quadratic model", value: details.root ?? NaN, fill: "var(--model)" },
    { symbol: "r₁", words: "progress boundary", value: boundary, fill: "var(--finite)" },
  ];
}

/** φ at a scale: stored points exactly, the finer FP64 path between them where it is stored. */
function phiAt(details, gain, alpha) {
  if (details.grid && (onGrid(alpha) || !details.path)) return readGrid(details.grid, alpha);
  if (details.path) return readGrid(details.path, alpha);
  return alpha === 0 ? 0 : alpha === 1 ? gain : NaN;
}

// The path with its slider: moving α re-reads the stored utility and tells the tokens.

export function stepPanel(record, details, initial, moved) {
  let alpha = initial;
  const plot = pathPlot(record, details, () => alpha);
  const before = page.before[record];
  const gain = page.gain[record];
  const input = h("input", { type: "range", id: "alpha", min: 0, max: 1, step: 0.01, value: String(initial), disabled: !details.grid });
  const output = h("output", { for: "alpha" });
  const phi = h("dd", { id: "phi" });
  const utility = h("dd", { id: "utility" });
  const set = (value, report = true) => {
    alpha = value;
    input.value = String(value);
    output.textContent = scale(value);
    const now = phiAt(details, gain, value);
    input.setAttribute("aria-valuetext", `${scale(value)}, gain ${signed(now)} nats`);
    replace(phi, h("span", { class: "number", "data-value": now }, signed(now)), " ", h("small", {}, source(details, value)));
    replace(utility, h("span", { class: "number" }, number(before + now)));
    plot.redraw();
    moved(value, report);
  };
  input.addEventListener("input", () => set(Number(input.value)));
  const panel = h(
    "section",
    { class: "card panel step-panel", "aria-label": "Gain along the update" },
    h("h2", {}, "How far along the update"),
    pathLegend(details),
    plot,
    h("div", { class: "slider" }, input),
    h(
      "dl",
      { class: "readout now" },
      h("div", {}, h("dt", {}, h("label", { for: "alpha" }, "Scale α")), h("dd", {}, output)),
      entry("Gain φ(α)", phi),
      entry("Utility", utility),
    ),
    presets(record, details, set),
    h(
      "dl",
      { class: "readout" },
      ...facts(record, details).map(([term, ...value]) => entry(term, h("dd", {}, value))),
    ),
  );
  set(initial, false);
  return panel;
}

const entry = (term, value) => h("div", {}, h("dt", {}, term), value);

function source(details, alpha) {
  if (!details.grid) return "";
  if (onGrid(alpha)) return "stored";
  return details.path ? "from the FP64 path" : "between stored points";
}

function pathLegend(details) {
  return h(
    "p",
    { class: "path-legend" },
    h("span", {}, h("i"), "measured φ(α)"),
    h("span", {}, h("i", { class: "quad" }), "quadratic Aα + Qα²"),
    Number.isFinite(details.L_D) && h("span", {}, h("i", { class: "band" }), "what the curvature bounds allow"),
    details.safe_end > 0 && h("span", {}, h("i", { class: "safe" }), "sure to help"),
  );
}

function presets(record, details, set) {
  if (!details.grid) return h("p", { class: "soft small" }, "Measured at level quick: only both ends and the derivatives are stored.");
  const wanted = [
    ["Stay", 0],
    ["Quarter", 0.25],
    ["Predicted α̂", page.scale[record]],
    ["Best α*", namedScales(record, details)[1].value],
    ["Safe", details.safe_scale ?? NaN],
    ["Full", 1],
  ];
  return h("div", { class: "presets" }, wanted.filter(([, value]) => Number.isFinite(value)).map(([name, value]) => h("button", { type: "button", class: "button", onclick: () => set(value) }, name)));
}

const aside = (text) => h("small", {}, ` ${text}`);

/** The numbers of the path that do not move with the slider. */
function facts(record, details) {
  const [, star, root, boundary] = namedScales(record, details);
  const found = [
    ["Slope A", signed(page.slope[record])],
    ["Curvature term Q", signed(page.quadratic[record])],
    ["Full step ΔU", signed(page.gain[record])],
    ["Predicted by A + Q", signed(page.slope[record] + page.quadratic[record])],
    ["Predicted scale α̂", scale(page.scale[record])],
  ];
  if (Number.isFinite(star.value)) found.push(["Best scale α*", scale(star.value), aside(Number.isFinite(details.optimum_low) ? "FP64" : "on the grid")]);
  if (Number.isFinite(root.value)) found.push(["Root r²", root.value > 1 ? number(root.value) : scale(root.value), root.value > 1 && aside("beyond the step")]);
  if (Number.isFinite(boundary.value)) found.push(["Boundary r₁", scale(boundary.value)]);
  else if (Number.isFinite(details.crossing_low)) found.push(["Turns negative in", `${scale(details.crossing_low)} to ${scale(details.crossing_high)}`]);
  if (Number.isFinite(details.safe_end)) found.push(["Safe range", `0 to ${scale(details.safe_end)}`]);
  if (Number.isFinite(details.kl_correction)) found.push(["KL correction", number(details.kl_correction)]);
  if (Number.isFinite(details.C_upper)) found.push(["Deviation C(1) ≤", number(details.C_upper)]);
  return found;
}
