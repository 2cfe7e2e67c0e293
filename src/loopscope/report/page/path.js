// φ(α) of one update with its quadratic model, scales, boundary, safe range and bounds, and the slider that moves along it.

import { chart, h, replace, s } from "./dom.js";
import { columnFormat, linear, number, scale, signed } from "./numbers.js";
import { onGrid, page, readGrid } from "./data.js";
import { EDGE, pathPlot, pathRange } from "./path_plot.js";

const curveOf = (details, gain) => {
  const stored = details.path ?? details.grid;
  return stored ? Array.from(stored, (value, i) => [i / (stored.length - 1), value]) : [[0, 0], [1, gain]];
};

const known = (record, details) => ({
  A: page.slope[record],
  Q: page.quadratic[record],
  curve: curveOf(details, page.gain[record]),
  points: details.grid ? page.meta.grid.map((alpha, i) => [alpha, details.grid[i]]) : [],
  named: namedScales(record, details),
  safeEnd: details.safe_end,
  bounds: Number.isFinite(details.L_D) && { L_D: details.L_D, mu: Number.isFinite(details.mu) ? details.mu : 0 },
});

const CLOSE = 0.1;

/** Where a path starts uphill and nobody could see it: the beginning, as large as its peak asks for. */
function beginning({ A, Q, curve }) {
  const [low, high] = pathRange(curve.map(([, value]) => value));
  let [at, peak] = curve.reduce((best, point) => (point[1] > best[1] ? point : best), [0, 0]);
  // Between two stored points only the quadratic model can tell how high the path goes.
  if (!(peak > 0) && A > 0 && Q < 0) [at, peak] = [Math.min(1, -A / (2 * Q)), (A * A) / (-4 * Q)];
  if (!(A > 0) || !(peak > 0) || peak > CLOSE * (high - low) || at >= 0.8) return null;
  return { domain: [0, Math.min(1, 2.6 * at)], range: [-0.9 * peak, 1.5 * peak] };
}

/** The path, a hand on it (drag or click sets α, pointing reads it), and its beginning enlarged where that is needed. */
function pathCharts(record, details, alphaNow, set) {
  const given = known(record, details);
  const [A, gain] = [given.A, page.gain[record]];
  const range = pathRange(given.curve.map(([, value]) => value));
  const words = `Gain along the update: slope ${signed(A)}, full step ${signed(gain)}, predicted scale ${scale(page.scale[record])}.`;
  const at = ({ x, y, top, bottom }) => {
    const alpha = alphaNow();
    const now = phiAt(details, gain, alpha);
    return [
      s("line", { x1: x(alpha), x2: x(alpha), y1: top, y2: bottom, stroke: "var(--accent)", "stroke-width": 1.2 }),
      Number.isFinite(now) && s("circle", { cx: x(alpha), cy: y(now), r: 5.5, fill: "var(--accent)", stroke: "var(--surface)", "stroke-width": 2 }),
    ];
  };
  const height = (width) => (narrow() ? 190 : Math.min(380, Math.max(270, width * 0.62)));
  const whole = chart(words, (width) => pathPlot(width, { ...given, range, height: height(width), over: at }));
  const close = beginning(given);
  const detail = close && chart(`The beginning of the path, enlarged. ${words}`, (width) => pathPlot(width, { ...given, ...close, height: 190, named: given.named, bounds: null, over: ({ x, y, ...rest }) => (alphaNow() <= close.domain[1] && phiAt(details, gain, alphaNow()) >= close.range[0] ? at({ x, y, ...rest }) : []) }));
  return { plot: details.grid ? held(whole, details, gain, set) : whole, detail, redraw: () => [whole, detail].forEach((each) => each?.redraw()) };
}

const narrow = () => matchMedia("(max-width: 62rem)").matches;

/** A chart that is dragged along its axis. */
function held(whole, details, gain, set) {
  const tip = h("div", { class: "tip reading", hidden: true, "aria-hidden": "true" });
  const alphaAt = (event) => {
    const frame = whole.getBoundingClientRect();
    const place = linear(EDGE.left, frame.width - EDGE.right, 0, 1)(event.clientX - frame.left);
    return Math.round(Math.min(1, Math.max(0, place)) * 100) / 100;
  };
  const box = h("div", { class: "held" }, whole, tip);
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    box.setPointerCapture(event.pointerId);
    set(alphaAt(event));
  });
  box.addEventListener("pointermove", (event) => {
    const alpha = alphaAt(event);
    if (box.hasPointerCapture(event.pointerId)) set(alpha);
    tip.hidden = false;
    tip.textContent = `α ${scale(alpha)}: ${signed(phiAt(details, gain, alpha))} nats`;
    tip.style.setProperty("left", `${linear(0, 1, EDGE.left, whole.clientWidth - EDGE.right)(alpha)}px`);
  });
  box.addEventListener("pointerleave", () => (tip.hidden = true));
  return box;
}

export function namedScales(record, details) {
  const star = Number.isFinite(details.optimum_low) ? (details.optimum_low + details.optimum_high) / 2 : page.optimum[record];
  const boundary = Number.isFinite(details.boundary_low) ? (details.boundary_low + details.boundary_high) / 2 : NaN;
  return [
    { symbol: "α̂", words: "scale that the quadratic model predicts", value: page.scale[record], fill: "var(--model)" },
    { symbol: "α*", words: Number.isFinite(details.optimum_low) ? "best scale of the FP64 path" : "best scale on the grid", value: star, fill: "var(--curve)" },
    { symbol: "r⁽²⁾", words: "root of the quadratic model", value: details.root ?? NaN, fill: "var(--model)" },
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

export function stepPanels(record, details, initial, moved) {
  let alpha = initial;
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
    charts.redraw();
    moved(value, report);
  };
  const charts = pathCharts(record, details, () => alpha, set);
  input.addEventListener("input", () => set(Number(input.value)));
  const step = h(
    "section",
    { class: "card panel step-panel", "aria-label": "Gain along the update" },
    h("h2", {}, "How far along the update"),
    pathLegend(details),
    charts.plot,
    h("div", { class: "slider" }, input),
    h(
      "dl",
      { class: "readout now" },
      h("div", {}, h("dt", {}, h("label", { for: "alpha" }, "Scale α")), h("dd", {}, output)),
      entry("Gain φ(α)", phi),
      entry("Utility", utility),
    ),
    presets(record, details, set),
  );
  const numbers = h(
    "section",
    { class: "card panel numbers-panel", "aria-label": "Numbers of the path" },
    charts.detail && [h("h3", {}, "Its beginning, enlarged"), charts.detail],
    h(
      "dl",
      { class: "readout" },
      ...facts(record, details).map(([term, ...value]) => entry(term, h("dd", {}, value))),
    ),
  );
  set(initial, false);
  return [step, numbers];
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
  const [A, Q, gain] = [page.slope[record], page.quadratic[record], page.gain[record]];
  const nats = columnFormat([A, Q, gain, A + Q]);
  const found = [
    ["Slope A", nats.text(A)],
    ["Curvature term Q", nats.text(Q)],
    ["Predicted by A + Q", nats.text(A + Q)],
    ["Full step ΔU", nats.text(gain)],
    ["Predicted scale α̂", scale(page.scale[record])],
  ].map(([term, value], at) => (at < 4 && nats.unit("nats") !== "nats" ? [term, value, aside(nats.unit("nats"))] : [term, value]));
  if (Number.isFinite(star.value)) found.push(["Best scale α*", scale(star.value), aside(Number.isFinite(details.optimum_low) ? "FP64" : "on the grid")]);
  if (Number.isFinite(root.value)) found.push(["Root r⁽²⁾", root.value > 1 ? number(root.value) : scale(root.value), root.value > 1 && aside("beyond the step")]);
  if (Number.isFinite(boundary.value)) found.push(["Boundary r₁", scale(boundary.value)]);
  else if (Number.isFinite(details.crossing_low)) found.push(["Turns negative in", `${scale(details.crossing_low)} to ${scale(details.crossing_high)}`]);
  if (Number.isFinite(details.safe_end)) found.push(["Safe range", `0 to ${scale(details.safe_end)}`]);
  if (Number.isFinite(details.kl_correction)) found.push(["KL correction", number(details.kl_correction)]);
  if (Number.isFinite(details.C_upper)) found.push(["Deviation C(1) ≤", number(details.C_upper)]);
  return found;
}
