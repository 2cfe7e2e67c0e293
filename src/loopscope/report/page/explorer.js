// The view of all questions: plot and table of the same updates, under one filter that lives in the address.

import { certified, h, replace, swatch } from "./dom.js";
import { columnFormat, plural } from "./numbers.js";
import { note, page, recordAddress, recordsReady, searchable, update } from "./data.js";
import { NO_FILTER, filterBar, filterFromAddress, filterValues, matching, sorted } from "./filters.js";
import { Scatter } from "./scatter.js";

export const explorer = { order: null, filter: { ...NO_FILTER } };

export async function showExplorer(main, params) {
  await recordsReady();
  let filter = filterFromAddress(params);
  if (filter.q) await searchable();
  const scatter = new Scatter((record) => (location.hash = recordAddress(record)));
  const table = new Table({
    sorted: (sort, dir) => apply({ sort, dir, from: "" }, false),
    turned: (from) => {
      filter = { ...filter, from: from ? String(from) : "" };
      note("questions", filterValues(filter), { step: true });
    },
    pointed: (record) => scatter.point(scatter.records.indexOf(record)),
  });
  const bar = h("div");
  const apply = (changes, refilter = true) => {
    filter = { ...filter, ...(refilter && Object.keys(changes).length ? { from: "" } : {}), ...changes };
    if (refilter) scatter.show(matching(filter));
    const order = sorted(scatter.records, filter.sort, filter.dir);
    Object.assign(explorer, { order, filter });
    table.show(order, filter);
    // A word that is being typed is not a step for every letter.
    note("questions", filterValues(filter), { step: Object.keys(changes).some((name) => name !== "q") });
    redrawBar();
  };
  const redrawBar = () => {
    // A field that is being typed into must keep its caret; the others follow the filter.
    const active = document.activeElement;
    if (bar.contains(active) && active.type === "search") return;
    const key = bar.contains(active) ? [...bar.querySelectorAll("input, select")].indexOf(active) : -1;
    replace(bar, filterBar(filter, apply));
    if (key >= 0) bar.querySelectorAll("input, select")[key].focus();
  };
  replace(
    main,
    h("div", { class: "intro" }, h("h1", {}, "Questions"), h("p", {}, "Each point is one update of one question. To the right the update starts uphill; below the line it ends lower than it began. The tinted quarter holds the finite-step failures: right direction, step too long.")),
    bar,
    h("div", { class: "explorer" }, h("div", { class: "card plot-card" }, scatter.box), table.box),
  );
  apply({});
  main.repaint = () => scatter.draw();
}

// The same updates as a table, a page of it at a time.

const PAGE = 50;
const SHORT = ["progressing", "neutral", "directional", "finite-step"];
const COLUMNS = [
  { key: "question", title: "Question" },
  { key: "t", title: "Update" },
  { key: "outcome", title: "Outcome" },
  { key: "slope", title: "A", numeric: true, name: "slope" },
  { key: "gain", title: "ΔU", numeric: true, name: "gain of the full step" },
  { key: "scale", title: "α̂", numeric: true, name: "predicted scale" },
  { key: "optimum", title: "α*", numeric: true, name: "best scale on the grid" },
];

class Table {
  constructor(callbacks) {
    Object.assign(this, callbacks); // sorted, turned, pointed
    this.formats = { slope: columnFormat(page.slope), gain: columnFormat(page.gain) };
    this.count = h("p", { class: "soft", role: "status" });
    this.previous = h("button", { class: "button", type: "button", onclick: () => this.turn(-1) }, "Previous");
    this.next = h("button", { class: "button", type: "button", onclick: () => this.turn(1) }, "Next");
    [this.head, this.body] = [h("tr"), h("tbody")];
    const table = h("table", { class: "records" }, h("caption", { class: "visually-hidden" }, "Updates that pass the filters"), h("thead", {}, this.head), this.body);
    this.none = h("p", { class: "empty", hidden: true }, "No update passes these filters.");
    this.box = h(
      "div",
      { class: "card table-card" },
      h("div", { class: "table-head" }, this.count, h("div", { class: "pager" }, this.previous, this.next)),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of updates" }, table),
      this.none,
    );
  }

  show(records, { sort, dir: direction, from }) {
    this.records = records;
    const wanted = Math.floor(Number(from) / PAGE) * PAGE;
    this.start = wanted > 0 && wanted < records.length ? wanted : 0;
    replace(this.head, COLUMNS.map((column) => this.heading(column, sort, direction)));
    this.fill();
  }

  heading(column, sort, direction) {
    const mine = column.key === sort;
    const state = mine ? (direction === "desc" ? "descending" : "ascending") : "none";
    const flip = mine && direction === "asc" ? "desc" : "asc";
    const unit = this.formats[column.key]?.unit("").trim();
    const button = h(
      "button",
      { type: "button", "data-sort": column.key, onclick: () => this.sorted(column.key, flip) },
      column.title,
      unit && h("span", { class: "unit" }, ` (${unit})`),
      column.name && h("span", { class: "visually-hidden" }, `, ${column.name}`),
      mine && h("span", { class: "arrow", "aria-hidden": "true" }, direction === "desc" ? " ↓" : " ↑"),
    );
    return h("th", { scope: "col", "aria-sort": state, class: column.numeric && "numeric" }, button);
  }

  turn(by) {
    this.start += by * PAGE;
    this.fill();
    this.turned(this.start);
  }

  fill() {
    const all = this.records.length;
    const end = Math.min(this.start + PAGE, all);
    this.count.textContent = all > PAGE ? `${(this.start + 1).toLocaleString("en")}–${end.toLocaleString("en")} of ${plural(all, "update")}` : plural(all, "update");
    this.previous.disabled = this.start === 0;
    this.next.disabled = end >= all;
    this.none.hidden = all > 0;
    replace(this.body, Array.from(this.records.subarray(this.start, end), (record) => this.line(record)));
  }

  line(record) {
    const set = page.sets[page.setOf[record]];
    const outcome = page.outcome[record];
    const where = [page.meta.runs.length > 1 && set.run.label, page.sets.length > page.meta.runs.length && set.title].filter(Boolean).join(" · ");
    const point = () => this.pointed(record);
    const numeric = (name, text) => h("td", { class: "numeric", "data-name": name }, text);
    return h(
      "tr",
      { onmouseenter: point, onfocusin: point, onclick: (event) => open(event, record) },
      h("td", {}, h("a", { href: recordAddress(record) }, set.snippets[page.row[record]] || set.ids[page.row[record]]), where && h("span", { class: "soft small" }, where)),
      h("td", { class: "number" }, update(page.transition[record])),
      h("td", {}, h("span", { class: "kind-cell" }, swatch(outcome), SHORT[outcome], certified(page.certified[record]))),
      numeric("A", this.formats.slope.text(page.slope[record])),
      numeric("ΔU", this.formats.gain.text(page.gain[record])),
      numeric("α̂", places(page.scale[record])),
      numeric("α*", places(page.optimum[record])),
    );
  }
}

const places = (value) => (Number.isFinite(value) ? value.toFixed(2) : "—");

/** A click anywhere in a row opens it; one that ends a selection of text does not. */
function open(event, record) {
  if (!event.target.closest("a") && !String(getSelection())) location.hash = recordAddress(record);
}
