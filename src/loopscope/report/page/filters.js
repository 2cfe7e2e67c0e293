// Which updates are shown: by run, task, transition, outcome and words; read from and written to the address.

import { h, swatch } from "./dom.js";
import { BAR_ORDER, OUTCOMES, page, searchable, update } from "./data.js";

export const NO_FILTER = { run: "", task: "", t: "", outcome: "", q: "", sort: "outcome", dir: "desc", from: "" };

export function filterFromAddress(params) {
  const filter = { ...NO_FILTER };
  for (const name of Object.keys(filter)) if (params.has(name)) filter[name] = params.get(name);
  if (!COLUMN_OF.has(filter.sort)) filter.sort = NO_FILTER.sort;
  return filter;
}

/** What of a filter is worth writing into an address. */
export const filterValues = (filter) => Object.fromEntries(Object.entries(filter).filter(([name, value]) => value !== NO_FILTER[name]));

/** The records that pass, in the order of the page. */
export function matching(filter) {
  const outcomes = filter.outcome === "" ? null : new Set(filter.outcome.split(",").map(Number));
  const transition = filter.t === "" ? null : Number(filter.t);
  const words = filter.q.trim().toLowerCase();
  const found = new Uint32Array(page.total);
  let count = 0;
  page.sets.forEach((set) => {
    if ((filter.run && set.run.label !== filter.run) || (filter.task && set.task !== filter.task)) return;
    const has = words ? Uint8Array.from(set.search ?? set.snippets, (text) => text.toLowerCase().includes(words)) : null;
    set.transitions.forEach((t, at) => {
      if (transition !== null && t !== transition) return;
      const base = set.base + at * set.questions;
      for (let row = 0; row < set.questions; row++) {
        if ((!outcomes || outcomes.has(page.outcome[base + row])) && (!has || has[row])) found[count++] = base + row;
      }
    });
  });
  return found.subarray(0, count);
}

/** The column of the page that each word of an address sorts by. */
const COLUMN_OF = new Map([...["question", "slope", "gain", "scale", "optimum", "outcome"].map((name) => [name, name]), ["t", "transition"]]);

/** The same records in the order of the table; missing numbers last, and within an outcome the greatest loss first. */
export function sorted(records, sort, direction) {
  const sign = direction === "desc" ? -1 : 1;
  const order = Uint32Array.from(records);
  if (sort === "question") {
    const place = (record) => page.sets[page.setOf[record]].snippets[page.row[record]];
    return order.sort((a, b) => sign * (place(a) < place(b) ? -1 : place(a) > place(b) ? 1 : 0) || a - b);
  }
  const key = page[COLUMN_OF.get(sort)];
  return order.sort((a, b) => {
    const [x, y] = [key[a], key[b]];
    if (x === y) return (sort === "outcome" && page.gain[a] - page.gain[b]) || a - b;
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
    return sign * (x - y);
  });
}

export function select(label, value, choices, changed) {
  const box = h("select", { onchange: (event) => changed(event.target.value) }, choices.map(([key, text]) => h("option", { value: key }, text)));
  box.value = choices.some(([key]) => key === value) ? value : choices[0][0];
  return h("label", { class: "field" }, label, box);
}

export function filterBar(filter, changed) {
  const choose = (label, name, choices) => choices.length > 1 && select(label, filter[name], [["", "All"], ...choices], (value) => changed({ [name]: value }));
  const unique = (values) => [...new Map(values).entries()];
  const runs = page.meta.runs.map((run) => [run.label, run.label === run.model ? run.model : `${run.model} (${run.label})`]);
  const transitions = unique(page.sets.flatMap((set) => set.transitions.map((t) => [String(t), update(t)]))).sort((a, b) => a[0] - b[0]);
  return h(
    "form",
    { class: "filters", role: "search", "aria-label": "Filter the questions", onsubmit: (event) => event.preventDefault() },
    kindBoxes(filter, changed),
    choose("Run", "run", runs),
    choose("Task", "task", unique(page.sets.map((set) => [set.task, set.title]))),
    choose("Update", "t", transitions),
    searchBox(filter, (q) => changed({ q })),
  );
}

function searchBox(filter, changed) {
  const typed = async (event) => {
    await searchable();
    changed(event.target.value);
  };
  return h("label", { class: "field" }, "Text", h("input", { type: "search", value: filter.q, placeholder: "words of the question", spellcheck: "false", oninput: typed }));
}

function kindBoxes(filter, changed) {
  const on = new Set(filter.outcome === "" ? BAR_ORDER : filter.outcome.split(",").map(Number));
  const toggle = (code, checked) => {
    if (checked) on.add(code);
    else on.delete(code);
    changed({ outcome: on.size === 4 ? "" : on.size ? [...on].sort().join(",") : "none" });
  };
  const kind = (code) => h("label", { class: "kind" }, h("input", { type: "checkbox", value: code, checked: on.has(code), onchange: (event) => toggle(code, event.target.checked) }), swatch(code), OUTCOMES[code]);
  return h("fieldset", { class: "kinds" }, h("legend", {}, "Outcome"), BAR_ORDER.map(kind));
}
