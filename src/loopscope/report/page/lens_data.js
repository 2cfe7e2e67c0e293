// The lens of a question: every reference token after every loop, decoded when it is opened.

import { page } from "./data.js";
import { late } from "./codec.js";

export const lensSets = () => page.sets.filter((set) => set.lens);

const STEPS = 65535;

/** Texts of the vocabulary, and the counts by which questions are ordered. */
const lensIndex = (set) => late(`${set.name}-lens`);

/** The questions of a set that carry a lens: most answers lost since the trained depth first. */
export async function lensOrder(set) {
  const index = await lensIndex(set);
  const rows = Array.from({ length: set.lens.questions }, (_, row) => row);
  return rows.sort((a, b) => index.lost[b] - index.lost[a] || index.overshot[b] - index.overshot[a] || a - b);
}

/** The tokens of one question with a cell for each loop. */
export async function lensOf(set, row) {
  const { chunk, depths, candidates } = set.lens;
  const [index, pack] = await Promise.all([lensIndex(set), late(`${set.name}-l${Math.floor(row / chunk)}`)]);
  const total = pack.option.length;
  const at = row % chunk;
  const first = pack.counts.subarray(0, at).reduce((sum, count) => sum + count, 0);
  const tokens = [];
  for (let token = first; token < first + pack.counts[at]; token++) {
    const option = pack.option[token];
    const place = tokens.length && tokens.at(-1).option === option ? tokens.at(-1).index + 1 : 0;
    const cells = Array.from({ length: depths }, (_, loop) => cell(pack, index, { place: token * depths + loop, width: total * depths, candidates, depth: loop + 1 }));
    cells.forEach((each, loop) => compare(each, cells[loop - 1]));
    tokens.push({ option, index: place, start: pack.start[token], end: pack.end[token], text: index.texts[pack.reference[token]], cells });
  }
  return tokens;
}

function cell(pack, index, { place, width, candidates, depth }) {
  const said = Array.from({ length: candidates }, (_, rank) => ({
    text: index.texts[pack.ids[rank * width + place]],
    id: pack.ids[rank * width + place],
    probability: pack.probs[rank * width + place] / STEPS,
  }));
  const rank = pack.rank[place];
  return { depth, said, rank, right: rank === 1, logProb: pack.log_prob[place], probability: Math.exp(pack.log_prob[place]), shortGain: pack.short_gain[place] };
}

/** What changed from the loop before: the gain, and whether the answer did. */
function compare(cell, before) {
  cell.gain = before ? cell.logProb - before.logProb : NaN;
  cell.flip = !before || cell.said[0].id === before.said[0].id ? null : cell.right ? "won" : before.right ? "lost" : "other";
  cell.overshot = cell.shortGain > 0;
}

/** How many tokens of a list the model would say after a loop. */
export const rightAt = (tokens, depth) => tokens.filter((token) => token.cells[depth - 1].right).length;

/** Mean log probability of a list of tokens after a loop. */
export const scoreAt = (tokens, depth) => tokens.reduce((sum, token) => sum + token.cells[depth - 1].logProb, 0) / tokens.length;
