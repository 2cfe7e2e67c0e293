// A training in steps: outcomes of one update, gains of all updates and utility by depth at every step.
//
// All numbers come with the page; every step leads to the questions of its run.

import { h, replace, swatch } from "./dom.js";
import { late } from "./codec.js";
import { columnFormat, share } from "./numbers.js";
import { BAR_ORDER, OUTCOMES, address, note } from "./data.js";
import { select } from "./filters.js";
import { depthLines, stepLines } from "./training_plots.js";

export async function showTraining(main, params) {
  const { trainings } = await late("training");
  if (!trainings.length) {
    replace(main, h("div", { class: "intro" }, h("h1", {}, "Training"), h("p", {}, "No two runs of this page are steps of one training. ", h("a", { href: "#/overview" }, "Overview"))));
    return;
  }
  const choice = { of: params.get("of") ?? "", t: params.get("t") ?? "" };
  const stage = h("div");
  const show = (changes = {}) => {
    const active = document.activeElement?.dataset?.choice;
    Object.assign(choice, changes);
    const one = trainings[Number(choice.of)] ?? trainings[0];
    const update = one.updates.find((each) => String(each.transition) === choice.t) ?? one.updates.find((each) => each.transition === one.leading);
    const kept = { of: String(trainings.indexOf(one)), t: String(update.transition) };
    note("training", kept, { step: Object.keys(changes).length > 0 });
    replace(stage, content(trainings, one, update, show));
    if (active) stage.querySelector(`[data-choice="${CSS.escape(active)}"]`)?.focus();
  };
  show();
  replace(main, stage);
}

function content(trainings, one, update, show) {
  return [
    h("div", { class: "intro" }, h("h1", {}, "A training in steps"), h("p", {}, one.words)),
    controls(trainings, one, update, show),
    h(
      "div",
      { class: "training-grid" },
      h("section", { class: "card stack", "aria-label": "Outcomes by step" }, h("h2", {}, `Outcomes of ${update.update} by step`), outcomes(one, update)),
      h("section", { class: "card stack", "aria-label": "Gain by step" }, h("h2", {}, "Mean gain of every update"), stepLines(one.updates, update), h("p", { class: "soft small" }, "Below zero an update lowers the utility. Bands are intervals over questions; the chosen update is drawn thick.")),
    ),
    one.depths.length > 0 && h("section", { class: "card stack training-wide", "aria-label": "Utility by depth" }, h("h2", {}, "Mean utility by depth"), depthLines(one.depths, one.trained_depth), h("p", { class: "soft small" }, `One line for each step, the later the stronger; rings mark the best depth.${one.trained_depth ? ` The rule stands at the trained depth, ${one.trained_depth}.` : ""}`)),
    h("section", { class: "card stack training-wide", "aria-label": "Numbers by step" }, h("h2", {}, `Numbers of ${update.update}`), numbers(one, update)),
  ];
}

function controls(trainings, one, update, show) {
  const field = (name, label, choices, value) => {
    const box = select(label, value, choices, (picked) => show({ [name]: picked }));
    const inner = box.querySelector("select");
    inner.dataset.choice = name;
    inner.options[0].remove();
    inner.value = value;
    return box;
  };
  const several = new Set(trainings.map((each) => each.title)).size > 1;
  const names = trainings.map((each, at) => [String(at), several ? `${each.title}: ${each.set}` : each.set]);
  return h(
    "form",
    { class: "filters", "aria-label": "Choose training and update", onsubmit: (event) => event.preventDefault() },
    trainings.length > 1 && field("of", several ? "Training" : "Task", names, String(trainings.indexOf(one))),
    one.updates.length > 1 && field("t", "Update", one.updates.map((each) => [String(each.transition), each.update]), String(update.transition)),
  );
}

/** One bar for each step; a step leads to its questions. */
function outcomes(one, update) {
  return [
    h(
      "ul",
      { class: "training-steps" },
      update.moments.map((moment) => h("li", {}, stepLink(one, update, moment), bar(moment.outcomes), h("span", { class: "number" }, share(moment.outcomes[3].value ?? NaN), between(moment.outcomes[3])))),
    ),
    h("p", { class: "soft small" }, "At the right: finite-step failures among all questions, with their interval."),
    h("p", { class: "outcome-key soft small" }, BAR_ORDER.map((code) => h("span", {}, swatch(code), ` ${OUTCOMES[code]}`))),
  ];
}

function stepLink(one, update, moment) {
  const words = moment.step.toLocaleString("en");
  if (!moment.run) return h("span", { class: "name" }, words);
  return h("a", { class: "name", href: address("questions", { run: moment.run, task: one.task, t: update.transition }), "aria-label": `step ${words}: its questions` }, words);
}

const between = ({ low, high }) => low !== null && h("span", { class: "soft small" }, ` ${share(low)} to ${share(high)}`);

function bar(shares) {
  const words = shares.filter((entry) => entry.count).map((entry) => `${entry.count} ${OUTCOMES[entry.code]}`).join(", ");
  return h(
    "span",
    { class: "bar", role: "img", "aria-label": words, title: words },
    BAR_ORDER.filter((code) => shares[code].count).map((code) => h("span", { class: `outcome-${code}`, vars: { "flex-grow": shares[code].count } })),
  );
}

function numbers(one, update) {
  const names = Object.keys(one.numbers).filter((name) => update.moments.some((moment) => moment.numbers[name]));
  const formats = new Map(names.map((name) => [name, columnFormat(update.moments.flatMap((moment) => Object.values(moment.numbers[name] ?? {})).filter((value) => value !== null))]));
  const cell = (entry, format) => (entry ? [format.text(entry.value), entry.low !== null && h("span", { class: "soft small between" }, ` ${format.text(entry.low)} to ${format.text(entry.high)}`)] : "—");
  const best = new Map(one.depths.map((moment) => [moment.step, moment.best]));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of numbers by step" },
    h(
      "table",
      { class: "training-numbers" },
      h("caption", { class: "visually-hidden" }, `Numbers of ${update.update} at every step`),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Step"), names.map((name) => h("th", { scope: "col" }, one.numbers[name], h("span", { class: "small" }, `, ${formats.get(name).unit("nats")}`))), h("th", { scope: "col" }, "best depth"))),
      h(
        "tbody",
        {},
        update.moments.map((moment) => {
          const depth = best.get(moment.step);
          const reach = depth && depth.low !== null && depth.low !== depth.high && h("span", { class: "soft small between" }, ` ${depth.low} to ${depth.high}`);
          return h("tr", {}, h("th", { scope: "row" }, stepLink(one, update, moment)), names.map((name) => h("td", { class: "number" }, cell(moment.numbers[name], formats.get(name)))), h("td", { class: "number" }, depth ? [String(depth.value), reach] : "—"));
        }),
      ),
    ),
  );
}
