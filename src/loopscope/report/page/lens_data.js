// The lens of a question: every reference token after every loop, decoded when it is opened.

import { lensRows, page } from "./data.js";
import { late } from "./codec.js";

export const lensSets = () => page.sets.filter((set) => set.lens);

const STEPS = 65535;

/** The questions of a set that carry a lens: most answers lost since the trained depth first. */
export async function lensOrder(set) {
  const { lost, overshot } = await late(`${set.name}-lens`);
  return Array.from(lost.keys()).sort((a, b) => lost[b] - lost[a] || overshot[b] - overshot[a] || a - b);
}

/** The tokens of one question with a cell for each loop. */
export async function lensOf(set, row) {
  const { depths, candidates } = set.lens;
  const { texts, pack, tokens } = await lensRows(set, row);
  for (const token of tokens) {
    token.text = texts[pack.reference[token.row]];
    token.cells = Array.from({ length: depths }, (_, loop) => cell(pack, texts, token.row * depths + loop, candidates, loop + 1));
    token.cells.forEach((each, loop) => compare(each, token.cells[loop - 1]));
  }
  return tokens;
}

function cell(pack, texts, place, candidates, depth) {
  const said = Array.from({ length: candidates }, (_, at) => {
    const id = pack.ids[place * candidates + at];
    return { id, text: texts[id], probability: pack.probs[place * candidates + at] / STEPS };
  });
  const rank = pack.rank[place];
  return { depth, said, rank, right: rank === 1, logProb: pack.log_prob[place], probability: Math.exp(pack.log_prob[place]), shortGain: pack.short_gain[place] };
}

/** What changed from the loop before: the gain, and whether the answer did. */
function compare(cell, before) {
  cell.gain = before ? cell.logProb - before.logProb : NaN;
  cell.flip = !before || cell.said[0].id === before.said[0].id ? null : cell.right ? "won" : before.right ? "lost" : "other";
  cell.overshot = cell.shortGain > 0;
}

/** How many tokens of a list are the likeliest ones after a loop. */
export const rightAt = (tokens, depth) => tokens.filter((token) => token.cells[depth - 1].right).length;

/** Mean log probability of a list of tokens after a loop. */
export const scoreAt = (tokens, depth) => tokens.reduce((sum, token) => sum + token.cells[depth - 1].logProb, 0) / tokens.length;
