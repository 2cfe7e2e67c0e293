// Where the numbers come from: every manifest in words.

import { h, replace } from "./dom.js";
import { page } from "./data.js";

const PRECISION = {
  exact: "Token paths are kept in 32 bits.",
  compact: "Token paths are kept in 8 bits of each token's largest gain; gains of the full step in 32 bits.",
  ends: "Token paths are too many for one page: gains of the full step alone are kept.",
};

/** Digests in a narrower hand, so that they do not drown the words. */
const hashes = (text) => text.split(/\b([0-9a-f]{64})\b/).map((part, index) => (index % 2 ? h("code", { class: "digest" }, part) : part));

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
    h(
      "div",
      { class: "side-by-side" },
      runs.map((run) =>
        h(
          "section",
          { class: "card panel", "aria-label": run.label },
          h("h2", {}, run.label),
          h("dl", { class: "facts-list" }, run.provenance.map(({ term, text }) => [h("dt", {}, term), h("dd", {}, hashes(text))])),
        ),
      ),
    ),
  );
}
