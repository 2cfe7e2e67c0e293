// The map itself: a row per reference token, a column per loop, a block per option; arrows walk, Enter opens.

import { h } from "./dom.js";
import { number, plural, signed } from "./numbers.js";
import { questionAddress } from "./data.js";
import { rightAt, scoreAt } from "./lens_data.js";

const STRONGEST = 58;

/** A token as one piece: blanks at its ends, line ends and tabs can be seen. */
export function tokenPieces(text) {
  const [, before, middle, after] = /^( *)([\s\S]*?)( *)$/.exec(text);
  const blank = (part) => part && h("span", { class: "blank" }, "␣".repeat(part.length));
  return [blank(before), middle.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍"), blank(after)];
}

const percent = (value) => (value >= 0.9995 && value < 1 ? "> 99.9%" : value > 0 && value < 0.0005 ? "< 0.1%" : `${(100 * value).toFixed(1)}%`);

const FLIPS = { won: ["▲", "turned right"], lost: ["▼", "turned wrong"], other: ["◆", "another wrong token than before"] };

export function lensGrid(set, tokens, text, { show, open, all }) {
  const depths = Array.from({ length: set.lens.depths }, (_, loop) => loop + 1);
  const trained = set.run.trained_depth;
  const places = [];
  const parts = text.options ? text.options.map((_, option) => option) : [0];
  const bodies = parts.map((option) => body({ option, tokens: tokens.filter((token) => token.option === option), all, text, depths, trained, places }));
  const table = h(
    "table",
    { class: "lens", role: "grid", "aria-label": "What the model would say at each reference token after each loop" },
    h("thead", {}, trained && trained < depths.at(-1) && h("tr", { class: "spans" }, h("td"), h("th", { colspan: trained, scope: "colgroup" }, `trained: ${plural(trained, "loop")}`), h("th", { colspan: depths.at(-1) - trained, scope: "colgroup", class: "beyond" }, "beyond")), heads(depths, trained)),
    bodies,
  );
  const box = h("div", { class: "scroll lens-box" }, table);
  walk(table, places, show, open);
  const select = (wanted) => {
    const found = places.findIndex(({ token, cell }) => String(token.index) === wanted.token && String(cell.depth) === wanted.depth && (wanted.option || "0") === String(token.option));
    const telling = places.findIndex(({ cell }) => cell.flip === "lost" && cell.overshot);
    const lost = places.findIndex(({ cell }) => cell.flip === "lost");
    const at = [found, telling, lost, 0].find((place) => place >= 0);
    if (places[at]) {
      places[at].element.tabIndex = 0;
      places[at].element.classList.add("chosen");
      show(places[at].token, places[at].cell, false);
      if (found >= 0) requestAnimationFrame(() => places[at].element.scrollIntoView({ block: "center", inline: "nearest" }));
    }
  };
  return { box, select };
}

const heads = (depths, trained) =>
  h(
    "tr",
    {},
    h("th", { scope: "col", class: "reference" }, "Reference"),
    depths.map((depth) => h("th", { scope: "col", class: edge(depth, trained) }, h("span", { class: "visually-hidden" }, "after "), String(depth), h("span", { class: depth === 1 ? "soft" : "visually-hidden" }, depth === 1 ? " loop" : " loops"))),
  );

const edge = (depth, trained) => (depth === trained ? "trained-depth" : trained && depth > trained ? "beyond" : null);

function body({ option, tokens, all, text, depths, trained, places }) {
  const own = all.filter((token) => token.option === option);
  const letter = option < 26 ? String.fromCharCode(65 + option) : String(option + 1);
  const best = (depth) => Math.max(...text.options.map((_, other) => scoreAt(all.filter((token) => token.option === other), depth)));
  const counts = h(
    "tr",
    { class: "count-row" },
    h("th", { scope: "row" }, "right answers"),
    depths.map((depth) => h("td", { class: edge(depth, trained) }, `${rightAt(own, depth)}/${own.length}`)),
  );
  return h(
    "tbody",
    {},
    text.options &&
      h(
        "tr",
        { class: `option-row${option === text.right ? " right" : ""}` },
        h("th", { scope: "row" }, `Option ${letter}`, option === text.right && h("span", { class: "badge" }, "right")),
        depths.map((depth) => {
          const score = scoreAt(own, depth);
          const chosen = score === best(depth);
          return h("td", { class: edge(depth, trained), title: "nats per token" }, number(score, { digits: 3 }), chosen && h("strong", { title: "the option that the model would choose" }, " ✓"));
        }),
      ),
    counts,
    tokens.map((token) => line(token, trained, places)),
  );
}

function line(token, trained, places) {
  return h(
    "tr",
    {},
    h("th", { scope: "row", class: "reference", title: token.text }, tokenPieces(token.text)),
    token.cells.map((cell) => {
      const [mark, words] = FLIPS[cell.flip] ?? [];
      const spoken = [`after ${plural(cell.depth, "loop")} it would say “${cell.said[0].text}”`, `reference ${percent(cell.probability)}`, words, cell.overshot && "the update overshot"];
      const kinds = ["cell", !cell.right && "wrong", cell.flip, cell.overshot && "overshot", edge(cell.depth, trained)].filter(Boolean).join(" ");
      const facts = { class: kinds, tabindex: -1, "aria-label": spoken.filter(Boolean).join(", "), vars: { "--weight": `${(STRONGEST * cell.probability).toFixed(1)}%` } };
      const element = h("td", facts, mark && h("span", { class: "mark" }, mark), h("span", { class: "says" }, tokenPieces(cell.said[0].text)), cell.overshot && h("span", { class: "mark over" }, "↷"));
      places.push({ element, token, cell });
      return element;
    }),
  );
}

/** One cell of the map is in the order of Tab; arrows move within it. */
function walk(table, places, show, open) {
  const at = new Map(places.map(({ element }, place) => [element, place]));
  const width = places.length ? places[0].token.cells.length : 1;
  const placeOf = (event) => at.get(event.target.closest("td.cell"));
  const choose = (place, report) => {
    for (const other of table.querySelectorAll("td.chosen, td[tabindex='0']")) {
      other.classList.remove("chosen");
      other.tabIndex = -1;
    }
    const { element, token, cell } = places[place];
    element.tabIndex = 0;
    element.classList.add("chosen");
    show(token, cell, report);
  };
  table.addEventListener("mouseover", (event) => placeOf(event) !== undefined && choose(placeOf(event), false));
  table.addEventListener("focusin", (event) => placeOf(event) !== undefined && choose(placeOf(event), true));
  table.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place === undefined) return;
    // A finger has no way to hover: its first touch shows the candidates, whose panel has the link.
    if (event.pointerType === "touch") places[place].element.focus();
    else open(places[place].token, places[place].cell);
  });
  table.addEventListener("keydown", (event) => {
    const place = placeOf(event);
    if (place === undefined) return;
    if (event.key === "Enter") return open(places[place].token, places[place].cell);
    const column = place % width;
    const sideways = { ArrowRight: 1, ArrowLeft: -1, Home: -column, End: width - 1 - column }[event.key];
    const down = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (sideways === undefined && down === undefined) return;
    event.preventDefault();
    const row = Math.min(Math.max((place - column) / width + (down ?? 0), 0), places.length / width - 1);
    places[row * width + Math.min(Math.max(column + (sideways ?? 0), 0), width - 1)].element.focus();
  });
}

// One cell in full: the candidates with their probabilities, the reference's rank, the update that led there.

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
    stepTo(set, row, token, cell, text),
  ];
}

function candidates(cell, token) {
  const list = cell.said.map(({ text, probability }, at) => ({ text, probability, rank: at + 1 }));
  if (cell.rank > list.length) list.push({ text: token.text, probability: cell.probability, rank: cell.rank });
  const line = ({ text, probability, rank }) =>
    h(
      "li",
      { class: rank === cell.rank && "is-reference" },
      h("span", { class: "rank soft" }, rank.toLocaleString("en")),
      h("span", { class: "says" }, tokenPieces(text), rank === cell.rank && h("span", { class: "badge" }, "reference")),
      h("span", { class: "share-bar", "aria-hidden": "true" }, h("span", { vars: { "--share": `${(100 * probability).toFixed(1)}%` } })),
      h("span", { class: "number" }, percent(probability)),
    );
  return h("ol", { class: "candidates" }, list.map(line));
}

function stepTo(set, row, token, cell, text) {
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
