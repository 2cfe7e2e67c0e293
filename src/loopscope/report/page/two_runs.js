// Two runs on the same questions: every difference with its interval, which outcomes changed, one against the other.
//
// Which rows belong together, and all numbers with intervals, come with the page; here they are only chosen and drawn.

import { announce, h, replace, swatch } from "./dom.js";
import { late } from "./codec.js";
import { columnFormat, plural } from "./numbers.js";
import { BAR_ORDER, OUTCOMES, note, page, questionAddress, recordAt, recordsReady, update } from "./data.js";
import { select } from "./filters.js";
import { PairScatter, SCALES } from "./pair_scatter.js";
import { bothDepths, differenceStrip } from "./pair_marks.js";

const PAGE = 12;
const DEFAULTS = { a: "", b: "", task: "", t: "", x: "gain", move: "changed", sort: "difference", dir: "desc" };

export async function showTwoRuns(main, params) {
  await recordsReady();
  const packed = await late("two-runs");
  const { pairs } = packed;
  if (!pairs.length) {
    replace(main, h("div", { class: "intro" }, h("h1", {}, "Two runs"), h("p", {}, "No two runs of this page have measured the same questions. ", h("a", { href: "#/overview" }, "Overview"))));
    return;
  }
  const choice = { ...DEFAULTS };
  for (const name of Object.keys(choice)) if (params.has(name)) choice[name] = params.get(name);
  const stage = h("div");
  const show = (changes = {}) => {
    const active = document.activeElement?.dataset?.choice;
    Object.assign(choice, changes);
    const shown = chosen(packed, choice);
    Object.assign(choice, shown.choice);
    note("runs", Object.fromEntries(Object.entries(choice).filter(([name, value]) => value !== DEFAULTS[name])), { step: Object.keys(changes).length > 0 });
    replace(stage, content(shown, show));
    if (active) stage.querySelector(`[data-choice="${CSS.escape(active)}"]`)?.focus();
    main.repaint = stage.firstChild.repaint ?? null;
  };
  show();
  replace(main, stage);
}

const run = (number) => page.meta.runs[number];

/** What an address asks for, and where it asks for nothing or for something that is not there, the first that is. */
function chosen(packed, choice) {
  const { pairs } = packed;
  const pair =
    pairs.find((each) => run(each.first).label === choice.a && run(each.second).label === choice.b) ??
    pairs.find((each) => run(each.first).label === choice.a || run(each.second).label === choice.b) ??
    pairs[0];
  const sets = pair.sets.map((each) => ({ ...each, first: setOf(each.first), second: setOf(each.second) }));
  const set = sets.find((each) => each.second.task === choice.task) ?? sets[0];
  const entry = set.updates.find((each) => String(each.transition) === choice.t) ?? clearest(set.updates);
  const x = SCALES.has(choice.x) ? choice.x : DEFAULTS.x;
  const rows = [packed[`${set.rows}-0`], packed[`${set.rows}-1`]];
  const records = Array.from(rows[0], (row, at) => [recordAt(set.first, row, entry.transition), recordAt(set.second, rows[1][at], entry.transition)]);
  return {
    ...{ pairs, pair, sets, set, entry, records, x },
    choice: { a: run(pair.first).label, b: run(pair.second).label, task: set.second.task, t: String(entry.transition), x, move: moveOf(choice.move), sort: Object.hasOwn(SORTS, choice.sort) ? choice.sort : DEFAULTS.sort, dir: choice.dir === "asc" ? "asc" : "desc" },
  };
}

const setOf = (name) => page.sets.find((set) => set.name === name);

/** The update at which most outcomes changed. */
const clearest = (updates) => updates.reduce((best, each) => (each.changed > best.changed ? each : best));

/** "changed", "all", or two outcome codes such as "0-3". */
const moveOf = (text) => (text === "all" || /^[0-3]-[0-3]$/.test(text) ? text : "changed");

const passes = (move, first, second) => move === "all" || (move === "changed" ? first !== second : move === `${first}-${second}`);

function content(shown, show) {
  const { pair, set, entry, records, choice } = shown;
  const outcomes = ([first, second]) => [page.outcome[first], page.outcome[second]];
  const kept = records.filter((record) => passes(choice.move, ...outcomes(record)));
  const scatter = new PairScatter({ names: [run(pair.first).label, run(pair.second).label], column: choice.x, opened: (record) => (location.hash = addressOf(record[1])) });
  scatter.show(records, kept);
  const box = h(
    "div",
    {},
    h("div", { class: "intro" }, h("h1", {}, "Two runs on the same questions"), h("p", {}, entry.words), h("p", { class: "soft small pair-said" }, set.said, ".")),
    controls(shown, show),
    h(
      "div",
      { class: "pair-grid" },
      h("section", { class: "card", "aria-label": "Differences" }, h("h2", {}, `Differences of ${entry.update}`), legend(pair), differences(entry.metrics)),
      h(
        "div",
        { class: "stack" },
        set.first.overview?.depth && set.second.overview?.depth
          ? h("section", { class: "card stack", "aria-label": "Utility by depth" }, h("h2", {}, "Mean utility by depth"), legend(pair), bothDepths([set.first, set.second], entry.transition))
          : null,
        h("section", { class: "card stack", "aria-label": "Outcomes by update" }, h("h2", {}, "Outcomes by update"), bars(shown, show)),
      ),
    ),
    h(
      "div",
      { class: "pair-grid" },
      h("section", { class: "card stack", "aria-label": "One run against the other" }, h("h2", {}, "Every question, one run against the other"), columnChoice(choice, show), scatter.box, h("p", { class: "soft small" }, "Marked are questions whose outcome changed, by their outcome in the second run. On the line both runs agree.")),
      h("section", { class: "card stack", "aria-label": "Changed outcomes" }, h("h2", {}, "Which questions changed"), matrix(shown, show), list(shown, kept, show, scatter)),
    ),
    settings(pair),
  );
  box.repaint = () => scatter.draw();
  return box;
}

function controls({ pairs, pair, sets, set, entry, choice }, show) {
  const labels = [...new Set(pairs.flatMap((each) => [each.first, each.second]))].map((number) => [run(number).label, named(number)]);
  const partners = pairs.filter((each) => each.first === pair.first).map((each) => [run(each.second).label, named(each.second)]);
  const firsts = labels.filter(([label]) => pairs.some((each) => run(each.first).label === label));
  const field = (name, label, choices, value) => {
    const box = select(label, value, choices, (picked) => show({ [name]: picked }));
    const inner = box.querySelector("select");
    inner.dataset.choice = name;
    if (inner.options[0].value === "") inner.options[0].remove();
    inner.value = value;
    return box;
  };
  return h(
    "form",
    { class: "filters", "aria-label": "Choose runs and update", onsubmit: (event) => event.preventDefault() },
    field("a", "First run", firsts, choice.a),
    field("b", "Second run", partners, choice.b),
    sets.length > 1 && field("task", "Task", sets.map((each) => [each.second.task, each.second.title]), choice.task),
    field("t", "Update", set.updates.map((each) => [String(each.transition), each.update]), choice.t),
  );
}

const named = (number) => (run(number).label === run(number).model ? run(number).model : `${run(number).label} (${run(number).model})`);

const legend = (pair) =>
  h("p", { class: "pair-key soft small" }, h("i", { class: "first" }), ` first: ${named(pair.first)}`, " ", h("i", { class: "second" }), ` second: ${named(pair.second)}`);

function differences(metrics) {
  const group = (title, members) => {
    const ends = members.flatMap((metric) => [metric.low, metric.high, metric.value]).filter((value) => value !== null);
    const reach = Math.max(...ends.map(Math.abs), 0) || 1;
    return members.length > 0 && [h("tr", { class: "group" }, h("th", { scope: "colgroup", colspan: 5 }, title)), members.map((metric) => line(metric, reach))];
  };
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of differences" },
    h(
      "table",
      { class: "pair-differences" },
      h("caption", { class: "visually-hidden" }, "Metrics of both runs and their paired differences"),
      h("thead", {}, h("tr", {}, ["", "first", "second", "difference", `${Math.round(100 * page.meta.level)}% interval`].map((text) => h("th", { scope: "col" }, text || h("span", { class: "visually-hidden" }, "Metric"))))),
      h("tbody", {}, group("In nats", metrics.filter((metric) => !metric.share)), group("Shares of questions; differences in percentage points", metrics.filter((metric) => metric.share))),
    ),
  );
}

function line(metric, reach) {
  const [first, second, difference, interval] = metric.text;
  return h(
    "tr",
    { class: metric.clear ? "clear" : null },
    h("th", { scope: "row" }, metric.words),
    h("td", { class: "number", "data-head": "first" }, first),
    h("td", { class: "number", "data-head": "second" }, second),
    h("td", { class: "number", "data-head": "difference" }, difference),
    h("td", { class: "between" }, differenceStrip(metric, reach), h("span", { class: "number soft" }, interval)),
  );
}

/** Both runs of every common update on one axis; a click chooses the update for the whole view. */
function bars({ set, choice, records }, show) {
  const questions = records.length;
  return h(
    "fieldset",
    { class: "updates pair-updates" },
    h("legend", { class: "visually-hidden" }, "Update"),
    set.updates.map((entry) => {
      const counts = [set.first, set.second].map((side) => side.overview.updates.find((each) => each.transition === entry.transition).outcomes);
      return h(
        "label",
        { class: "update" },
        h("input", { type: "radio", name: "pair-update", value: entry.transition, checked: String(entry.transition) === choice.t, "data-choice": `t${entry.transition}`, onchange: () => show({ t: String(entry.transition) }) }),
        h("span", { class: "name" }, entry.update),
        h("span", { class: "both" }, counts.map((outcomes, side) => bar(outcomes, side ? "second" : "first"))),
        h("span", { class: "number" }, entry.metrics.find((metric) => metric.name === "gain").text[2]),
      );
    }),
    h("p", { class: "soft small" }, `First above second. At the right: difference of the mean gain over the ${plural(questions, "question")} that both have, in nats.`),
    h("p", { class: "outcome-key soft small" }, BAR_ORDER.map((code) => h("span", {}, swatch(code), ` ${OUTCOMES[code]}`))),
  );
}

function bar(shares, which) {
  const words = `${which} run: ${shares.filter((entry) => entry.count).map((entry) => `${entry.count} ${OUTCOMES[shares.indexOf(entry)]}`).join(", ")}`;
  return h(
    "span",
    { class: "bar", role: "img", "aria-label": words, title: words },
    BAR_ORDER.filter((code) => shares[code].count).map((code) => h("span", { class: `outcome-${code}`, vars: { "flex-grow": shares[code].count } })),
  );
}

function columnChoice(choice, show) {
  const box = select("Compare by", choice.x, [...SCALES].map(([name, { title }]) => [name, title]), (x) => show({ x }));
  const inner = box.querySelector("select");
  inner.dataset.choice = "x";
  inner.options[0].remove();
  inner.value = choice.x;
  return box;
}

/** How many questions went from which outcome to which; every number filters plot and list. */
function matrix({ records, choice }, show) {
  const counts = new Map();
  for (const [first, second] of records) {
    const key = `${page.outcome[first]}-${page.outcome[second]}`;
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const button = (move, text, words) =>
    h("button", { type: "button", class: "button cell", "aria-pressed": String(choice.move === move), "aria-label": words, "data-choice": `m${move}`, onclick: () => show({ move: choice.move === move && move !== "changed" ? "changed" : move }) }, text);
  const changed = records.filter(([first, second]) => page.outcome[first] !== page.outcome[second]).length;
  const short = ["progressing", "neutral", "directional", "finite-step"];
  const present = BAR_ORDER.filter((code) => [...counts.keys()].some((key) => key.split("-").includes(String(code))));
  return [
    h("div", { class: "row" }, button("changed", `${changed.toLocaleString("en")} changed`, `${changed} changed outcomes`), button("all", `all ${records.length.toLocaleString("en")}`, "all questions")),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Outcomes in both runs" },
      h(
        "table",
        { class: "matrix" },
        h("caption", { class: "soft small" }, "Rows: outcome in the first run. Columns: in the second."),
        h("thead", {}, h("tr", {}, h("td", {}), present.map((code) => h("th", { scope: "col" }, swatch(code), " ", short[code])))),
        h(
          "tbody",
          {},
          present.map((from) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, swatch(from), " ", short[from]),
              present.map((to) => {
                const count = counts.get(`${from}-${to}`) ?? 0;
                return h("td", { class: from === to ? "same" : null }, count ? button(`${from}-${to}`, count.toLocaleString("en"), `${count} from ${OUTCOMES[from]} to ${OUTCOMES[to]}`) : h("span", { class: "soft" }, "·"));
              }),
            ),
          ),
        ),
      ),
    ),
  ];
}

const SORTS = {
  question: ([first]) => words(first),
  first: ([first]) => page.gain[first],
  second: ([, second]) => page.gain[second],
  difference: ([first, second]) => Math.abs(page.gain[second] - page.gain[first]),
};

const words = (record) => {
  const set = page.sets[page.setOf[record]];
  return set.snippets[page.row[record]] || set.ids[page.row[record]];
};

const addressOf = (record) => questionAddress(page.sets[page.setOf[record]], page.row[record], page.transition[record]);

function list({ choice }, kept, show, scatter) {
  const key = SORTS[choice.sort];
  const sign = choice.dir === "desc" ? -1 : 1;
  const order = kept.slice().sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    return sign * (x < y ? -1 : x > y ? 1 : 0) || a[0] - b[0];
  });
  const columns = [([first]) => page.gain[first], ([, second]) => page.gain[second], ([first, second]) => page.gain[second] - page.gain[first]];
  // One format for the three columns, so that they can be compared.
  const format = columnFormat(order.flatMap((record) => columns.map((read) => read(record))));
  const body = h("tbody");
  const count = h("p", { class: "soft", role: "status" });
  let start = 0;
  const turn = (by) => {
    start += by * PAGE;
    const end = Math.min(start + PAGE, order.length);
    const unit = order.length ? `; ΔU in ${format.unit("nats")}` : "";
    count.textContent = (order.length > PAGE ? `${start + 1}–${end} of ${plural(order.length, "question")}` : plural(order.length, "question")) + unit;
    previous.disabled = start === 0;
    next.disabled = end >= order.length;
    replace(body, order.slice(start, end).map(entry));
    if (by) announce(count.textContent);
  };
  const entry = (record) => {
    const [first, second] = record;
    const point = () => scatter.point(scatter.records.indexOf(record));
    return h(
      "tr",
      { onmouseenter: point, onfocusin: point },
      h("td", {}, h("span", { class: "clip" }, words(first)), h("span", { class: "pair-links small" }, h("a", { href: addressOf(first) }, "first", h("span", { class: "visually-hidden" }, ` run: ${words(first)}`)), h("a", { href: addressOf(second) }, "second", h("span", { class: "visually-hidden" }, ` run: ${words(first)}`)))),
      h("td", {}, h("span", { class: "kind-cell" }, swatch(page.outcome[first]), "→", swatch(page.outcome[second]), h("span", { class: "visually-hidden" }, `${OUTCOMES[page.outcome[first]]} to ${OUTCOMES[page.outcome[second]]}`))),
      columns.map((read) => h("td", { class: "numeric" }, format.text(read(record)))),
    );
  };
  const heading = (name, text, numeric) => {
    const mine = choice.sort === name;
    const flip = mine && choice.dir === "desc" ? "asc" : "desc";
    return h(
      "th",
      { scope: "col", class: numeric && "numeric", "aria-sort": mine ? (choice.dir === "desc" ? "descending" : "ascending") : "none" },
      h("button", { type: "button", "data-choice": `s${name}`, onclick: () => show({ sort: name, dir: flip }) }, text, mine && h("span", { class: "arrow", "aria-hidden": "true" }, choice.dir === "desc" ? " ↓" : " ↑")),
    );
  };
  const previous = h("button", { class: "button", type: "button", onclick: () => turn(-1) }, "Previous");
  const next = h("button", { class: "button", type: "button", onclick: () => turn(1) }, "Next");
  turn(0);
  return h(
    "div",
    {},
    h("div", { class: "table-head" }, count, h("div", { class: "pager" }, previous, next)),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of questions" },
      h("table", { class: "records pair-records" }, h("caption", { class: "visually-hidden" }, `Questions and their gain at ${update(Number(choice.t))}`), h("thead", {}, h("tr", {}, heading("question", "Question"), h("th", { scope: "col" }, h("span", { class: "plain" }, "Outcome")), heading("first", "ΔU first", true), heading("second", "ΔU second", true), heading("difference", "Difference", true))), body),
    ),
    !order.length && h("p", { class: "empty" }, "No question went this way."),
  );
}

function settings(pair) {
  if (!pair.settings.length) return h("p", { class: "soft" }, "Both runs have the same settings.");
  return h(
    "details",
    { class: "card pair-settings" },
    h("summary", {}, `${plural(pair.settings.length, "setting")} differ`),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings that differ" }, h("table", {}, h("thead", {}, h("tr", {}, ["Setting", "first", "second"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, pair.settings.map(([name, first, second]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, first), h("td", {}, second)))))),
  );
}
