// Reference tokens tinted by their gain at the scale of the slider, in a solution or in the options of a choice.

import { SHOWN, append, beginning, h, prose, replace } from "./dom.js";
import { columnFormat, number, scale, share, signed } from "./numbers.js";
import { loopsOf, readGrid } from "./data.js";

const STRONGEST = 62;
const FAINT = 4;
const MOST_CELLS = 2000;

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

/** A text whose tokens can be tinted; their marks are added to `marks`. Tokens that share characters share a mark. */
export function tinted(text, tokens, marks) {
  if (!tokens.length) return prose(text);
  if (tokens.some((token) => token.start < 0)) {
    const strip = tokens.slice(0, MOST_CELLS).map((token) => ({ element: h("span", { class: "token" }, String(token.index + 1)), tokens: [token] }));
    marks.push(...strip);
    return [prose(text), h("p", { class: "soft small" }, "Its tokens in order; the run does not say where in the text they stand."), h("div", { class: "token-strip" }, strip.map((mark) => mark.element))];
  }
  // Tokens are counted in characters, of which some are two units of a string.
  const letters = [...text];
  const cut = (from, to) => letters.slice(from, to).join("");
  const block = h("p", { class: "words-text tokens", dir: "auto" });
  let cursor = 0;
  for (const token of tokens) {
    if (token.end <= cursor && block.children.length) {
      marks.at(-1).tokens.push(token);
      continue;
    }
    const start = Math.max(token.start, cursor);
    const element = h("span", { class: "token" }, cut(start, token.end));
    append(block, [cut(cursor, start), element]);
    marks.push({ element, tokens: [token] });
    cursor = token.end;
    if (cursor > SHOWN) break;
  }
  const rest = cut(cursor);
  append(block, rest.length > SHOWN ? [beginning(rest), "…"] : [rest]);
  return block;
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

// The options of a choice side by side: their words, tinted by token, and their scores at the scale of the slider.

/** The block, and a function that moves the scores to a scale. */
export function optionCards(set, details, text, transition, marks) {
  const ends = loopsOf(transition).map((depth) => details.optionScores?.[set.depths.indexOf(depth)]);
  const lines = text.options.map(() => h("div", { class: "scores" }));
  const tokens = text.options.map((_, index) => (details.tokens ?? []).filter((token) => token.option === index));
  const block = h(
    "div",
    { class: "option-cards" },
    text.options.map((option, index) =>
      h(
        "article",
        { class: `option${index === text.right ? " right" : ""}`, "aria-label": `Option ${letter(index)}${index === text.right ? ", the right one" : ""}` },
        h("header", {}, h("span", {}, letter(index)), index === text.right && h("span", { class: "badge" }, "right")),
        tinted(option, tokens[index], marks),
        ends[0] && ends[1] && lines[index],
      ),
    ),
  );
  const follow = (alpha) => {
    if (!ends[0] || !ends[1]) return;
    const now = scoresAt(ends, tokens, alpha);
    const format = columnFormat([...ends[0], ...ends[1]], { sign: false });
    const chances = now && softmax(now);
    lines.forEach((line, index) => replace(line, scoreLine(now, chances, index, format, alpha, ends)));
  };
  return { block, follow };
}

const letter = (index) => (index < 26 ? String.fromCharCode(65 + index) : String(index + 1));

/** The score of every option at a scale: stored at both ends, between them moved by the mean gain of its tokens. */
function scoresAt([from, to], tokens, alpha) {
  if (alpha === 0) return from;
  if (alpha === 1) return to;
  const moved = Float64Array.from(from, (score, index) => score + tokens[index].reduce((sum, token) => sum + tokenGain(token, alpha), 0) / tokens[index].length);
  return moved.every(Number.isFinite) ? moved : null;
}

function softmax(scores) {
  const weights = Array.from(scores, (score) => Math.exp(score - Math.max(...scores)));
  return weights.map((weight) => weight / weights.reduce((total, each) => total + each, 0));
}

const chosen = (scores, index) => scores.indexOf(Math.max(...scores)) === index;

function scoreLine(now, chances, index, format, alpha, [from, to]) {
  const score = (scores) => [format.text(scores[index]), chosen(scores, index) && h("span", { title: "chosen" }, " ✓")];
  const [low, high] = [score(from), score(to)];
  const ends = h("p", { class: "soft small" }, "before ", h("span", { class: "number" }, low), " → after ", h("span", { class: "number" }, high), ` ${format.unit("nats")} per token`);
  if (!now) return [h("p", { class: "soft small" }, `At α = ${scale(alpha)} only a run with --tokens knows the score.`), ends];
  return [
    h("div", { class: "chance", role: "img", "aria-label": `probability ${share(chances[index])}` }, h("span", { vars: { width: `${100 * chances[index]}%` } })),
    h("p", { class: "score-now" }, h(chosen(now, index) ? "strong" : "span", { class: "number", "data-value": now[index] }, score(now)), h("span", { class: "soft small" }, ` at α = ${scale(alpha)} · ${share(chances[index])}`)),
    ends,
  ];
}
