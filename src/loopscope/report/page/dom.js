// Elements from plain values. Text goes through text nodes only, so no word of a benchmark can become markup.

const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);

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

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(visible(String(child))));
  }
}

/** An HTML element; properties that start with "on" are listeners, "vars" are style properties. */
function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** An SVG element. */
function s(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** A box whose drawing is made anew whenever its width changes. */
function chart(label, draw) {
  const box = h("div", { class: "chart" });
  let width = 0;
  const redraw = () => {
    if (width > 0) replace(box, fill(draw(width), { role: "img", "aria-label": visible(label) }, []));
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

function announce(text) {
  byId("announcer").textContent = visible(text);
}

const swatch = (outcome) => h("span", { class: `swatch outcome-${outcome}`, "aria-hidden": "true" });
