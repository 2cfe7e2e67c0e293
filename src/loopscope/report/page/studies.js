// Tables and figures of all studies, one at a time beside their contents; what is chosen is in the address.

import { h, replace } from "./dom.js";
import { plural } from "./numbers.js";
import { address, note, update } from "./data.js";
import { late } from "./codec.js";
import { select } from "./filters.js";
import { copyButtons, drawing, kept, sheetTable, sheetsOf } from "./study_parts.js";

const ALL = "all";
const LINES = 100;

export async function showStudies(main, params) {
  const data = await late("studies");
  const entries = entriesOf(data);
  const chosen = { study: params.get("study") ?? "", run: params.get("run") ?? "", task: params.get("task") ?? "", t: params.get("t") ?? "", p: params.get("p") ?? "" };
  const everything = chosen.study === ALL;
  const current = entries.find((entry) => entry.key === chosen.study) ?? entries[0];
  const contents = h("nav", { class: "contents", "aria-label": "Contents of the studies" });
  const bar = h("div", { class: "study-filters" });
  const content = h("div", { class: "study-content" });
  const values = (more = {}) => ({ ...chosen, p: "", ...more });
  const change = (changes) => {
    Object.assign(chosen, { p: "" }, changes);
    note("studies", chosen, { step: true });
    draw();
  };
  const draw = () => {
    const keep = kept(data.places, chosen);
    replace(contents, contentsList(entries, everything ? null : current, keep, values));
    replace(content, (everything ? entries : [current]).map((entry) => section(entry, keep, chosen, change)), !everything && neighbours(entries, current, values));
    if (!bar.contains(document.activeElement)) replace(bar, filters(data.places, chosen, change));
  };
  draw();
  replace(
    main,
    h("div", { class: "intro" }, h("h1", {}, "Studies"), h("p", {}, "Figures and tables made from these runs.")),
    bar,
    h("div", { class: "studies" }, contents, content),
  );
  // A list that is longer than the window shows the study that is open.
  requestAnimationFrame(() => {
    const mark = contents.querySelector("[aria-current]");
    const list = contents.querySelector(".contents-list");
    if (mark && list) list.scrollTop = mark.offsetTop - list.clientHeight / 2;
  });
}

function entriesOf({ figures, tables, comparison, missing }) {
  return [
    ...figures.map((study) => ({ key: `figure-${study.name}`, group: "Figures", study })),
    ...tables.map((study) => ({ key: `table-${study.name}`, group: "Tables", study })),
    ...(comparison ? [{ key: "compare", group: "Beside the paper", study: comparison }] : []),
    ...(missing.length ? [{ key: "missing", group: "Not in these runs", missing }] : []),
  ];
}

const titleOf = (entry) => entry.study?.title ?? `${plural(entry.missing.length, "study", "studies")}, and why`;

const lines = (entry, keep) => sheetsOf(entry.study, keep).reduce((most, sheet) => Math.max(most, sheet.lines.length), 0);

function contentsList(entries, current, keep, values) {
  const groups = [...new Set(entries.map((entry) => entry.group))];
  const link = (entry) => {
    const empty = entry.study?.sheets && lines(entry, keep) === 0;
    return h("li", {}, h("a", { href: address("studies", values({ study: entry.key })), class: empty && "empty-study", "aria-current": entry === current && "page" }, titleOf(entry), empty && h("span", { class: "visually-hidden" }, " (no row passes the filter)")));
  };
  const list = h(
    "div",
    { class: "contents-list", id: "contents-list" },
    groups.map((group) => [h("h2", {}, group), h("ul", {}, entries.filter((entry) => entry.group === group).map(link))]),
    h("p", {}, h("a", { href: address("studies", values({ study: ALL })), "aria-current": !current && "page" }, "All on one page")),
  );
  const toggle = h("button", { type: "button", class: "contents-toggle", "aria-expanded": "false", "aria-controls": "contents-list" }, h("strong", {}, "Contents"), h("span", { class: "soft" }, current ? titleOf(current) : "All on one page"));
  toggle.addEventListener("click", () => {
    const open = list.classList.toggle("open");
    toggle.setAttribute("aria-expanded", String(open));
  });
  list.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && list.classList.contains("open")) {
      toggle.click();
      toggle.focus();
    }
  });
  return [toggle, list];
}

function filters(places, chosen, change) {
  const unique = (pairs) => [...new Map(pairs).entries()];
  const runs = unique(places.map((place) => [place.run, place.run === place.model ? place.model : `${place.model} (${place.run})`]));
  const tasks = unique(places.map((place) => [place.task, place.title]));
  const transitions = unique(places.filter((place) => place.t !== null).map((place) => [String(place.t), update(place.t)])).sort((a, b) => a[0] - b[0]);
  const fields = [
    runs.length > 1 && select("Run", chosen.run, runs, (run) => change({ run })),
    tasks.length > 1 && select("Task", chosen.task, tasks, (task) => change({ task })),
    transitions.length > 1 && select("Update", chosen.t, transitions, (t) => change({ t })),
  ];
  return fields.some(Boolean) && h("form", { class: "filters", "aria-label": "Filter the tables", onsubmit: (event) => event.preventDefault() }, fields);
}

function neighbours(entries, current, values) {
  const at = entries.indexOf(current);
  const link = (entry, words) => entry && h("a", { class: "button", href: address("studies", values({ study: entry.key })), "aria-label": `${words}: ${titleOf(entry)}` }, words);
  return h("nav", { class: "crumbs", "aria-label": "Between studies" }, h("span", {}, link(entries[at - 1], "Previous")), link(entries[at + 1], "Next"));
}

function section(entry, keep, chosen, change) {
  if (!entry) return h("p", { class: "empty" }, "These runs fill no study.");
  if (entry.missing) return missingBlock(entry.missing);
  const { study } = entry;
  return h(
    "section",
    { class: "card study", id: entry.key, "aria-label": study.title },
    h("header", {}, h("h2", {}, study.title), study.latex && copyButtons(study, keep)),
    h("p", { class: "caption" }, study.caption),
    study.sheets ? tables(study, keep, chosen, change) : figure(study, keep.active),
    study.notes.length > 0 && h("ul", { class: "notes" }, study.notes.map((text) => h("li", {}, text))),
    h("p", { class: "soft small command" }, "Again from the command line: ", h("code", {}, study.command)),
  );
}

function figure(study, filtered) {
  const label = `${study.title}. ${study.caption}`;
  return [
    filtered && h("p", { class: "soft small" }, "The filter acts on tables; this figure shows everything."),
    study.drawing
      ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${study.title}, figure` }, h("div", { class: "drawing", vars: { "--width": `${study.width}px` } }, drawing(study.drawing, label)))
      : h("span", { class: "plate" }, h("img", { src: study.image, width: study.width, alt: label })),
  ];
}

/** The sheets of a table; a long one a part at a time. */
function tables(study, keep, chosen, change) {
  const sheets = sheetsOf(study, keep);
  const most = sheets.reduce((sum, sheet) => Math.max(sum, sheet.lines.length), 0);
  if (most === 0) return h("p", { class: "empty" }, "No row of this table passes the filter.");
  const pages = Math.ceil(most / LINES);
  const at = Math.min(Math.max(Math.trunc(Number(chosen.p)) || 1, 1), pages);
  const start = (at - 1) * LINES;
  const turn = (to, words) => h("button", { class: "button", type: "button", disabled: to < 1 || to > pages, onclick: () => change({ p: to > 1 ? String(to) : "" }) }, words);
  return [
    pages > 1 && h("div", { class: "pager" }, h("span", { class: "soft", role: "status" }, `${(start + 1).toLocaleString("en")}–${Math.min(start + LINES, most).toLocaleString("en")} of ${plural(most, "line")}`), turn(at - 1, "Previous"), turn(at + 1, "Next")),
    sheets.filter((sheet) => sheet.lines.length > start).map((sheet) => sheetTable({ ...sheet, lines: sheet.lines.slice(start, start + LINES) }, study.title)),
  ];
}

/** Studies that these runs cannot fill, by what they lack. */
function missingBlock(missing) {
  const reasons = [...new Set(missing.map((study) => study.reason))];
  return h(
    "section",
    { class: "card study", id: "missing", "aria-label": "Studies that these runs cannot fill" },
    h("h2", {}, "Not in these runs"),
    h(
      "dl",
      { class: "reasons" },
      reasons.map((reason) => [h("dt", {}, missing.filter((study) => study.reason === reason).map((study) => study.name).join(", ")), h("dd", {}, reason)]),
    ),
  );
}
