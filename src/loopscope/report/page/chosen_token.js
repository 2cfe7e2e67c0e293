// The token that an address names, in the view of a question: marked in the text, with its own path along the update.

import { chart, h } from "./dom.js";
import { signed } from "./numbers.js";
import { loopsOf, page, update } from "./data.js";
import { lensLink } from "./lens.js";
import { tokenPieces } from "./lens_grid.js";
import { pathPlot, pathRange } from "./path_plot.js";

/** Marks the token and returns its panel; nothing where the address names none. */
export function chosenToken({ set, row, transition, text, details, marks, params }) {
  const option = Number(params.get("option") || 0);
  const index = Number(params.get("token") ?? NaN);
  const token = details.tokens?.find((each) => each.option === option && each.index === index);
  const lens = lensLink(set, row, token ? { option: params.get("option"), token: index, depth: loopsOf(transition)[1] } : {});
  if (!token) return lens && h("p", { class: "chosen-token" }, lens);
  const mark = marks.find((each) => each.tokens.includes(token));
  if (mark) {
    mark.element.classList.add("chosen");
    mark.element.setAttribute("aria-current", "true");
    requestAnimationFrame(() => mark.element.scrollIntoView({ block: "nearest" }));
  }
  const letters = [...(text.options?.[option] ?? text.reference ?? "")];
  const name = token.start < 0 ? `${index + 1}` : letters.slice(token.start, token.end).join("");
  return h(
    "section",
    { class: "chosen-token", "aria-label": "The token of this address" },
    h("h3", {}, "Token ", h("span", { class: "token-name" }, tokenPieces(name)), ` along ${update(transition)}`),
    token.grid && chart(`Path of this token: ${signed(token.gain)} nats at the full step`, (width) => pathPlot(width, { curve: Array.from(token.grid, (value, at) => [page.meta.grid[at], value]), range: pathRange(token.grid), height: 170 })),
    h("p", { class: "small" }, `Its log probability changes by ${signed(token.gain)} nats at the full step`, token.grid && best(token), "."),
    lens,
  );
}

function best(token) {
  const at = token.grid.indexOf(Math.max(...token.grid));
  if (at === 0) return "; no shorter step raises it";
  return at === token.grid.length - 1 ? ", the most along the way" : `, by ${signed(token.grid[at])} at α = ${page.meta.grid[at]}`;
}
