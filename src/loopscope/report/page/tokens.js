// Reference tokens tinted by their gain at the scale of the slider, in a solution or in the options of a choice.

import { SHOWN, append, h, prose, replace, safeCut } from "./dom.js";
import { columnFormat, number, scale, share, signed } from "./numbers.js";
import { loopsOf, readGrid } from "./data.js";

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

// The options of a choice side by side: their words, tinted by token, and their scores at the scale of the slider.

/** The block, and a function that moves the scores to a scale. */
export function optionCards(set, details, text, transition, marksOut) {
  const ends = loopsOf(transition).map((depth) => details.optionScores?.[set.depths.indexOf(depth)]);
  const lines = text.options.map(() => h("div", { class: "scores" }));
  const tokens = text.options.map((_, index) => (details.tokens ?? []).filter((token) => token.option === index));
  const block = h(
    "div",
    { class: "option-cards" },
    text.options.map((option, index) => {
      const shown = tokenText(option, tokens[index]);
      if (shown) marksOut.push(...shown.marks);
      const strip = !shown && tokens[index].length ? tokenStrip(tokens[index]) : null;
      if (strip) marksOut.push(...strip.marks);
      return h(
        "article",
        { class: `option${index === text.right ? " right" : ""}`, "aria-label": `Option ${letter(index)}${index === text.right ? ", the right one" : ""}` },
        h("header", {}, h("span", {}, letter(index)), index === text.right && h("span", { class: "badge" }, "right")),
        shown ? shown.block : prose(option),
        strip && strip.block,
        ends[0] && ends[1] && lines[index],
      );
    }),
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
  const most = Math.max(...scores);
  const weights = Array.from(scores, (score) => Math.exp(score - most));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => weight / sum);
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
