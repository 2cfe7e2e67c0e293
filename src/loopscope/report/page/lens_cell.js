// One cell of the lens in full: the candidates with their probabilities, the reference's rank, the update that led there.

import { h } from "./dom.js";
import { plural, signed } from "./numbers.js";
import { questionAddress } from "./data.js";
import { percent, tokenPieces } from "./lens_grid.js";

export function lensCell(set, row, token, cell, text) {
  const trained = set.run.trained_depth;
  const where = !trained ? "" : cell.depth === trained ? ", the trained depth" : cell.depth > trained ? `, ${cell.depth - trained} beyond training` : "";
  return [
    h("h2", {}, "Token ", h("span", { class: "token-name" }, tokenPieces(token.text)), ` after ${plural(cell.depth, "loop")}`),
    h("p", { class: "soft small" }, `Token ${token.index + 1}${text.options ? ` of option ${String.fromCharCode(65 + token.option)}` : ""}${where}`),
    h(
      "dl",
      { class: "readout" },
      h("div", {}, h("dt", {}, "Reference"), h("dd", {}, percent(cell.probability))),
      h("div", {}, h("dt", {}, "Its rank"), h("dd", {}, cell.rank.toLocaleString("en"))),
    ),
    candidates(cell, token),
    update(set, row, token, cell, text),
  ];
}

function candidates(cell, token) {
  const list = cell.said.map(({ text, probability }, at) => candidate(text, probability, at + 1, at + 1 === cell.rank));
  if (cell.rank > cell.said.length) list.push(candidate(token.text, cell.probability, cell.rank, true));
  return h("ol", { class: "candidates" }, list);
}

const candidate = (text, probability, rank, reference) =>
  h(
    "li",
    { class: reference && "is-reference" },
    h("span", { class: "rank soft" }, rank.toLocaleString("en")),
    h("span", { class: "says" }, tokenPieces(text), reference && h("span", { class: "badge" }, "reference")),
    h("span", { class: "share-bar", "aria-hidden": "true" }, h("span", { vars: { "--share": `${(100 * probability).toFixed(1)}%` } })),
    h("span", { class: "number" }, percent(probability)),
  );

function update(set, row, token, cell, text) {
  const t = cell.depth - 1;
  if (!Number.isFinite(cell.gain)) return null;
  const name = `${t}→${cell.depth}`;
  const words = cell.overshot
    ? `The update ${name} overshot: it changes the reference's log probability by ${signed(cell.gain)} nats; a shorter step along it would have gained ${signed(cell.shortGain)}.`
    : `The update ${name} changes the reference's log probability by ${signed(cell.gain)} nats.`;
  return [
    h("p", { class: "small" }, words),
    set.transitions.includes(t)
      ? h("a", { class: "button", href: questionAddress(set, row, t, { option: text.options ? token.option : "", token: token.index }) }, `Open the path of ${name}`)
      : h("p", { class: "soft small" }, `The run does not analyse ${name}: “--transitions ${t}” does.`),
  ];
}
