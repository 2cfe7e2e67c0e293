// Elements from plain values, and text that stays text.
//
// Text goes through text nodes only, so no word of a benchmark can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
}

/** An HTML element; properties that start with "on" are listeners, "vars" are style properties. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** While a view is laid out its boxes can be a few pixels wide for a moment; no axis fits into that. */
const NARROWEST = 120;

/** A box whose drawing is made anew whenever its width changes. */
export function chart(label, draw) {
  const box = h("div", { class: "chart" });
  let width = 0;
  const redraw = () => {
    if (width < NARROWEST) return;
    const drawing = draw(width);
    // A drawing with links inside is a group and says so; any other is one picture.
    replace(box, fill(drawing, { role: drawing.getAttribute("role") ?? "img", "aria-label": visible(label) }, []));
  };
  new ResizeObserver((entries) => {
    const now = Math.round(entries[0].contentRect.width);
    if (now !== width) {
      width = now;
      redraw();
    }
  }).observe(box);
  box.redraw = redraw;
  return box;
}

export function announce(text) {
  byId("announcer").textContent = visible(text);
}

const CERTIFIED = [null, ["✓", "Certified: no rounding of the readout can overturn this outcome."], ["≠", "Certified to be another outcome than the recorded one."]];

/** A small mark behind an outcome: certified, certified otherwise, or nothing. */
export function certified(standing) {
  if (!CERTIFIED[standing]) return null;
  const [mark, title] = CERTIFIED[standing];
  return h("span", { class: "certified", title, role: "img", "aria-label": title }, mark);
}

export const swatch = (outcome) => h("span", { class: `swatch outcome-${outcome}`, "aria-hidden": "true" });

// Text from benchmarks and checkpoints is shown as text. Characters that would reorder, hide or break a line unseen
// (bidirectional controls, zero-width marks, control codes, tags) are shown as their code points instead.

// Joiners (U+200C, U+200D) belong to ordinary words and emoji and stay.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

function visible(text) {
  UNSEEN.lastIndex = 0;
  if (!UNSEEN.test(text)) return text;
  UNSEEN.lastIndex = 0;
  return text.replace(UNSEEN, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export const SHOWN = 12000;

/** Prose of any length; beyond the first screens it is opened on demand, because laying out a megabyte takes a while. */
export function prose(text) {
  const block = h("p", { class: "words-text", dir: "auto" }, beginning(text));
  if (text.length <= SHOWN) return block;
  const whole = () => {
    replace(block, text);
    more.remove();
  };
  const more = h("button", { type: "button", class: "button reveal", onclick: whole }, `Show all ${text.length.toLocaleString("en")} characters`);
  return [block, more];
}

/** The first `SHOWN` units of a text, or one less where that would part a surrogate pair. */
export const beginning = (text) => text.slice(0, SHOWN).replace(/[\ud800-\udbff]$/, "");

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A button that copies a text, and says whether that worked. */
export function copyButton(name, text, properties = {}) {
  const button = h("button", { type: "button", class: "button copy", ...properties }, name);
  button.addEventListener("click", async () => {
    const copied = await copy(text);
    announce(copied ? "Copied" : "The browser does not allow copying");
    button.textContent = copied ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = name), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // A page from disk may lack the clipboard; a selected field can still be copied.
    const field = h("textarea", { class: "visually-hidden", value: text });
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}
