// Reference tokens tinted by their gain at the scale of the slider, in a solution or in the options of a choice.

import { SHOWN, append, h, prose, safeCut } from "./dom.js";
import { number, scale, signed } from "./numbers.js";
import { readGrid } from "./data.js";

const STRONGEST = 62;
const FAINT = 4;

/** Size of a gain that gets the strongest tint: the largest over all tokens and scales of this question. */
export function tintRange(tokens) {
  let most = 0;
  for (const token of tokens) for (const value of token.grid ?? [token.gain]) most = Math.max(most, Math.abs(value));
  return most || 1;
}

const tokenGain = (token, alpha) => (alpha === 1 ? token.gain : token.grid ? readGrid(token.grid, alpha) : NaN);

function tint(mark, gain, most) {
  // The square root keeps small gains visible beside one large one.
  const weight = Number.isFinite(gain) ? STRONGEST * Math.sqrt(Math.min(Math.abs(gain) / most, 1)) : 0;
  mark.classList.toggle("up", weight > FAINT && gain > 0);
  mark.classList.toggle("down", weight > FAINT && gain < 0);
  mark.style.setProperty("--weight", `${weight.toFixed(1)}%`);
}

/** Marks by token; tokens that share characters (pieces of one letter) share a mark. */
export function tokenText(text, tokens) {
  if (!tokens.length || tokens.some((token) => token.start < 0)) return null;
  const block = h("p", { class: "words-text tokens", dir: "auto" });
  const marks = [];
  let cursor = 0;
  for (const token of tokens) {
    if (token.end <= cursor && marks.length) {
      marks.at(-1).tokens.push(token);
      continue;
    }
    const start = Math.max(token.start, cursor);
    append(block, [text.slice(cursor, start)]);
    const mark = h("span", { class: "token" }, text.slice(start, token.end));
    block.append(mark);
    marks.push({ element: mark, tokens: [token] });
    cursor = token.end;
    if (cursor > SHOWN) break;
  }
  const rest = text.slice(cursor);
  append(block, rest.length > SHOWN ? [rest.slice(0, safeCut(rest, SHOWN)), "…"] : [rest]);
  return { block, marks };
}

/** Tokens whose place in the text is not stored, as a row of numbered cells. */
export function tokenStrip(tokens) {
  const marks = tokens.slice(0, 2000).map((token, index) => ({ element: h("span", { class: "token" }, String(index + 1)), tokens: [token] }));
  return { block: h("div", { class: "token-strip" }, marks.map((mark) => mark.element)), marks };
}

export function tintKey(most) {
  return h(
    "p",
    { class: "tint-key" },
    h("span", {}, `token loses ${number(most)}`),
    h("span", { class: "scale", role: "img", "aria-label": "Tints from loss to gain; losses are underlined too" }),
    h("span", {}, `gains ${number(most)} nats`),
  );
}

/** Colours every mark for one scale. */
export function retint(marks, alpha, most) {
  for (const { element, tokens } of marks) {
    const gain = tokens.reduce((sum, token) => sum + tokenGain(token, alpha), 0);
    tint(element, gain, most);
    element.title = Number.isFinite(gain) ? `${signed(gain)} nats at α = ${scale(alpha)}` : "no path is stored for this token";
    element.dataset.gain = gain;
  }
}

// The options of a choice side by side: their words, tinted by token, and their scores at both ends.

export function optionCards(set, details, text, transition, marksOut) {
  const [from, to] = [transition, transition + 1].map((depth) => details.optionScores?.[set.depths.indexOf(depth)]);
  return h(
    "div",
    { class: "option-cards" },
    text.options.map((option, index) => {
      const tokens = (details.tokens ?? []).filter((token) => token.option === index);
      const shown = tokenText(option, tokens);
      if (shown) marksOut.push(...shown.marks);
      const strip = !shown && tokens.length ? tokenStrip(tokens) : null;
      if (strip) marksOut.push(...strip.marks);
      return h(
        "article",
        { class: `option${index === text.right ? " right" : ""}`, "aria-label": `Option ${letter(index)}${index === text.right ? ", the right one" : ""}` },
        h("header", {}, h("span", {}, letter(index)), index === text.right && h("span", { class: "badge" }, "right")),
        shown ? shown.block : prose(option),
        strip && strip.block,
        from && scoreLine(from, to, index),
      );
    }),
  );
}

const letter = (index) => (index < 26 ? String.fromCharCode(65 + index) : String(index + 1));

function scoreLine(from, to, index) {
  const best = (scores) => scores.indexOf(Math.max(...scores)) === index;
  const score = (scores) => h(best(scores) ? "strong" : "span", { class: "number", title: best(scores) ? "chosen" : null }, number(scores[index]), best(scores) && " ✓");
  return h("p", { class: "scores" }, score(from), h("span", { class: "soft" }, "→"), score(to), h("span", { class: "soft small" }, "nats per token"));
}
