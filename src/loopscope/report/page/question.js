// One update of one question: its words, its path, its depths.

import { certified, h, prose, replace, swatch } from "./dom.js";
import { columnFormat, number, scale, signed } from "./numbers.js";
import { BAR_ORDER, OUTCOMES, address, detailsOf, note, page, questionAddress, recordAddress, recordAt, recordsReady, textOf, update } from "./data.js";
import { depthPlots, pathsPlot } from "./depth_plot.js";
import { filterValues } from "./filters.js";
import { explorer } from "./explorer.js";
import { optionCards, retint, tinted, tintKey, tintRange } from "./tokens.js";
import { namedScales, stepPanels } from "./path.js";
import { chosenToken } from "./chosen_token.js";

export async function showQuestion(main, params) {
  await recordsReady();
  const set = page.sets.find((candidate) => candidate.run.label === params.get("run") && candidate.task === params.get("task"));
  const row = set ? set.ids.indexOf(params.get("id")) : -1;
  const transition = Number(params.get("t") ?? set?.transitions.at(-1));
  if (row < 0 || !set.transitions.includes(transition)) {
    replace(main, h("div", { class: "intro" }, h("h1", {}, "No such question"), h("p", {}, "This page holds no update at that address. ", h("a", { href: "#/questions" }, "All questions"))));
    return;
  }
  const [text, details] = await Promise.all([textOf(set, row), detailsOf(set, row, transition)]);
  const record = recordAt(set, row, transition);
  const given = params.has("alpha") ? Number(params.get("alpha")) : 1;
  const alpha = given >= 0 && given <= 1 ? given : 1;
  const marks = [];
  const { panel: words, follow } = wordsPanel(set, details, text, transition, marks);
  const most = details.tokens?.length ? tintRange(details.tokens) : 1;
  if (marks.length) words.append(tintKey(most));
  const token = chosenToken({ set, row, transition, text, details, marks, params });
  if (token) words.append(token);
  const moved = (value, report) => {
    retint(marks, value, most);
    follow(value);
    if (report) note("question", { run: set.run.label, task: set.task, id: set.ids[row], t: transition, alpha: scale(value) });
  };
  const [step, numbers] = stepPanels(record, details, alpha, moved);
  replace(
    main,
    crumbs(record),
    h(
      "div",
      { class: "question-head" },
      h("h1", {}, `${set.title} · ${set.ids[row]}`),
      h("p", { class: "where soft" }, h("strong", {}, set.run.model), ` · run ${set.run.label} · loop ${update(transition)}`),
      h("p", { class: "verdict" }, verdict(record, details), " ", certified(page.certified[record])),
      updateChips(set, row, transition),
    ),
    h("div", { class: "question" }, h("div", { class: "column" }, words, numbers, depthPanel(set, details, row, transition)), h("div", { class: "column path-column" }, step)),
  );
}

/** Question and reference or options; `follow` moves what depends on the scale and is no token. */
function wordsPanel(set, details, text, transition, marks) {
  const panel = (title, ...parts) => h("section", { class: "card panel words-panel", "aria-label": "Question and reference" }, h("h2", {}, "Question"), prose(text.prompt), h("h3", {}, title), parts);
  if (text.options) {
    const cards = optionCards(set, details, text, transition, marks);
    return { panel: panel("Options", cards.block), follow: cards.follow };
  }
  return { panel: panel("Reference solution", tinted(text.reference ?? "", details.tokens ?? [], marks)), follow: () => {} };
}

/** What happened, in a sentence. */
function verdict(record, details) {
  const { predicted, best } = namedScales(record, details);
  const [A, gain] = [page.slope[record], page.gain[record]];
  const measured = Number.isFinite(best.value) ? `; the best scale is ${scale(best.value)}.` : ".";
  return [
    `Progress: the update raises the utility by ${number(gain)} nats.${best.value < 1 ? ` It would have gained most at scale ${scale(best.value)}.` : ""}`,
    "Neutral: the utility is the same at both ends.",
    `Directional failure: the update starts ${A < 0 ? "downhill" : "level"} and ends ${number(-gain)} nats lower. The direction was wrong from the first step.`,
    `Finite-step failure: the update starts uphill and ends ${number(-gain)} nats lower. The direction was right, the step too long. The quadratic model, computed with the reference, would have stopped at ${scale(predicted.value)}${measured}`,
  ][page.outcome[record]];
}

function crumbs(record) {
  const order = explorer.order;
  const at = order ? order.indexOf(record) : -1;
  const link = (to, name) => (at >= 0 && order[to] !== undefined ? h("a", { class: "button", href: recordAddress(order[to]) }, name) : null);
  return h(
    "nav",
    { class: "crumbs", "aria-label": "Between questions" },
    h("a", { href: address("questions", filterValues(explorer.filter)) }, "← All questions"),
    h("span", { class: "row" }, link(at - 1, "Previous"), at >= 0 && h("span", { class: "soft small" }, `${(at + 1).toLocaleString("en")} of ${order.length.toLocaleString("en")}`), link(at + 1, "Next")),
  );
}

function updateChips(set, row, transition) {
  const format = columnFormat(set.transitions.map((t) => page.gain[recordAt(set, row, t)]));
  return h(
    "nav",
    { class: "chips", "aria-label": "Updates of this question" },
    set.transitions.map((t) => {
      const record = recordAt(set, row, t);
      return h(
        "a",
        { class: "chip", href: questionAddress(set, row, t), "aria-current": t === transition && "page" },
        swatch(page.outcome[record]),
        update(t),
        h("span", { class: "visually-hidden" }, OUTCOMES[page.outcome[record]]),
        h("span", { class: "soft number" }, format.text(page.gain[record])),
      );
    }),
    h("span", { class: "soft small" }, format.unit("nats")),
  );
}

function depthPanel(set, details, row, transition) {
  const means = Array.from(details.utility, (value) => ({ value, low: null }));
  const paths = set.transitions.map((t) => {
    const record = recordAt(set, row, t);
    const words = `${update(t)}: ${OUTCOMES[page.outcome[record]]}, ${signed(page.gain[record])} nats`;
    return { transition: t, before: page.before[record], grid: details.grids?.get(t) ?? [0, page.gain[record]], outcome: page.outcome[record], href: questionAddress(set, row, t), words };
  });
  return h(
    "section",
    { class: "card panel depth-panel", "aria-label": "Utility over depth" },
    h("h2", {}, "Utility over depth"),
    depthPlots({ label: `Utility of this question after ${set.depths.join(", ")} loops`, depths: set.depths, means, transition, height: 190 }),
    h("h3", {}, "Every measured update, path by path"),
    pathsPlot({ label: `Paths of the updates ${set.transitions.map(update).join(", ")} on one axis`, paths, transition }),
    h("p", { class: "path-legend" }, BAR_ORDER.map((code) => h("span", {}, swatch(code), OUTCOMES[code]))),
  );
}
