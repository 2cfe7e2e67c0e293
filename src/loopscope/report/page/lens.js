// The lens: what the model would say at every reference token after every loop, as a map of tokens and depths.

import { announce, h, replace } from "./dom.js";
import { plural } from "./numbers.js";
import { address, note, page, questionAddress, recordsReady, textOf } from "./data.js";
import { select } from "./filters.js";
import { lensOf, lensOrder, lensSets, rightAt } from "./lens_data.js";
import { lensCell, lensGrid } from "./lens_grid.js";

const MANY = 60;

/** Which tokens the map shows, by the word of the address. */
const SHOWN = new Map([
  ["all", { words: "All tokens", keep: () => true }],
  ["changed", { words: "The answer changes beyond the trained depth", keep: (cell, trained) => cell.flip && cell.depth > trained }],
  ["lost", { words: "A right answer turns wrong", keep: (cell) => cell.flip === "lost" }],
  ["overshot", { words: "An update overshot", keep: (cell) => cell.overshot }],
]);

const lensAddress = (set, row, more = {}) => address("lens", { run: set.run.label, task: set.task, id: set.ids[row], ...more });

/** A link to a question's lens, where the page holds it. */
export const lensLink = (set, row, more) => set.lens && row < set.lens.questions && h("a", { class: "chip", href: lensAddress(set, row, more) }, "What it would say after each loop");

export async function showLens(main, params) {
  await recordsReady();
  const sets = lensSets();
  const chosen = sets.find((set) => set.run.label === params.get("run") && set.task === params.get("task"));
  if (!sets.length || (params.has("id") && !chosen)) return void replace(main, absent());
  const set = chosen ?? sets[0];
  const order = await lensOrder(set);
  const row = params.has("id") ? set.ids.indexOf(params.get("id")) : order[0];
  if (row < 0 || row >= set.lens.questions) return void replace(main, absent(row >= 0 ? set : null));
  const [tokens, text] = await Promise.all([lensOf(set, row), textOf(set, row)]);
  const trained = Math.min(set.run.trained_depth ?? 1, set.lens.depths);
  const state = { run: set.run.label, task: set.task, id: set.ids[row] };
  for (const name of ["show", "option", "token", "depth"]) state[name] = params.get(name) ?? "";
  const detail = h("aside", { class: "card lens-detail", "aria-label": "Candidates" });
  const bar = h("div", { class: "lens-bar" });
  const place = h("div", { class: "lens-place" });
  const open = (token, cell) => {
    const t = cell.depth - 1;
    if (set.transitions.includes(t)) location.hash = questionAddress(set, row, t, { option: text.options ? token.option : "", token: token.index });
    else announce(`The update ${t}→${t + 1} was not analysed`);
  };
  const show = (token, cell, report) => {
    replace(detail, lensCell(set, row, token, cell, text));
    if (!report) return;
    Object.assign(state, { option: text.options ? String(token.option) : "", token: String(token.index), depth: String(cell.depth) });
    note("lens", state);
  };
  // A long reference opens on the tokens whose answer changes, where there are any; a token of the address is shown in any case.
  const kept = (name) => tokens.filter((token) => token.cells.some((cell) => SHOWN.get(name).keep(cell, trained)));
  const usual = tokens.length > MANY && !state.token && kept("changed").length > 0 ? "changed" : "all";
  const draw = () => {
    const name = SHOWN.has(state.show) ? state.show : usual;
    const grid = lensGrid(set, kept(name), text, { show, open, all: tokens });
    replace(bar, choices(name, kept, (next) => {
      Object.assign(state, { show: next, option: "", token: "", depth: "" });
      note("lens", state, { step: true });
      draw();
    }));
    replace(place, grid.box);
    grid.select(state);
  };
  replace(
    main,
    crumbs(sets, set, order, row),
    h(
      "div",
      { class: "question-head lens-head" },
      h("h1", {}, "What it would say after each loop"),
      h("p", { class: "verdict" }, verdict(set, tokens, text, trained)),
      h("p", { class: "soft small prompt", dir: "auto" }, h("a", { href: questionAddress(set, row, set.transitions.at(-1)) }, `${set.title} · ${set.ids[row]}`), ` · ${set.run.model}: ${set.snippets[row]}`),
    ),
    legend(tokens),
    h("div", { class: "lens-view" }, h("div", { class: "lens-main" }, bar, place), detail),
  );
  draw();
}

function absent(set) {
  const words = set
    ? `This page holds the lens of the first ${set.lens.questions.toLocaleString("en")} questions: “loopscope report --lens-questions” says of how many.`
    : "This page holds no lens at that address: “loopscope measure --lens 5” keeps what the model would say after every loop.";
  return h("div", { class: "intro" }, h("h1", {}, "No lens here"), h("p", {}, words), h("p", {}, h("a", { href: "#/questions" }, "All questions")));
}

function crumbs(sets, set, order, row) {
  const at = order.indexOf(row);
  const link = (to, words) => order[to] !== undefined && h("a", { class: "button", href: lensAddress(set, order[to]) }, words);
  return h(
    "nav",
    { class: "crumbs", "aria-label": "Between questions" },
    sets.length > 1
      ? h("span", { class: "row" }, sets.map((other) => h("a", { class: "chip", href: address("lens", { run: other.run.label, task: other.task }), "aria-current": other === set && "page" }, page.meta.runs.length > 1 ? `${other.title} (${other.run.label})` : other.title)))
      : h("a", { href: "#/questions" }, "← All questions"),
    h("span", { class: "row" }, link(at - 1, "Previous"), h("span", { class: "soft small" }, `${(at + 1).toLocaleString("en")} of ${order.length.toLocaleString("en")}, most lost answers first`), link(at + 1, "Next")),
  );
}

function choices(name, kept, change) {
  const offered = [...SHOWN].filter(([key]) => key === "all" || key === name || kept(key).length > 0);
  return select("Tokens at which", name, offered.map(([key, { words }]) => [key, `${words} (${kept(key).length.toLocaleString("en")})`]), change);
}

/** What the map shows, in two sentences. */
function verdict(set, tokens, text, trained) {
  const deepest = set.lens.depths;
  const own = text.options ? tokens.filter((token) => token.option === text.right) : tokens;
  const lost = own.filter((token) => token.cells[trained - 1].right && !token.cells[deepest - 1].right).length;
  const won = own.filter((token) => !token.cells[trained - 1].right && token.cells[deepest - 1].right).length;
  const overshot = own.reduce((sum, token) => sum + token.cells.filter((cell) => cell.overshot).length, 0);
  const first = `After ${plural(trained, "loop")}${set.run.trained_depth ? " (its trained depth)" : ""} the model would say ${rightAt(own, trained)} of ${plural(own.length, "token")} of the ${text.options ? "right option" : "reference"}`;
  const second = overshot > 0 && ` ${plural(overshot, "update")} of a token overshot: a shorter step would have raised the reference, the full one lowered it.`;
  if (trained === deepest) return [`${first}.`, second];
  return [`${first}, after ${deepest} loops ${rightAt(own, deepest)}: ${plural(lost, "right answer")} turned wrong, ${won} wrong ${won === 1 ? "one" : "ones"} right.`, second];
}

function legend(tokens) {
  const any = (test) => tokens.some((token) => token.cells.some(test));
  return h(
    "p",
    { class: "lens-legend" },
    h("span", {}, "probability of the reference 0", h("i", { class: "ramp", role: "img", "aria-label": "from pale to strong" }), "1"),
    h("span", {}, h("i", { class: "mark won" }, "▲"), "turned right"),
    h("span", {}, h("i", { class: "mark lost" }, "▼"), "turned wrong"),
    any((cell) => cell.flip === "other") && h("span", {}, h("i", { class: "mark other" }, "◆"), "another wrong token"),
    any((cell) => cell.overshot) && h("span", {}, h("i", { class: "mark overshot" }, "↷"), "the update to this loop overshot"),
    h("span", {}, h("i", { class: "wrong-sample" }, "italic"), "not the reference"),
    h("span", { class: "blank-key" }, h("i", { class: "blank" }, "␣"), "a blank"),
  );
}
