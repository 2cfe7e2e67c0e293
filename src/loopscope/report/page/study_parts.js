// What a study is shown as: a table of the conditions that pass the filter, a drawing, buttons that copy.

import { h, s } from "./dom.js";
import { copyButton } from "./copy.js";

/** Whether a cell's condition passes; `-1` belongs to no one condition. A row about all updates passes any update. */
export function kept(places, { run, task, t }) {
  const passes = places.map((place) => (!run || place.run === run) && (!task || place.task === task) && (!t || place.t === null || String(place.t) === t));
  const keep = (place) => place < 0 || passes[place] === true;
  keep.active = Boolean(run || task || t);
  return keep;
}

/** The sheets of a table with the lines and columns that hold something that passes. */
export function sheetsOf(study, keep) {
  return (study?.sheets ?? []).map((sheet) => filtered(sheet, keep)).filter((sheet) => sheet.lines.length > 0);
}

function filtered(sheet, keep) {
  const owner = (line, column) => (Array.isArray(sheet.places[line]) ? sheet.places[line][column] : sheet.places[line]);
  const own = (line, column) => owner(line, column) >= 0 && keep(owner(line, column));
  const all = sheet.heads.map((_, column) => column);
  const lines = sheet.lines.map((_, line) => line).filter((line) => all.some((column) => own(line, column)));
  const shared = (column) => lines.every((line) => owner(line, column) < 0);
  const columns = all.filter((column) => shared(column) || lines.some((line) => own(line, column)));
  const groups = sheet.groups.flatMap(([name, span]) => Array(span).fill(name));
  return hoisted({
    title: sheet.title,
    heads: columns.map((column) => sheet.heads[column]),
    left: columns.map((column) => sheet.left[column]),
    groups: columns.map((column) => groups[column]),
    lines: lines.map((line) => columns.map((column) => (keep(owner(line, column)) ? sheet.lines[line][column] : ""))),
  });
}

/** Words that are the same in every line are said once, above the table. */
function hoisted(sheet) {
  const same = (column) => sheet.left[column] && sheet.lines.length > 1 && sheet.lines.every((line) => line[column] === sheet.lines[0][column]);
  const columns = sheet.heads.map((_, column) => column);
  const words = columns.filter(same);
  // Something must name the lines.
  if (words.length === sheet.left.filter(Boolean).length) words.pop();
  const rest = columns.filter((column) => !words.includes(column));
  const pick = (list) => rest.map((column) => list[column]);
  return {
    title: sheet.title,
    said: words.map((column) => [sheet.heads[column], sheet.lines[0][column]]),
    heads: pick(sheet.heads),
    left: pick(sheet.left),
    groups: pick(sheet.groups),
    lines: sheet.lines.map(pick),
  };
}

/** In a narrow window all names of a line share one column, which stays while the numbers move sideways. */
function merged(sheet) {
  const names = sheet.left.findIndex((left) => !left);
  if (names < 2 || !matchMedia("(max-width: 40rem)").matches) return sheet;
  const join = (list) => [list.slice(0, names).join(" · "), ...list.slice(names)];
  return { ...sheet, heads: join(sheet.heads), left: sheet.left.slice(names - 1), groups: sheet.groups.slice(names - 1), lines: sheet.lines.map(join) };
}

export function sheetTable(whole, title) {
  const sheet = merged(whole);
  const side = (index) => (sheet.left[index] ? "left" : null);
  const spans = [];
  for (const name of sheet.groups) {
    if (name && spans.at(-1)?.name === name) spans.at(-1).width += 1;
    else spans.push({ name, width: 1 });
  }
  return h(
    "div",
    { class: "sheet-block" },
    sheet.title && h("h3", {}, sheet.title),
    sheet.said.length > 0 && h("p", { class: "said" }, sheet.said.map(([head, text]) => h("span", {}, h("span", { class: "soft" }, `${head.replace("\n", " ")} `), text))),
    h(
      "div",
      { class: "scroll sheet-box", tabindex: "0", role: "region", "aria-label": `${title}${sheet.title ? `, ${sheet.title}` : ""}, table` },
      h(
        "table",
        { class: "sheet" },
        h(
          "thead",
          {},
          sheet.groups.some(Boolean) && h("tr", {}, spans.map(({ name, width }) => (name ? h("th", { colspan: width, class: "span", scope: "colgroup" }, name) : h("td", { colspan: width })))),
          h("tr", {}, sheet.heads.map((head, index) => h("th", { scope: "col", class: side(index) }, head))),
        ),
        h("tbody", {}, sheet.lines.map((line) => h("tr", {}, line.map((cell, index) => h(index === 0 && sheet.left[0] ? "th" : "td", { class: side(index), scope: index === 0 && sheet.left[0] ? "row" : null }, cell))))),
      ),
    ),
  );
}

/** A figure from its nested lists. */
export function drawing([tag, attributes, children], label) {
  return s(tag, label ? { ...attributes, role: "img", "aria-label": label } : attributes, children.map((child) => drawing(child)));
}

export function copyButtons(study, keep) {
  const csv = () => study.csv.head + study.csv.lines.filter((_, at) => keep(study.csv.places[at])).join("");
  return h("div", { class: "copy" }, copyButton(keep.active ? "Copy LaTeX of all rows" : "Copy LaTeX", () => study.latex), copyButton("Copy CSV", csv));
}
