// The first view: what was found, then every task with its runs side by side.

import { h, replace, swatch } from "./dom.js";
import { axisFormat, columnFormat, linear, plural, share, ticks } from "./numbers.js";
import { BAR_ORDER, OUTCOMES, address, note, page } from "./data.js";
import { depthPlots } from "./depth_plot.js";
import { findings, openingPart } from "./opening.js";

export function showOverview(main, params) {
  const chosen = Object.fromEntries(params);
  const titles = [...new Set(page.sets.map((set) => set.title))];
  replace(main, openingPart(), findings(), barLegend(), titles.map((title) => taskPart(title, chosen)), reading());
}

/** What the bars mean, once. */
function barLegend() {
  return h("p", { class: "bar-legend" }, "Each bar is all questions of one update: ", BAR_ORDER.map((code) => h("span", {}, swatch(code), OUTCOMES[code].replace(/failure$/, "failures"))));
}

/** One task; its runs share the chosen update and every axis. */
function taskPart(title, chosen) {
  const sets = page.sets.filter((set) => set.title === title);
  const { task, kind } = sets[0];
  const asked = Number(chosen[task] ?? NaN);
  const cards = sets.map((set) => new Card(set, sets));
  const choose = (transition) => cards.forEach((card) => card.choose(transition));
  for (const card of cards) {
    card.changed = (transition) => {
      choose(transition);
      chosen[task] = transition;
      note("overview", chosen, { step: true });
    };
  }
  const first = sets.some((set) => set.transitions.includes(asked)) ? asked : leading(sets);
  choose(first);
  return h(
    "section",
    { class: "set" },
    h("div", { class: "set-head" }, h("h2", {}, title), h("span", { class: "soft" }, kind === "options" ? "choose the right option" : "likelihood of the reference solution")),
    h("div", { class: "side-by-side" }, cards.map((card) => card.box)),
  );
}

/** The update that tells most in the run with most finite-step failures at its own. */
function leading(sets) {
  const entries = sets.map(({ overview }) => overview.updates[overview.leading]);
  return entries.reduce((best, entry) => (entry.outcomes[3].count > best.outcomes[3].count ? entry : best)).transition;
}

class Card {
  constructor(set, sets) {
    this.set = set;
    this.sets = sets;
    this.details = h("div", { class: "stack" });
    this.facts = h("table", { class: "shares" });
    this.radios = new Map();
    const { depth } = set.overview;
    const wide = sets.length === 1;
    this.box = h(
      "article",
      { class: `card set-card${wide ? " wide" : ""}`, "aria-label": `${set.run.model} on ${set.title}` },
      h(
        "header",
        {},
        h("h3", {}, set.run.model),
        set.run.random && h("span", { class: "badge loud" }, "random weights"),
        set.run.toy && h("span", { class: "badge" }, "toy model"),
        set.run.label !== set.run.model && h("span", { class: "soft small" }, set.run.label),
        h("span", { class: "soft small" }, set.questions < set.expected ? `${set.questions.toLocaleString("en")} of ${plural(set.expected, "question")} so far` : plural(set.questions, "question")),
      ),
      h("div", { class: "stack" }, depth && depthPart(set, sets, depth), this.picker(), this.facts),
      this.details,
    );
  }

  picker() {
    const name = `update-${this.set.name}`;
    const { updates } = this.set.overview;
    const format = columnFormat(this.sets.flatMap((set) => set.overview.updates.map((entry) => entry.steps[0].value)));
    return h(
      "fieldset",
      { class: "updates" },
      h("legend", { class: "section-title" }, "Outcomes and mean gain by update"),
      h("p", { class: "update heads soft small", "aria-hidden": "true" }, h("span", {}, "update"), h("span", {}, "share of the questions"), h("span", { class: "number" }, `mean gain, ${format.unit("nats")}`)),
      updates.map((entry) => {
        const radio = h("input", { type: "radio", name, value: entry.transition, onchange: () => this.changed(entry.transition) });
        this.radios.set(entry.transition, radio);
        return h("label", { class: "update" }, radio, h("span", { class: "name" }, entry.update), outcomeBar(entry.outcomes), h("span", { class: "number" }, format.text(entry.steps[0].value)));
      }),
    );
  }

  choose(transition) {
    const { updates } = this.set.overview;
    const entry = updates.find((candidate) => candidate.transition === transition) ?? updates[this.set.overview.leading];
    this.radios.get(entry.transition).checked = true;
    replace(this.details, updateDetails(this.set, this.sets, entry));
    replace(this.facts, factRows(entry));
  }
}

function depthPart(set, sets, depth) {
  const label = `Mean utility of ${set.run.model} on ${set.title} over depths ${depth.depths.join(", ")}. ${depth.words}`;
  const ends = sets.flatMap(({ overview }) => overview.depth?.means.flatMap((mean) => [mean.low ?? mean.value, mean.high ?? mean.value]) ?? []);
  const range = sets.length > 1 ? [Math.min(...ends), Math.max(...ends)] : undefined;
  return h("div", {}, h("h4", { class: "section-title" }, "Mean utility by depth"), depthPlots({ label, range, ...depth }), h("p", { class: "finding" }, depth.words));
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

function updateDetails(set, sets, entry) {
  const alike = sets.map((other) => other.overview.updates.find((candidate) => candidate.transition === entry.transition)).filter(Boolean);
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
            h("span", { class: "soft small number", title: between(outcome) }, share(outcome.value)),
          );
        }),
      ),
    ),
    h("div", {}, h("h4", { class: "section-title" }, `Mean gain of ${entry.update} by length of step`), stepGroups(entry.steps, alike.flatMap((each) => each.steps))),
    entry.bounded &&
      h(
        "div",
        {},
        h("h4", { class: "section-title" }, `The same where a safe step exists: ${entry.bounded.n} of ${plural(entry.n, "question")}, A > 0 and Q < 0`),
        stepGroups(entry.bounded.steps, alike.flatMap((each) => each.bounded?.steps ?? [])),
      ),
  ];
}

const between = ({ low, high }) => (low === null || low === high ? "" : `${share(low)} to ${share(high)}`);

/** Steps over the same questions on one axis: those that a model can take, and those that need the reference answer. */
function stepGroups(steps, shown) {
  const range = sharedRange(shown);
  const format = columnFormat(shown.flatMap((step) => [step.value, step.low, step.high]).filter((value) => value !== null));
  const group = (title, members) => members.length > 0 && [h("h5", { class: "step-group" }, title), h("dl", { class: "steps" }, members.map((step) => stepLine(step, range, format)))];
  return [
    group("Needs no reference answer", steps.filter((step) => step.blind)),
    group("Uses the reference answer: what there is to gain, not what a model can do", steps.filter((step) => !step.blind)),
    axis(range),
  ];
}

function stepLine(step, range, format) {
  return h(
    "div",
    { class: "step", title: page.meta.explained.steps[step.key] },
    h("dt", {}, step.label),
    h("dd", { class: "strip" }, track(step, range)),
    h("dd", { class: "value number" }, step.value === null ? "—" : format.text(step.value), step.low !== null && h("span", { class: "between" }, ` ${format.text(step.low)} to ${format.text(step.high)}`)),
  );
}

function factRows(entry) {
  return [
    h("caption", { class: "section-title" }, `Shares of ${entry.update}`),
    h(
      "tbody",
      {},
      entry.facts.map((fact) =>
        h(
          "tr",
          { title: page.meta.explained.facts[fact.key][1] },
          h("th", { scope: "row" }, page.meta.explained.facts[fact.key][0], fact.said && h("span", { class: "said soft small" }, fact.said)),
          h("td", { class: "value number" }, share(fact.value ?? NaN)),
          h("td", { class: "soft small number" }, between(fact)),
          h("td", { class: "soft small number" }, fact.of ? `${fact.count.toLocaleString("en")} of ${fact.of.toLocaleString("en")}` : "none"),
        ),
      ),
    ),
  ];
}

// A number with its interval on a shared axis that always shows zero.

function sharedRange(entries) {
  const ends = entries.flatMap((entry) => [entry.low, entry.high, entry.value, 0]).filter((value) => value !== null);
  const low = Math.min(...ends);
  const high = Math.max(...ends);
  const pad = (high - low || 1) * 0.04;
  return [low - pad, high + pad];
}

const placeOf = ([low, high]) => (value) => `${linear(low, high, 0, 100)(value)}%`;

function track(entry, range) {
  const at = placeOf(range);
  const box = h("div", { class: "track", "aria-hidden": "true" });
  box.append(h("span", { class: "zero", vars: { left: at(0) } }));
  if (entry.low !== null) {
    const right = 100 - parseFloat(at(entry.high));
    box.append(h("span", { class: "range", vars: { left: at(entry.low), right: `${right}%` } }));
  }
  if (entry.value !== null) box.append(h("span", { class: "dot", vars: { left: at(entry.value) } }));
  return box;
}

/** The axis under the intervals. */
function axis(range) {
  const values = ticks(...range, 3);
  const format = axisFormat(values);
  return h(
    "div",
    { class: "step axis", "aria-hidden": "true" },
    h("span"),
    h("div", { class: "track" }, values.map((value) => h("span", { class: "tick", vars: { left: placeOf(range)(value) } }, format.text(value)))),
    h("span", { class: "soft small" }, format.unit("nats")),
  );
}

/** What the words of this view mean, once for all cards. */
function reading() {
  const { explained, level } = page.meta;
  const labels = new Map(page.sets.flatMap((set) => set.overview.updates.flatMap((entry) => [...entry.steps, ...(entry.bounded?.steps ?? [])].map((step) => [step.key, step.label]))));
  const facts = new Set(page.sets.flatMap((set) => set.overview.updates.flatMap((entry) => entry.facts.map((fact) => fact.key))));
  return h(
    "section",
    { class: "how-to-read", "aria-label": "How to read this" },
    h("h2", {}, "How to read this"),
    h(
      "p",
      {},
      "Every update is a direction and a length. It fails because the direction was wrong (directional failure), or because the step along a good direction was too long (finite-step failure). ",
      "Utilities are in nats: the log probability of the reference, a mean over its tokens, or that of the right option among all. Slope A and curvature Q are its derivatives along the update: they need the reference answer, so they explain steps and do not choose them. ",
      `Ranges are ${Math.round(level * 100)}% intervals over questions.`,
    ),
    h(
      "dl",
      { class: "terms" },
      Object.entries(explained.steps).filter(([key]) => labels.has(key)).map(([key, words]) => [h("dt", {}, labels.get(key)), h("dd", {}, words)]),
      Object.entries(explained.facts).filter(([key]) => facts.has(key)).map(([, [name, words]]) => [h("dt", {}, name), h("dd", {}, words)]),
    ),
  );
}
