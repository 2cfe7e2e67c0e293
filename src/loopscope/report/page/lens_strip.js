// All tokens and loops of a question at a glance: one thin column per token, one row per loop.

import { chart, s } from "./dom.js";
import { plural } from "./numbers.js";
import { rightAt } from "./lens_data.js";

const ROW = 12;
const [LEFT, TOP] = [62, 16];

/** The whole map in one drawing as wide as the page; a click leads to the token in the map below. */
export function lensStrip(set, tokens, chosen) {
  const { depths } = set.lens;
  const right = (width) => (width < 600 ? 62 : 170);
  const trained = set.run.trained_depth;
  const words = `Probability of the reference at ${plural(tokens.length, "token")} (from left to right) after 1 to ${depths} loops (from top to bottom); right answers: ${Array.from({ length: depths }, (_, loop) => rightAt(tokens, loop + 1)).join(", ")}`;
  const box = chart(words, (width) => {
    const edge = width - right(width);
    const column = (edge - LEFT) / tokens.length;
    const x = (token) => LEFT + token * column;
    const y = (depth) => TOP + (depth - 1) * ROW;
    const parts = [];
    tokens.forEach((token, at) => {
      for (const cell of token.cells) {
        const size = { x: x(at).toFixed(2), y: y(cell.depth), width: (column + 0.25).toFixed(2), height: ROW };
        parts.push(s("rect", { ...size, fill: `color-mix(in oklab, var(--lens) ${Math.round(100 * cell.probability)}%, var(--sunken))` }));
        if (cell.flip === "lost") parts.push(s("rect", { ...size, width: Math.max(2, column / 2).toFixed(2), fill: "var(--down)" }));
        if (cell.overshot) parts.push(s("rect", { ...size, height: 3, width: Math.max(2.5, column).toFixed(2), fill: "var(--finite)" }));
      }
    });
    parts.push(s("text", { x: LEFT, y: TOP - 5 }, width < 600 ? "tokens →" : "tokens of the reference, from first to last →"), s("text", { x: width, y: TOP - 5, "text-anchor": "end" }, width < 600 ? "right" : "right answers"));
    for (let depth = 1; depth <= depths; depth++) {
      const share = rightAt(tokens, depth) / tokens.length;
      parts.push(s("rect", { x: edge + 10, y: y(depth) + 2, width: (share * (right(width) - 48)).toFixed(1), height: ROW - 4, fill: depth > (trained ?? depths) ? "var(--finite)" : "var(--lens)" }));
      parts.push(s("text", { x: width, y: y(depth) + 10, "text-anchor": "end" }, `${Math.round(100 * share)}%`));
    }
    for (const depth of new Set([1, trained ?? 1, depths])) {
      if (depth <= depths) parts.push(s("text", { x: LEFT - 6, y: y(depth) + 10, "text-anchor": "end" }, depth === trained ? `trained ${depth}` : plural(depth, "loop")));
    }
    if (trained && trained < depths) parts.push(s("line", { x1: LEFT, x2: width, y1: y(trained + 1), y2: y(trained + 1), stroke: "var(--ink)", "stroke-width": 1.4 }));
    for (let at = 1; at < tokens.length; at++) {
      if (tokens[at].option !== tokens[at - 1].option) parts.push(s("line", { x1: x(at), x2: x(at), y1: TOP, y2: y(depths + 1), stroke: "var(--ink)", "stroke-width": 1.4 }));
    }
    return s("svg", { viewBox: `0 0 ${width} ${y(depths + 1) + 4}`, height: y(depths + 1) + 4 }, parts);
  });
  box.classList.add("lens-strip");
  box.addEventListener("click", (event) => {
    const place = box.getBoundingClientRect();
    const at = Math.floor(((event.clientX - place.left - LEFT) / (place.width - LEFT - right(place.width))) * tokens.length);
    const depth = Math.floor((event.clientY - place.top - TOP) / ROW) + 1;
    if (tokens[at] && depth >= 1 && depth <= depths) chosen(tokens[at], depth);
  });
  return box;
}
