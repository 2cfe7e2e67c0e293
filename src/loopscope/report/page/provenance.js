// Where the numbers come from: the manifest of every run in words; what all runs share is listed once.

import { copyButton, h, replace } from "./dom.js";
import { page } from "./data.js";

const SHORT = 12;

/** Digests by their first characters; the whole one is what a copy or a hover gives. */
const hashes = (text) =>
  text.split(/\b([0-9a-f]{64})\b/).map((part, index) => (index % 2 ? copyButton(`${part.slice(0, SHORT)}…`, part, { class: "digest", title: `${part}: copy`, "aria-label": `Copy ${part}` }) : part));

const command = (text) => h("span", { class: "command" }, h("code", {}, text), copyButton("Copy", text, { "aria-label": "Copy the command" }));

const tokenPaths = (bits) => (bits ? `Token paths are kept in ${bits} bits of each token's largest gain` : "Token paths are too many for one page, so only gains of the full step are kept");

export function showProvenance(main) {
  const { runs, version, resamples, bits } = page.meta;
  const same = ({ term, text }) => runs.length > 1 && runs.every((run) => run.provenance.some((other) => other.term === term && other.text === text));
  replace(
    main,
    h(
      "div",
      { class: "intro" },
      h("h1", {}, "Provenance"),
      h("p", {}, `This page was written by loopscope ${version}. Intervals come from ${resamples} resamples of whole questions. Numbers of single questions are kept in 32 bits. ${tokenPaths(bits)}.`),
    ),
    h("div", { class: "side-by-side" }, runs.map((run) => card(run.label, run.provenance.filter((entry) => !same(entry))))),
    runs.length > 1 && h("div", { class: "side-by-side" }, card("The same in all runs", runs[0].provenance.filter(same))),
  );
}

const card = (title, entries) =>
  h(
    "section",
    { class: "card panel", "aria-label": title },
    h("h2", {}, title),
    h("dl", { class: "facts-list" }, entries.map(({ term, text }) => [h("dt", {}, term), h("dd", {}, term === "Command" ? command(text) : hashes(text))])),
  );
