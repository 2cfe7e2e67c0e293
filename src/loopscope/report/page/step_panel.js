// The path with its slider: moving α re-reads the stored utility and tells the tokens.

function stepPanel(record, details, initial, moved) {
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
