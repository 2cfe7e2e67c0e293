// The token that an address names, in the view of a question: marked in the text, with its own path along the update.

import { chart, h, s } from "./dom.js";
import { linear, signed } from "./numbers.js";
import { loopsOf, page, update } from "./data.js";
import { lensLink } from "./lens.js";
import { tokenPieces } from "./lens_grid.js";

const HEIGHT = 110;
const [LEFT, RIGHT, TOP, BOTTOM] = [12, 12, 10, 22];

/** Marks the token and returns its panel; nothing where the address names none. */
export function chosenToken({ set, row, transition, text, details, marks, params }) {
  const option = Number(params.get("option") || 0);
  const index = Number(params.get("token") ?? NaN);
  const token = (details.tokens ?? []).filter((each) => each.option === option)[index];
  const lens = lensLink(set, row, params.has("token") ? { option: params.get("option"), token: params.get("token"), depth: loopsOf(transition)[1] } : {});
  if (!token) return lens && h("p", { class: "chosen-token" }, lens);
  const mark = marks.find((each) => each.tokens.includes(token));
  if (mark) {
    mark.element.classList.add("chosen");
    mark.element.setAttribute("aria-current", "true");
    requestAnimationFrame(() => mark.element.scrollIntoView({ block: "nearest" }));
  }
  const own = token.start < 0 ? `${index + 1}` : (text.options?.[option] ?? text.reference ?? "").slice(token.start, token.end);
  return h(
    "section",
    { class: "chosen-token", "aria-label": "The token of this address" },
    h("h3", {}, "Token ", h("span", { class: "token-name" }, tokenPieces(own)), ` along ${update(transition)}`),
    token.grid && chart(`Path of this token: ${signed(token.gain)} nats at the full step`, (width) => tokenPath(width, token.grid)),
    h("p", { class: "small" }, `Its log probability changes by ${signed(token.gain)} nats at the full step`, token.grid && best(token), "."),
    lens,
  );
}

function best(token) {
  const at = token.grid.indexOf(Math.max(...token.grid));
  if (at === 0) return "; no shorter step raises it";
  return at === token.grid.length - 1 ? ", the most along the way" : `, by ${signed(token.grid[at])} at α = ${page.meta.grid[at]}`;
}

function tokenPath(width, grid) {
  const values = Array.from(grid);
  const x = linear(0, 1, LEFT, width - RIGHT);
  const y = linear(Math.min(0, ...values), Math.max(0, ...values), HEIGHT - BOTTOM, TOP);
  const points = values.map((value, at) => `${x(at / (values.length - 1))},${y(value)}`).join(" ");
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT },
    s("line", { x1: LEFT, x2: width - RIGHT, y1: y(0), y2: y(0), stroke: "var(--line-strong)" }),
    s("polyline", { points, fill: "none", stroke: "var(--curve)", "stroke-width": 2 }),
    s("circle", { cx: x(1), cy: y(values.at(-1)), r: 4, fill: "var(--curve)" }),
    s("text", { x: LEFT, y: HEIGHT - 6 }, "α = 0"),
    s("text", { x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, "full step"),
  );
}
