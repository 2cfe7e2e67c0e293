// The paper's tables and figures for these runs, and the comparison with the paper's own numbers.

import { byId, h, replace } from "./dom.js";
import { late } from "./codec.js";

export async function showStudies(main) {
  const { tables, figures, missing, comparison } = await late("studies");
  const all = [...figures, ...tables];
  // A note that most studies would repeat is said once.
  const said = (text) => all.filter((study) => study.notes.includes(text)).length;
  const shared = [...new Set(all.flatMap((study) => study.notes))].filter((text) => said(text) > all.length / 2);
  for (const study of [...all, comparison ?? { notes: [] }]) study.notes = study.notes.filter((text) => !shared.includes(text));
  replace(
    main,
    h("div", { class: "intro" }, h("h1", {}, "Studies"), h("p", {}, "The figures and tables of the paper, made from these runs. Every one can be redone with “loopscope tables” and “loopscope figures”."), notes(shared)),
    h("ul", { class: "study-index" }, all.map((study) => h("li", {}, h("button", { class: "button", type: "button", onclick: () => jump(study) }, study.title)))),
    figures.map(figureBlock),
    tables.map((study) => tableBlock(study)),
    comparison && comparisonBlock(comparison),
    missing.length > 0 && missingBlock(missing),
  );
}

const anchor = (study) => `study-${study.image ? "figure" : "table"}-${study.name}`;

function jump(study) {
  const block = byId(anchor(study));
  block.scrollIntoView();
  block.focus();
}

const notes = (lines) => lines.length > 0 && h("ul", { class: "notes" }, lines.map((text) => h("li", {}, text)));

function figureBlock(study) {
  return h(
    "section",
    { class: "card study", id: anchor(study), tabindex: "-1", "aria-label": study.title },
    h("h2", {}, study.title),
    h("span", { class: "plate" }, h("img", { src: study.image, width: study.width, alt: `${study.title}. ${study.caption}` })),
    h("p", { class: "caption" }, study.caption),
    notes(study.notes),
  );
}

function tableBlock(study) {
  return h(
    "section",
    { class: "card study", id: anchor(study), tabindex: "-1", "aria-label": study.title },
    h("h2", {}, study.title),
    h("p", { class: "caption" }, study.caption),
    study.sheets.map((sheet) => sheetTable(sheet, study.title)),
    notes(study.notes),
  );
}

function sheetTable(sheet, title) {
  const grouped = sheet.groups.some(([name]) => name);
  const side = (index) => (sheet.left[index] ? "left" : null);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}${sheet.title ? `, ${sheet.title}` : ""}, table` },
    sheet.title && h("h3", {}, sheet.title),
    h(
      "table",
      { class: "sheet" },
      h(
        "thead",
        {},
        grouped && h("tr", {}, sheet.groups.map(([name, span]) => (name ? h("th", { colspan: span, class: "span", scope: "colgroup" }, name) : h("td", { colspan: span })))),
        h("tr", {}, sheet.heads.map((head, index) => h("th", { scope: "col", class: side(index) }, head))),
      ),
      h("tbody", {}, sheet.lines.map((line) => h("tr", {}, line.map((cell, index) => h("td", { class: side(index) }, cell))))),
    ),
  );
}

function comparisonBlock(comparison) {
  return h(
    "section",
    { class: "card study", "aria-label": "Comparison with the paper" },
    h("h2", {}, "Beside the paper's numbers"),
    h("p", { class: "caption" }, comparison.summary),
    notes(comparison.notes),
    h("details", {}, h("summary", {}, "All cells"), comparison.sheets.map((sheet) => sheetTable(sheet, comparison.title))),
  );
}

function missingBlock(missing) {
  return h(
    "section",
    { class: "card study", "aria-label": "Tables that these runs cannot fill" },
    h("h2", {}, "Not in these runs"),
    h("ul", { class: "notes" }, missing.map((study) => h("li", {}, `${study.name}: ${study.summary} (${study.reason})`))),
  );
}
