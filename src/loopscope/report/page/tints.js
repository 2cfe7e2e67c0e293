// Reference tokens tinted by their gain at the scale of the slider.

const STRONGEST = 62;
const FAINT = 4;

/** Size of a gain that gets the strongest tint: the largest over all tokens and scales of this question. */
function tintRange(tokens) {
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
function tokenText(text, tokens) {
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
function tokenStrip(tokens) {
  const marks = tokens.slice(0, 2000).map((token, index) => ({ element: h("span", { class: "token" }, String(index + 1)), tokens: [token] }));
  return { block: h("div", { class: "token-strip" }, marks.map((mark) => mark.element)), marks };
}

function tintKey(most) {
  return h(
    "p",
    { class: "tint-key" },
    h("span", {}, `token loses ${number(most)}`),
    h("span", { class: "scale", role: "img", "aria-label": "Tints from loss to gain; losses are underlined too" }),
    h("span", {}, `gains ${number(most)} nats`),
  );
}

/** Colours every mark for one scale. */
function retint(marks, alpha, most) {
  for (const { element, tokens } of marks) {
    const gain = tokens.reduce((sum, token) => sum + tokenGain(token, alpha), 0);
    tint(element, gain, most);
    element.title = Number.isFinite(gain) ? `${signed(gain)} nats at α = ${scale(alpha)}` : "no path is stored for this token";
    element.dataset.gain = gain;
  }
}
