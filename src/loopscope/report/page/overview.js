// The first view: what was found, then every task with its runs side by side.

import { h, replace, swatch } from "./dom.js";
import { axisFormat, columnFormat, linear, plural, share, ticks } from "./numbers.js";
import { BAR_ORDER, OUTCOMES, address, manyOf, note, page } from "./data.js";
import { depthPlots } from "./depth_plot.js";
import { findings, openingPart } from "./opening.js";

export function showOverview(main, params) {
  const chosen = Object.fromEntries(params);
  const titles = [...new Set(page.sets.map((set) => set.title))];
  replace(main, openingPart(), findings(), barLegend(), titles.map((title) => taskPart(title, chosen)), reading());
}

/** What the bars mean, once. */
function barLegend() {
  return h("p", { class: "bar-legend" }, "Each bar is all questions of one update: ", BAR_ORDER.map((code) => h("span", {}, swatch(code), manyOf(OUTCOMES[code]))));
}

/** One task; its runs share the chosen update and every axis. */
function taskPart(title, chosen) {
  const sets = page.sets.filter((set) => set.title === title);
  const { task, kind } = sets[0];
  const choose = (transition) => cards.forEach((card) => card.choose(transition));
  const cards = sets.map((set) =>
    setCard(set, sets, (transition) => {
      choose(transition);
      chosen[task] = transition;
      note("overview", chosen, { step: true });
    }),
  );
  const wanted = Number(chosen[task] ?? NaN);
  choose(sets.some((set) => set.transitions.includes(wanted)) ? wanted : leading(sets));
  return h(
    "section",
    { class: "set" },
    h("div", { class: "set-head" }, h("h2", {}, title), h("span", { class: "soft" }, kind === "options" ? "choose the right option" : "likelihood of the reference solution")),
    h("div", { class: "side-by-side" }, cards.map((card) => card.box)),
  );
}

/** The leading update of the run with the most finite-step failures there. */
function leading(sets) {
  const entries = sets.map(({ overview }) => overview.updates[overview.leading]);
  return entries.reduce((best, entry) => (entry.outcomes[3].count > best.outcomes[3].count ? entry : best)).transition;
}

/** One run on one task; `choose` opens another of its updates. */
function setCard(set, sets, changed) {
  const { run, questions, expected, overview } = set;
  const details = h("div", { class: "stack" });
  const facts = h("table", { class: "shares" });
  const radio = (entry) => h("input", { type: "radio", name: `update-${set.name}`, value: entry.transition, onchange: () => changed(entry.transition) });
  const radios = new Map(overview.updates.map((entry) => [entry, radio(entry)]));
  const box = h(
    "article",
    { class: `card set-card${sets.length === 1 ? " wide" : ""}`, "aria-label": `${run.model} on ${set.title}` },
    h(
      "header",
      {},
      h("h3", {}, run.model),
      run.random && h("span", { class: "badge loud" }, "random weights"),
      run.toy && h("span", { class: "badge" }, "toy model"),
      run.label !== run.model && h("span", { class: "soft small" }, run.label),
      h("span", { class: "soft small" }, questions < expected ? `${questions.toLocaleString("en")} of ${plural(expected, "question")} so far` : plural(questions, "question")),
    ),
    h("div", { class: "stack" }, overview.depth && depthPart(set, sets, overview.depth), picker(sets, radios), facts),
    details,
  );
  const choose = (transition) => {
    const entry = overview.updates.find((candidate) => candidate.transition === transition) ?? overview.updates[overview.leading];
    radios.get(entry).checked = true;
    replace(details, updateDetails(set, sets, entry));
    replace(facts, factRows(entry));
  };
  return { box, choose };
}

function picker(sets, radios) {
  const format = columnFormat(sets.flatMap((set) => set.overview.updates.map((entry) => entry.steps[0].value)));
  return h(
    "fieldset",
    { class: "updates" },
    h("legend", { class: "section-title" }, "Outcomes and mean gain by update"),
    h("p", { class: "update heads soft small", "aria-hidden": "true" }, h("span", {}, "update"), h("span", {}, "share of the questions"), h("span", { class: "number" }, `mean gain, ${format.unit("nats")}`)),
    [...radios].map(([entry, radio]) => h("label", { class: "update" }, radio, h("span", { class: "name" }, entry.update), outcomeBar(entry.outcomes), h("span", { class: "number" }, format.text(entry.steps[0].value)))),
  );
}

function depthPart(set, sets, depth) {
  const label = `Mean utility of ${set.run.model} on ${set.title} by depth. ${depth.words}`;
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

function updateDetails(set, sets, entry) {
  const alike = sets.map((other) => other.overview.updates.find((candidate) => candidate.transition === entry.transition)).filter(Boolean);
  const titled = (title, ...content) => h("div", {}, h("h4", { class: "section-title" }, title), content);
  const link = (code) => address("questions", { run: set.run.label, task: set.task, t: entry.transition, outcome: code });
  const line = (code, outcome) => h("li", {}, swatch(code), h("a", { href: link(code) }, plural(outcome.count, outcome.label, manyOf(outcome.label))), h("span", { class: "soft small number", title: between(outcome) }, share(outcome.value)));
  return [
    titled(`Outcomes of ${entry.update}`, h("ul", { class: "outcomes" }, BAR_ORDER.map((code) => line(code, entry.outcomes[code])))),
    titled(`Mean gain of ${entry.update} by length of step`, stepGroups(entry.steps, alike.flatMap((each) => each.steps))),
    entry.bounded && titled(`The same where a safe step exists: ${entry.bounded.n} of ${plural(entry.n, "question")}, A > 0 and Q < 0`, stepGroups(entry.bounded.steps, alike.flatMap((each) => each.bounded?.steps ?? []))),
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
    { class: "step", title: page.meta.explained.steps[step.key][1] },
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
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const pad = (high - low || 1) * 0.04;
  return [low - pad, high + pad];
}

const placeOf = ([low, high]) => (value) => `${linear(low, high, 0, 100)(value)}%`;

function track({ value, low, high }, range) {
  const at = placeOf(range);
  return h(
    "div",
    { class: "track", "aria-hidden": "true" },
    h("span", { class: "zero", vars: { left: at(0) } }),
    low !== null && h("span", { class: "range", vars: { left: at(low), right: `${100 - parseFloat(at(high))}%` } }),
    value !== null && h("span", { class: "dot", vars: { left: at(value) } }),
  );
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
  const entries = page.sets.flatMap((set) => set.overview.updates);
  const steps = new Set(entries.flatMap((entry) => [...entry.steps, ...(entry.bounded?.steps ?? [])].map((step) => step.key)));
  const facts = new Set(entries.flatMap((entry) => entry.facts.map((fact) => fact.key)));
  const terms = (named, used) => Object.entries(named).filter(([key]) => used.has(key)).map(([, [name, words]]) => [h("dt", {}, name), h("dd", {}, words)]);
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
    h("dl", { class: "terms" }, terms(explained.steps, steps), terms(explained.facts, facts)),
  );
}
