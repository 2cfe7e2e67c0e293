// The records of the page: sets (one task of one run), one flat column per number over all updates, and the addresses
// at which they are shown.

import { byId } from "./dom.js";
import { early, late, parsed, unpack } from "./codec.js";

export const OUTCOMES = ["progressing", "neutral", "directional failure", "finite-step failure"];

/** "failures" for more than one; the other classes are adjectives. */
export const manyOf = (outcome) => outcome.replace(/failure$/, "failures");

/** Failures first: in a bar they stand at the left edge, where their lengths can be compared between rows. */
export const BAR_ORDER = [3, 2, 1, 0];

export const page = { meta: null, sets: [], total: 0 };

export async function load() {
  page.meta = await early("meta");
  page.meta.runs.forEach((run, number) => {
    for (const described of run.sets) page.sets.push({ ...described, run, number });
  });
}

/** The index of every set, and the flat columns that the plot and the table read. */
async function loadRecords() {
  const packs = await Promise.all(page.sets.map((set) => early(set.name)));
  page.total = page.sets.reduce((sum, set) => sum + set.questions * set.transitions.length, 0);
  for (const name of ["slope", "gain", "quadratic", "scale", "before"]) page[name] = new Float32Array(page.total);
  page.optimum = new Float32Array(page.total).fill(NaN);
  for (const name of ["outcome", "certified"]) page[name] = new Uint8Array(page.total);
  for (const name of ["setOf", "transition", "row"]) page[name] = new Uint32Array(page.total);
  let base = 0;
  packs.forEach(({ ids, snippets, ...columns }, at) => {
    const set = Object.assign(page.sets[at], { base, ids, snippets });
    for (const [name, values] of Object.entries(columns)) page[name].set(values, base);
    for (const transition of set.transitions) {
      for (let row = 0; row < set.questions; row++, base++) {
        page.setOf[base] = at;
        page.transition[base] = transition;
        page.row[base] = row;
      }
    }
  });
}

export const recordsReady = (() => {
  let promise = null;
  return () => (promise ??= loadRecords());
})();

/** The flat place of a question's update. */
export const recordAt = (set, row, transition) => set.base + set.transitions.indexOf(transition) * set.questions + row;

/** The loops before and after an update, as `transition` numbers it: t for t → t+1; a chord holds how many more. */
export const loopsOf = (transition) => [transition % CHORD, (transition % CHORD) + Math.floor(transition / CHORD) + 1];
const CHORD = 100_000;

export const update = (transition) => loopsOf(transition).join("→");

/** Prompt, reference, options and right option of one question. */
export async function textOf(set, row) {
  const pack = await late(`${set.name}-t${Math.floor(row / page.meta.chunk)}`);
  const [prompt, reference, options, right] = pack.entries[row % page.meta.chunk];
  return { prompt, reference, options, right };
}

/** Every question of every set as one lower-case string each, for searching; decoded once. */
export const searchable = (() => {
  let promise = null;
  const read = async () => {
    await parsed;
    for (const set of page.sets) {
      const texts = [];
      for (let chunk = 0; chunk * page.meta.chunk < set.questions; chunk++) {
        const pack = await unpack(byId(`${set.name}-t${chunk}`).textContent);
        for (const [prompt, reference, options] of pack.entries) {
          const words = [set.ids[texts.length], prompt, reference ?? "", ...(options ?? [])];
          texts.push(words.join("\n").toLowerCase());
        }
        // Long decoding must not freeze the page.
        await new Promise((resolve) => setTimeout(resolve));
      }
      set.search = texts;
    }
  };
  return () => (promise ??= read());
})();

/** The pack with one question's numbers, the question's place in it, and the first and last row of its ragged columns. */
async function chunkOf(set, row, kind, size) {
  const pack = await late(`${set.name}-${kind}${Math.floor(row / size)}`);
  const at = row % size;
  return { pack, at, rows: (counts) => {
    const first = counts.subarray(0, at).reduce((sum, count) => sum + count, 0);
    return [first, first + counts[at]];
  } };
}

const cut = (values, at, width) => values.subarray(at * width, (at + 1) * width);

/** The stored numbers of one question at one update. */
export async function detailsOf(set, row, transition) {
  const { pack, at, rows } = await chunkOf(set, row, "d", page.meta.chunk);
  const place = at * set.transitions.length + set.transitions.indexOf(transition);
  const found = { utility: cut(pack.utility, at, set.depths.length) };
  for (const name of Object.keys(pack)) if (name.startsWith("scalar_")) found[name.slice(7)] = pack[name][place];
  if (pack.grid) {
    found.grid = gridAt(pack.grid, place);
    found.grids = new Map(set.transitions.map((each, t) => [each, gridAt(pack.grid, at * set.transitions.length + t)]));
  }
  const count = pack.utility.length / set.depths.length;
  if (pack.path) found.path = cut(pack.path, place, pack.path.length / (count * set.transitions.length));
  if (pack.option_counts) {
    const [first, last] = rows(pack.option_counts);
    const width = (last - first) / set.depths.length;
    found.optionScores = set.depths.map((_, depth) => pack.option_scores.subarray(first + depth * width, first + (depth + 1) * width));
  }
  if (pack.token_counts) {
    found.tokens = tokenPlaces(pack, rows(pack.token_counts));
    for (const token of found.tokens) {
      const here = token.row * set.transitions.length + set.transitions.indexOf(transition);
      Object.assign(token, { gain: pack.token_gain[here], grid: tokenGrid(pack, here) });
    }
  }
  return found;
}

const gridAt = (values, place) => cut(values, place, page.meta.grid.length);

/** Option, place within it and characters of each reference token. */
function tokenPlaces(pack, [first, last]) {
  const tokens = [];
  for (let row = first; row < last; row++) {
    const option = pack.token_option[row];
    const index = tokens.at(-1)?.option === option ? tokens.at(-1).index + 1 : 0;
    tokens.push({ row, option, index, start: pack.token_start[row], end: pack.token_end[row] });
  }
  return tokens;
}

function tokenGrid(pack, place) {
  if (!pack.token_steps) return null;
  // A copy of the same type, so that sums wrap around as the differences did.
  const levels = gridAt(pack.token_steps, place).slice();
  for (let i = 1; i < levels.length; i++) levels[i] += levels[i - 1];
  return Float32Array.from(levels, (level) => level * pack.token_scale[place]);
}

/** The reference tokens of one question with the columns of its lens, and the texts of the vocabulary. */
export async function lensRows(set, row) {
  const [{ texts }, { pack, rows }] = await Promise.all([late(`${set.name}-lens`), chunkOf(set, row, "l", set.lens.chunk)]);
  return { texts, pack, tokens: tokenPlaces(pack, rows(pack.counts)) };
}

/** φ at any scale from a stored grid: exact at its points, straight lines between them. */
export function readGrid(grid, alpha) {
  const cells = grid.length - 1;
  const place = Math.min(Math.max(alpha, 0), 1) * cells;
  const nearest = Math.round(place);
  if (Math.abs(place - nearest) < 1e-6) return grid[nearest];
  const below = Math.floor(place);
  return grid[below] + (place - below) * (grid[below + 1] - grid[below]);
}

export const onGrid = (alpha) => Math.abs(alpha * (page.meta.grid.length - 1) - Math.round(alpha * (page.meta.grid.length - 1))) < 1e-6;

// The address holds the view and everything chosen in it, so that a copied link opens the same thing.

export function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", params: new URLSearchParams(query) };
}

export function address(view, values = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== "" && value !== null && value !== undefined) params.set(name, value);
  }
  const query = params.toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** Writes the address without opening anything: for choices within a view. A lasting choice is an entry of the history, to
 * which Back returns; a slider or a word that is being typed is not. */
export function note(view, values, { step = false } = {}) {
  const to = address(view, values);
  if (to === location.hash) return;
  if (step) history.pushState({ y: scrollY }, "", to);
  else history.replaceState(history.state, "", to);
}

export const questionAddress = (set, row, transition, more = {}) =>
  address("question", { run: set.run.label, task: set.task, id: set.ids[row], t: transition, ...more });

export const recordAddress = (record) => questionAddress(page.sets[page.setOf[record]], page.row[record], page.transition[record]);
