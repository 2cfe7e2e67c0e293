// Tables and figures of all studies, one at a time beside their contents; the open one is in the address.

import { copyButton, h, replace } from "./dom.js";
import { plural } from "./numbers.js";
import { address } from "./data.js";
import { late } from "./codec.js";

export async function showStudies(main, params) {
  const entries = entriesOf(await late("studies"));
  const current = entries.find((entry) => entry.key === params.get("study")) ?? entries[0];
  const contents = h("nav", { class: "contents", "aria-label": "Contents of the studies" }, contentsList(entries, current));
  replace(
    main,
    h("div", { class: "intro" }, h("h1", {}, "Studies"), h("p", {}, "Figures and tables made from these runs.")),
    h("div", { class: "studies" }, contents, h("div", { class: "study-content" }, section(current), neighbours(entries, current))),
  );
  // A list that is longer than the window shows the study that is open.
  requestAnimationFrame(() => {
    const [mark, list] = [contents.querySelector("[aria-current]"), contents.querySelector(".contents-list")];
    if (mark) list.scrollTop = mark.offsetTop - list.clientHeight / 2;
  });
}

function entriesOf({ figures, tables, comparison, missing }) {
  return [
    ...figures.map((study) => ({ key: `figure-${study.name}`, group: "Figures", study })),
    ...tables.map((study) => ({ key: `table-${study.name}`, group: "Tables", study })),
    ...(comparison ? [{ key: "compare", group: "Next to the paper", study: comparison }] : []),
    ...(missing.length ? [{ key: "missing", group: "Not in these runs", missing }] : []),
  ];
}

const titleOf = (entry) => entry?.study?.title ?? `${plural(entry?.missing?.length ?? 0, "study", "studies")}, and why`;

const studyAddress = (entry) => address("studies", { study: entry.key });

function contentsList(entries, current) {
  const link = (entry) => h("li", {}, h("a", { href: studyAddress(entry), "aria-current": entry === current && "page" }, titleOf(entry)));
  const groups = [...new Set(entries.map((entry) => entry.group))];
  const list = h("div", { class: "contents-list", id: "contents-list" }, groups.map((group) => [h("h2", {}, group), h("ul", {}, entries.filter((entry) => entry.group === group).map(link))]));
  const toggle = h("button", { type: "button", class: "contents-toggle", "aria-expanded": "false", "aria-controls": "contents-list" }, h("strong", {}, "Contents"), h("span", { class: "soft" }, titleOf(current)));
  toggle.addEventListener("click", () => toggle.setAttribute("aria-expanded", String(list.classList.toggle("open"))));
  list.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !list.classList.contains("open")) return;
    toggle.click();
    toggle.focus();
  });
  return [toggle, list];
}

function neighbours(entries, current) {
  const at = entries.indexOf(current);
  const link = (entry, words) => entry && h("a", { class: "button", href: studyAddress(entry), "aria-label": `${words}: ${titleOf(entry)}` }, words);
  return h("nav", { class: "crumbs", "aria-label": "Between studies" }, h("span", {}, link(entries[at - 1], "Previous")), link(entries[at + 1], "Next"));
}

function section(entry) {
  if (!entry) return h("p", { class: "empty" }, "These runs fill no study.");
  if (entry.missing) return missingBlock(entry.missing);
  const { study } = entry;
  return h(
    "section",
    { class: "card study", id: entry.key, "aria-label": study.title },
    h("header", {}, h("h2", {}, study.title), study.latex && h("div", { class: "copy" }, copyButton("Copy LaTeX", study.latex), copyButton("Copy CSV", study.csv))),
    study.sheets ? study.sheets.map((sheet) => sheetTable(sheet, study.title)) : figure(study),
    h("p", { class: "caption" }, study.caption),
    study.notes.length > 0 && h("ul", { class: "notes" }, study.notes.map((text) => h("li", {}, text))),
    h("p", { class: "soft small again" }, "From the command line: ", h("code", {}, study.command)),
  );
}

const figure = ({ title, caption, image, width }) => [
  h("p", { class: "soft small sideways" }, "The figure is wider than this window: move it sideways."),
  h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, figure` }, h("img", { class: "drawing", src: image, width, alt: `${title}. ${caption}` })),
];

/** In a narrow window all names of a line share one column, which stays while the numbers move sideways. */
function merged(sheet) {
  const names = sheet.left.findIndex((left) => !left);
  if (names < 2 || !matchMedia("(max-width: 40rem)").matches) return sheet;
  const join = (list) => [list.slice(0, names).join(" · "), ...list.slice(names)];
  const groups = [["", 1], ...sheet.groups.slice(names)];
  return { ...sheet, heads: join(sheet.heads), left: sheet.left.slice(names - 1), groups, lines: sheet.lines.map(join) };
}

function sheetTable(whole, title) {
  const { title: part, said, heads, left, groups, lines, more } = merged(whole);
  const side = (index) => (left[index] ? "left" : null);
  const cell = (text, index) => h(index === 0 && left[0] ? "th" : "td", { class: side(index), scope: index === 0 && left[0] && "row" }, text);
  return h(
    "div",
    { class: "sheet-block" },
    part && h("h3", {}, part),
    said.length > 0 && h("p", { class: "said" }, said.map(([head, text]) => h("span", {}, h("span", { class: "soft" }, `${head} `), text))),
    h(
      "div",
      { class: "scroll sheet-box", tabindex: "0", role: "region", "aria-label": `${title}${part ? `, ${part}` : ""}, table` },
      h(
        "table",
        { class: "sheet" },
        h(
          "thead",
          {},
          groups.some(([name]) => name) && h("tr", {}, groups.map(([name, span]) => (name ? h("th", { colspan: span, class: "span", scope: "colgroup" }, name) : h("td", { colspan: span })))),
          h("tr", {}, heads.map((head, index) => h("th", { scope: "col", class: side(index) }, head))),
        ),
        h("tbody", {}, lines.map((line) => h("tr", {}, line.map(cell)))),
      ),
    ),
    more > 0 && h("p", { class: "soft small" }, `${plural(more, "more line")}: Copy CSV has all.`),
  );
}

/** Studies that these runs cannot fill, by what they lack. */
function missingBlock(missing) {
  const reasons = [...new Set(missing.map((study) => study.reason))];
  const names = (reason) => missing.filter((study) => study.reason === reason).map((study) => study.name);
  return h(
    "section",
    { class: "card study", id: "missing", "aria-label": "Studies that these runs cannot fill" },
    h("h2", {}, "Not in these runs"),
    h("dl", { class: "reasons" }, reasons.map((reason) => [h("dt", {}, names(reason).join(", ")), h("dd", {}, reason)])),
  );
}
