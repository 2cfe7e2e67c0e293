// φ(α) of one update with its quadratic model, scales, boundary, safe range and bounds, and the slider that moves along it.

import { chart, h, replace, s } from "./dom.js";
import { columnFormat, linear, number, scale, signed } from "./numbers.js";
import { onGrid, page, readGrid } from "./data.js";
import { EDGE, pathPlot, pathRange } from "./path_plot.js";

export function namedScales(record, details) {
  const analysed = Number.isFinite(details.optimum_low);
  return {
    predicted: { symbol: "α̂", words: "scale that the quadratic model predicts", value: page.scale[record], fill: "var(--model)" },
    best: { symbol: "α*", words: analysed ? "best scale of the FP64 path" : "best scale on the grid", value: analysed ? (details.optimum_low + details.optimum_high) / 2 : page.optimum[record], fill: "var(--curve)" },
    root: { symbol: "r⁽²⁾", words: "root of the quadratic model", value: details.root, fill: "var(--model)" },
    boundary: { symbol: "r₁", words: "progress boundary", value: details.boundary ?? NaN, fill: "var(--finite)" },
  };
}

/** φ at a scale: stored points exactly, the finer FP64 path between them where it is stored. */
function phiAt(details, gain, alpha) {
  const stored = details.grid && (onGrid(alpha) || !details.path) ? details.grid : details.path;
  return stored ? readGrid(stored, alpha) : alpha === 0 ? 0 : alpha === 1 ? gain : NaN;
}

function known(record, details) {
  const stored = details.path ?? details.grid ?? [0, page.gain[record]];
  return {
    A: page.slope[record],
    Q: page.quadratic[record],
    curve: Array.from(stored, (value, i) => [i / (stored.length - 1), value]),
    points: details.grid ? page.meta.grid.map((alpha, i) => [alpha, details.grid[i]]) : [],
    named: Object.values(namedScales(record, details)),
    safeEnd: details.safe_end,
    bounds: Number.isFinite(details.L_D) && { L_D: details.L_D, mu: Number.isFinite(details.mu) ? details.mu : 0 },
  };
}

const CLOSE = 0.1;

/** Where a path starts uphill and nobody could see it: the beginning, enlarged until its peak can be seen. */
function beginning({ A, Q, curve }, [low, high]) {
  let [at, peak] = curve.reduce((best, point) => (point[1] > best[1] ? point : best), [0, 0]);
  // Between two stored points only the quadratic model can tell how high the path goes.
  if (!(peak > 0) && A > 0 && Q < 0) [at, peak] = [Math.min(1, -A / (2 * Q)), (A * A) / (-4 * Q)];
  if (!(A > 0) || !(peak > 0) || peak > CLOSE * (high - low) || at >= 0.8) return null;
  return { domain: [0, Math.min(1, 2.6 * at)], range: [-0.9 * peak, 1.5 * peak] };
}

const narrow = () => matchMedia("(max-width: 62rem)").matches;

/** The path, a hand on it (drag or click sets α, pointing reads it), and its beginning enlarged where that is needed. */
function pathCharts(record, details, alphaNow, set) {
  const given = known(record, details);
  const gain = page.gain[record];
  const range = pathRange(given.curve.map(([, value]) => value));
  const words = `Gain along the update: slope ${signed(given.A)}, full step ${signed(gain)}, predicted scale ${scale(page.scale[record])}.`;
  const at = ({ x, y, top, bottom }) => {
    const [alpha, now] = [alphaNow(), phiAt(details, gain, alphaNow())];
    return [
      s("line", { x1: x(alpha), x2: x(alpha), y1: top, y2: bottom, stroke: "var(--accent)", "stroke-width": 1.2 }),
      Number.isFinite(now) && s("circle", { cx: x(alpha), cy: y(now), r: 5.5, fill: "var(--accent)", stroke: "var(--surface)", "stroke-width": 2 }),
    ];
  };
  const height = (width) => (narrow() ? 210 : Math.min(400, Math.max(290, width * 0.64)));
  const whole = chart(words, (width) => pathPlot(width, { ...given, range, height: height(width), over: at }));
  const close = beginning(given, range);
  const inside = () => alphaNow() <= close.domain[1] && phiAt(details, gain, alphaNow()) >= close.range[0];
  const detail = close && chart(`The beginning of the path, enlarged. ${words}`, (width) => pathPlot(width, { ...given, ...close, height: 200, bounds: null, over: (frame) => (inside() ? at(frame) : []) }));
  return { plot: details.grid ? held(whole, details, gain, set) : whole, detail, redraw: () => [whole, detail].forEach((each) => each?.redraw()) };
}

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

/** The path with its slider, and the numbers that do not move; `moved` is called with every scale. */
export function stepPanels(record, details, initial, moved) {
  let alpha = initial;
  const gain = page.gain[record];
  const input = h("input", { type: "range", id: "alpha", min: 0, max: 1, step: 0.01, value: String(initial), disabled: !details.grid });
  const output = h("output", { for: "alpha" });
  const [phi, utility] = [h("dd", { id: "phi" }), h("dd", { id: "utility" })];
  const set = (value, report = true) => {
    alpha = value;
    input.value = String(value);
    output.textContent = scale(value);
    const now = phiAt(details, gain, value);
    const source = !details.grid ? "" : onGrid(value) ? "stored" : details.path ? "from the FP64 path" : "between stored points";
    input.setAttribute("aria-valuetext", `${scale(value)}, gain ${signed(now)} nats`);
    replace(phi, h("span", { class: "number", "data-value": now }, signed(now)), " ", h("small", {}, source));
    replace(utility, h("span", { class: "number" }, number(page.before[record] + now)));
    charts.redraw();
    moved(value, report);
  };
  const charts = pathCharts(record, details, () => alpha, set);
  input.addEventListener("input", () => set(Number(input.value)));
  const now = [entry(h("label", { for: "alpha" }, "Scale α"), h("dd", {}, output)), entry("Gain φ(α)", phi), entry("Utility", utility)];
  const step = h("section", { class: "card panel step-panel", "aria-label": "Gain along the update" }, h("h2", {}, "How far along the update"), pathLegend(details), charts.plot, h("div", { class: "slider" }, input), h("dl", { class: "readout now" }, now), presets(record, details, set));
  const numbers = h(
    "section",
    { class: "card panel numbers-panel", "aria-label": "Numbers of the path" },
    charts.detail && [h("h3", {}, "Its beginning, enlarged"), charts.detail],
    h("dl", { class: "readout" }, facts(record, details).map(([term, value, aside]) => entry(term, h("dd", {}, value, aside && h("small", {}, ` ${aside}`))))),
  );
  set(initial, false);
  return [step, numbers];
}

const entry = (term, value) => h("div", {}, h("dt", {}, term), value);

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
  const { predicted, best } = namedScales(record, details);
  const wanted = [["Stay", 0], ["Quarter", 0.25], ["Predicted α̂", predicted.value], ["Best α*", best.value], ["Safe", details.safe_scale], ["Full", 1]];
  return h("div", { class: "presets" }, wanted.filter(([, value]) => Number.isFinite(value)).map(([name, value]) => h("button", { type: "button", class: "button", onclick: () => set(value) }, name)));
}

/** The numbers of the path that do not move with the slider: name, value, what is said of it. */
function facts(record, details) {
  const { predicted, best, root, boundary } = namedScales(record, details);
  const [A, Q, gain] = [page.slope[record], page.quadratic[record], page.gain[record]];
  const nats = columnFormat([A, Q, gain, A + Q]);
  const unit = nats.unit("nats") === "nats" ? "" : nats.unit("nats");
  const turns = !Number.isFinite(boundary.value) && Number.isFinite(details.crossing_low);
  return [
    ["Slope A", nats.text(A), unit],
    ["Curvature term Q", nats.text(Q), unit],
    ["Predicted by A + Q", nats.text(A + Q), unit],
    ["Full step ΔU", nats.text(gain), unit],
    ["Predicted scale α̂", scale(predicted.value)],
    ["Best scale α*", scale(best.value), Number.isFinite(details.optimum_low) ? "FP64" : "on the grid"],
    ["Root r⁽²⁾", root.value > 1 ? number(root.value) : scale(root.value), root.value > 1 && "beyond the step"],
    ["Boundary r₁", scale(boundary.value)],
    turns && ["Turns negative in", `${scale(details.crossing_low)} to ${scale(details.crossing_high)}`],
    ["Safe range", Number.isFinite(details.safe_end) ? `0 to ${scale(details.safe_end)}` : "—"],
    ["KL correction", number(details.kl_correction)],
    ["Deviation C(1) ≤", number(details.C_upper)],
  ].filter((fact) => fact && fact[1] !== "—");
}
