// The first view: every task, its runs side by side.

import { h, replace, swatch } from "./dom.js";
import { linear, plural } from "./numbers.js";
import { BAR_ORDER, address, page } from "./data.js";
import { depthPlots } from "./depth_plot.js";

export function showOverview(main) {
  const { level } = page.meta;
  const percent = Math.round(level * 100);
  replace(
    main,
    h(
      "div",
      { class: "intro" },
      h("h1", {}, "What one more loop does"),
      h(
        "p",
        {},
        "Every update is a direction and a length. It fails because the direction was wrong, or because the step along a good direction was too long. ",
        "Utilities are in nats: the log probability of the reference. Slope A and curvature Q are its derivatives along the update: they need the reference answer, so they explain steps and do not choose them. ",
        `Ranges are ${percent}% intervals over questions.`,
      ),
    ),
    [...new Set(page.sets.map((set) => set.title))].map((title) => overviewOf(title)),
  );
}

function overviewOf(title) {
  const sets = page.sets.filter((set) => set.title === title);
  const what = sets[0].kind === "options" ? "choose the right option" : "likelihood of the reference solution";
  return h(
    "section",
    { class: "set" },
    h("div", { class: "set-head" }, h("h2", {}, title), h("span", { class: "soft" }, what)),
    h("div", { class: "side-by-side" }, sets.map((set) => setCard(set, sets.length === 1))),
  );
}

function setCard(set, wide) {
  const { depth, updates } = set.overview;
  const chosen = h("div", { class: "stack" });
  const facts = h("dl", { class: "facts" });
  const trained = updates.findIndex((entry) => entry.transition === set.run.trained_depth);
  const first = trained >= 0 ? trained : updates.length - 1;
  const choose = (index) => {
    replace(chosen, updateDetails(set, updates[index]));
    replace(facts, updates[index].facts.map(factBlock));
  };
  choose(first);
  return h(
    "article",
    { class: `card set-card${wide ? " wide" : ""}`, "aria-label": `${set.run.model} on ${set.title}` },
    h(
      "header",
      {},
      h("h3", {}, set.run.model),
      set.run.random && h("span", { class: "badge loud" }, "random weights"),
      set.run.toy && h("span", { class: "badge" }, "toy model"),
      set.run.label !== set.run.model && h("span", { class: "soft small" }, set.run.label),
      h("span", { class: "soft small" }, plural(set.questions, "question")),
    ),
    h("div", { class: "stack" }, depth && depthPart(set, depth), updatePicker(set, updates, first, choose), facts),
    chosen,
  );
}

function depthPart(set, depth) {
  const label = `Mean utility of ${set.run.model} on ${set.title} over depths ${depth.depths.join(", ")}. ${depth.words}`;
  return h("div", {}, h("h4", { class: "section-title" }, "Mean utility by depth"), depthPlots({ label, ...depth }), h("p", { class: "finding" }, depth.words));
}

function updatePicker(set, updates, first, choose) {
  const name = `update-${set.name}`;
  return h(
    "fieldset",
    { class: "updates" },
    h("legend", { class: "section-title" }, "Outcomes and mean gain by update"),
    updates.map((entry, index) =>
      h(
        "label",
        { class: "update" },
        h("input", { type: "radio", name, value: index, checked: index === first, onchange: () => choose(index) }),
        h("span", { class: "name" }, entry.update),
        outcomeBar(entry.outcomes),
        h("span", { class: "number" }, entry.steps[0].text[0]),
      ),
    ),
  );
}

function outcomeBar(shares) {
  const words = shares.filter((entry) => entry.count).map((entry) => `${entry.count} ${entry.label}`).join(", ");
  return h(
    "span",
    { class: "bar", role: "img", "aria-label": words, title: words },
    BAR_ORDER.filter((code) => shares[code].count).map((code) => h("span", { class: `outcome-${code}`, vars: { "flex-grow": shares[code].count } })),
  );
}

/** "failures" for more than one; the other classes are adjectives. */
const outcomes = (label) => label.replace(/failure$/, "failures");

function updateDetails(set, entry) {
  return [
    h(
      "div",
      {},
      h("h4", { class: "section-title" }, `Outcomes of ${entry.update}`),
      h(
        "ul",
        { class: "outcomes" },
        BAR_ORDER.map((code) => {
          const outcome = entry.outcomes[code];
          const link = address("questions", { run: set.run.label, task: set.task, t: entry.transition, outcome: code });
          return h(
            "li",
            {},
            swatch(code),
            h("a", { href: link }, plural(outcome.count, outcome.label, outcomes(outcome.label))),
            h("span", { class: "soft small number", title: outcome.text[1] }, outcome.text[0]),
          );
        }),
      ),
    ),
    h(
      "div",
      {},
      h("h4", { class: "section-title" }, `Mean gain of ${entry.update} by length of step, in nats`),
      stepGroups(entry.steps),
    ),
    entry.bounded &&
      h(
        "div",
        {},
        h("h4", { class: "section-title" }, `The same where a safe step exists: ${entry.bounded.n} of ${plural(entry.n, "question")}, A > 0 and Q < 0`),
        stepGroups(entry.bounded.steps),
      ),
  ];
}

/** Steps over the same questions on one axis: those that a model can take, and those that need the reference answer. */
function stepGroups(steps) {
  const range = sharedRange(steps);
  const group = (title, members) => members.length > 0 && [h("h5", { class: "step-group" }, title), h("dl", { class: "steps" }, members.map((step) => stepLine(step, range)))];
  return [
    group("Needs no reference answer", steps.filter((step) => step.blind)),
    group("Uses the reference answer: what there is to gain, not what a model can do", steps.filter((step) => !step.blind)),
  ];
}

function stepLine(step, range) {
  return h(
    "div",
    { class: "step" },
    h("dt", {}, step.label),
    h("dd", { class: "strip" }, track(step, range)),
    h("dd", { class: "value number" }, step.text[0]),
    h("dd", { class: "words" }, `${step.rule} ${step.words}`.trim()),
    h("dd", { class: "between" }, step.text[1]),
  );
}

function factBlock(fact) {
  return h(
    "div",
    { class: "fact" },
    h("dt", {}, fact.label),
    h("dd", {}, h("span", { class: "value" }, fact.text[0]), fact.text[1] && h("span", { class: "soft small" }, `  ${fact.text[1]}`)),
    h("dd", { class: "words" }, fact.words),
  );
}

// A number with its interval on a shared axis that always shows zero.

function sharedRange(entries) {
  const ends = entries.flatMap((entry) => [entry.low, entry.high, entry.value, 0]).filter((value) => value !== null);
  const low = Math.min(...ends);
  const high = Math.max(...ends);
  const pad = (high - low || 1) * 0.04;
  return [low - pad, high + pad];
}

function track(entry, [low, high]) {
  const at = (value) => `${linear(low, high, 0, 100)(value)}%`;
  const box = h("div", { class: "track", "aria-hidden": "true" });
  box.append(h("span", { class: "zero", vars: { left: at(0) } }));
  if (entry.low !== null) {
    const right = 100 - parseFloat(at(entry.high));
    box.append(h("span", { class: "range", vars: { left: at(entry.low), right: `${right}%` } }));
  }
  if (entry.value !== null) box.append(h("span", { class: "dot", vars: { left: at(entry.value) } }));
  return box;
}
