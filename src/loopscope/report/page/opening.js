// What the page opens with: one measured path drawn large, what was found, what that means, and the way on from there.

import { chart, h, s, swatch } from "./dom.js";
import { columnFormat, plural, scale, signed } from "./numbers.js";
import { OUTCOMES, address, manyOf, page, update } from "./data.js";
import { EDGE, pathPlot } from "./path_plot.js";

export function openingPart() {
  const opening = page.meta.opening;
  const set = page.sets.find((candidate) => candidate.name === opening.set);
  const at = set.overview.updates.find((entry) => entry.transition === opening.transition);
  const where = { run: set.run.label, task: set.task };
  const question = address("question", { ...where, id: opening.id, t: opening.transition });
  const code = opening.outcome;
  const alike = at.outcomes[code].count;
  const others = address("questions", { ...where, t: opening.transition, outcome: code });
  return h(
    "section",
    { class: "opening", "aria-label": "What was found" },
    h(
      "div",
      { class: "opening-words" },
      h("h1", {}, opening.title),
      h("p", { class: "lead" }, opening.finding),
      h("p", {}, opening.meaning),
      h(
        "p",
        { class: "row" },
        h("a", { class: "button strong", href: question }, "Open this question"),
        alike > 1 && h("a", { class: "button", href: others }, swatch(code), ` All ${alike.toLocaleString("en")} ${manyOf(OUTCOMES[code])} of ${update(opening.transition)}`),
      ),
    ),
    h(
      "figure",
      { class: "card opening-figure" },
      h("a", { href: question, "aria-label": `Open the question whose path this is: ${opening.snippet}` }, picture(set, opening)),
      h(
        "figcaption",
        {},
        h("strong", {}, `${set.run.model}, loop ${update(opening.transition)}, one question of ${set.title}: `),
        h("q", {}, opening.snippet),
        ` ${opening.why}`,
      ),
    ),
  );
}

function picture(set, opening) {
  const curve = opening.alphas.map((alpha, i) => [alpha, opening.path[i]]);
  const [best, peak] = curve.reduce((most, point) => (point[1] > most[1] ? point : most), [0, 0]);
  const words = `Measured path: slope ${signed(opening.slope)} at the start, ${peak > 0 ? `highest at ${scale(best)} of the update with ${signed(peak)} nats, ` : ""}${signed(opening.gain)} nats after the whole update.`;
  return chart(words, (width) => {
    const height = Math.min(430, Math.max(320, width * 0.56));
    return pathPlot(width, {
      curve,
      points: opening.stored ? curve : [],
      range: roomyRange(opening.path, height, width > WIDE),
      height,
      ruled: false, // no line crosses the words
      title: "change of log probability",
      across: width > WIDE ? "share α of the update that is taken: 0 = none, 1 = all of it" : "share α of the update",
      under: (frame) => sides(frame, opening, peak),
      over: (frame) => annotations(width, frame, opening, best, peak),
    });
  });
}

const WIDE = 480;

/** The range of the path with room for words: above the peak, and below the end. */
function roomyRange(path, height, wide) {
  const [low, high] = [Math.min(0, ...path), Math.max(0, ...path)];
  const [above, below] = [wide ? 60 : 74, wide ? 58 : 72];
  const nats = (high - low || 1e-9) / (height - EDGE.bottom - 12 - above - below);
  return [low - below * nats, high + above * nats];
}

/** Better above the line, worse below it. */
function sides({ x, y, top, bottom }, opening, peak) {
  return [
    peak > 0 && s("rect", { x: x(0), y: top, width: x(1) - x(0), height: y(0) - top, fill: "var(--safe)" }),
    opening.gain < 0 && s("rect", { x: x(0), y: y(0), width: x(1) - x(0), height: bottom - y(0), fill: "var(--finite-soft)" }),
    peak > 0 && s("text", { x: x(1) - 8, y: top + 17, "text-anchor": "end", class: "side" }, "more likely than before the loop"),
    opening.gain < 0 && s("text", { x: x(0) + 8, y: bottom - 10, "text-anchor": "start", class: "side" }, "less likely than before the loop"),
  ];
}

/** Words on the picture itself: where the path is highest, where the model ends. */
function annotations(width, { x, y }, opening, best, peak) {
  const wide = width > WIDE;
  const format = columnFormat([peak, opening.gain]);
  const nats = (value) => `${format.whole(value)} nats`;
  const note = (at, top, lines, anchor) => lines.map((text, i) => s("text", { x: at, y: top + 16 * i, "text-anchor": anchor, class: "note" }, text));
  const dot = (alpha, value, fill) => s("circle", { cx: x(alpha), cy: y(value), r: 6, fill, stroke: "var(--surface)", "stroke-width": 2 });
  const parts = [dot(1, opening.gain, opening.gain < 0 ? "var(--finite)" : "var(--up)")];
  const end = wide ? [`the model takes the whole step: ${nats(opening.gain)}`] : ["the whole step:", nats(opening.gain)];
  parts.push(note(x(1) - (wide ? 12 : 4), y(opening.gain) + 25, end, "end"));
  if (peak > 0 && best < 1) {
    const left = x(best) < width * 0.3;
    const top = wide ? [`best at ${scale(best)} of the step: ${nats(peak)}`] : [`best at ${scale(best)}:`, nats(peak)];
    parts.push(dot(best, peak, "var(--up)"), note(left ? x(0) + 4 : x(best), y(peak) - (wide ? 14 : 28), top, left ? "start" : "middle"));
  }
  return parts;
}

/** One sentence for every task of every run, with the way to its questions. */
export function findings() {
  if (page.sets.length < 2) return null;
  return h(
    "section",
    { class: "findings", "aria-label": "What every run shows" },
    h("h2", {}, "What every run shows"),
    h(
      "ul",
      {},
      page.sets.map((set) => {
        const entry = set.overview.updates[set.overview.leading];
        const link = address("questions", { run: set.run.label, task: set.task, t: entry.transition });
        return h("li", {}, h("strong", {}, `${set.model} on ${set.title}. `), set.overview.finding, " ", h("a", { href: link }, `${plural(entry.n, "question")} of ${entry.update}`));
      }),
    ),
  );
}
