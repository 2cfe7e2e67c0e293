// Where the numbers come from: what differs between the runs, then every manifest in words.

import { h, replace } from "./dom.js";
import { page } from "./data.js";
import { copyButton } from "./copy.js";

const PRECISION = {
  exact: "Token paths are kept in 32 bits.",
  compact: "Token paths are kept in 8 bits of each token's largest gain; gains of the full step in 32 bits.",
  ends: "Token paths are too many for one page: gains of the full step alone are kept.",
};
const SHORT = 12;

/** Digests by their first characters; the whole one is what a copy or a hover gives. */
const hashes = (text) =>
  text.split(/\b([0-9a-f]{64})\b/).map((part, index) => (index % 2 ? copyButton(`${part.slice(0, SHORT)}…`, () => part, { class: "digest", title: `${part}: copy`, "aria-label": `Copy ${part}` }) : part));

const command = (text) => h("span", { class: "command" }, h("code", {}, text), copyButton("Copy", () => text, { "aria-label": "Copy the command" }));

export function showProvenance(main) {
  const { runs, version, resamples, precision } = page.meta;
  replace(
    main,
    h(
      "div",
      { class: "intro" },
      h("h1", {}, "Provenance"),
      h("p", {}, `This page was written by loopscope ${version}. Intervals come from ${resamples} resamples of whole questions. Numbers of single questions are kept in 32 bits. ${PRECISION[precision]}`),
    ),
    runs.length > 1 && differences(runs),
    h(
      "div",
      { class: "side-by-side" },
      runs.map((run) =>
        h(
          "section",
          { class: "card panel", "aria-label": run.label },
          h("h2", {}, run.label),
          h("dl", { class: "facts-list" }, run.provenance.map(({ term, text }) => [h("dt", {}, term), h("dd", {}, shown(term, text))])),
        ),
      ),
    ),
  );
}

const shown = (term, text) => (term === "Command" ? command(text) : hashes(text));

/** The entries in which the runs differ, run beside run. */
function differences(runs) {
  const texts = runs.map((run) => new Map(run.provenance.map(({ term, text }) => [term, text])));
  const terms = [...new Set(texts.flatMap((each) => [...each.keys()]))];
  const differing = terms.filter((term) => new Set(texts.map((each) => each.get(term))).size > 1);
  return h(
    "section",
    { class: "card panel differences", "aria-label": "Differences between the runs" },
    h("h2", {}, "What differs between the runs"),
    h("p", { class: "soft" }, `${terms.length - differing.length} of ${terms.length} entries are the same in all runs.`),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences, table" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("td"), runs.map((run) => h("th", { scope: "col" }, run.label)))),
        h("tbody", {}, differing.map((term) => h("tr", {}, h("th", { scope: "row" }, term), texts.map((each) => h("td", {}, each.has(term) ? shown(term, each.get(term)) : "—"))))),
      ),
    ),
  );
}
