// The records of the page: sets (one task of one run), one flat column per number over all updates, and the addresses
// at which they are shown.

import { byId } from "./dom.js";
import { early, late, parsed, unpack } from "./codec.js";

export const OUTCOMES = ["progressing", "neutral", "directional failure", "finite-step failure"];

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
  for (const name of ["slope", "gain", "quadratic", "scale", "before", "optimum"]) page[name] = new Float32Array(page.total);
  page.outcome = new Uint8Array(page.total);
  page.certified = new Uint8Array(page.total);
  page.setOf = new Uint16Array(page.total);
  page.transition = new Int32Array(page.total);
  page.row = new Uint32Array(page.total);
  let base = 0;
  packs.forEach((pack, at) => {
    const set = page.sets[at];
    Object.assign(set, { base, ids: pack.ids, snippets: pack.snippets, difficulty: pack.difficulty });
    for (const name of ["slope", "gain", "quadratic", "scale", "before", "outcome"]) page[name].set(pack[name], base);
    if (pack.certified) page.certified.set(pack.certified, base);
    if (pack.optimum) page.optimum.set(pack.optimum, base);
    else page.optimum.fill(NaN, base, base + set.questions * set.transitions.length);
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
  let chunk = set.texts.length - 1;
  while (set.texts[chunk] > row) chunk--;
  const pack = await late(`${set.name}-t${chunk}`);
  const [prompt, reference, options, right] = pack.entries[row - set.texts[chunk]];
  return { prompt, reference, options, right };
}

/** Every question of every set as one lower-case string each, for searching; decoded once. */
export const searchable = (() => {
  let promise = null;
  const read = async () => {
    await parsed;
    for (const set of page.sets) {
      const texts = [];
      for (let chunk = 0; chunk < set.texts.length; chunk++) {
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

/** The stored numbers of one question; arrays over transitions are cut for one update. */
export async function detailsOf(set, row, transition) {
  const size = page.meta.chunk;
  const chunk = Math.floor(row / size);
  const pack = await late(`${set.name}-d${chunk}`);
  const count = Math.min(size, set.questions - chunk * size);
  const at = row - chunk * size;
  const t = set.transitions.indexOf(transition);
  const found = { utility: cut(pack.utility, at, set.depths.length) };
  for (const name of pack.scalars) found[name] = pack[name][t * count + at];
  if (pack.grid) found.grid = cut(pack.grid, t * count + at, page.meta.grid.length);
  if (pack.path) found.path = cut(pack.path, t * count + at, pack.path.length / (count * set.transitions.length));
  if (pack.option_counts) found.optionScores = optionScores(pack, at, set.depths.length);
  if (pack.token_counts) found.tokens = tokensOf(pack, at, t);
  return found;
}

/** The grids of every update of one question, by transition; null where the run's level has none. */
export async function gridsOf(set, row) {
  const size = page.meta.chunk;
  const pack = await late(`${set.name}-d${Math.floor(row / size)}`);
  if (!pack.grid) return null;
  const count = pack.grid.length / (set.transitions.length * page.meta.grid.length);
  return new Map(set.transitions.map((transition, t) => [transition, cut(pack.grid, t * count + (row % size), page.meta.grid.length)]));
}

const cut = (values, at, width) => values.subarray(at * width, (at + 1) * width);

const sumBefore = (counts, at) => counts.subarray(0, at).reduce((sum, value) => sum + value, 0);

/** Scores by depth: one array of options per stored depth. */
function optionScores(pack, at, depths) {
  const width = pack.option_counts[at];
  const start = sumBefore(pack.option_counts, at) * depths;
  return Array.from({ length: depths }, (_, depth) => pack.option_scores.subarray(start + depth * width, start + (depth + 1) * width));
}

function tokensOf(pack, at, t) {
  const total = pack.token_option.length;
  const start = sumBefore(pack.token_counts, at);
  const width = page.meta.grid.length;
  return Array.from({ length: pack.token_counts[at] }, (_, index) => {
    const token = start + index;
    const place = t * total + token;
    return {
      option: pack.token_option[token],
      start: pack.token_start[token],
      end: pack.token_end[token],
      gain: pack.token_gain[place],
      grid: tokenGrid(pack, place, width),
    };
  });
}

function tokenGrid(pack, place, width) {
  if (pack.token_grid) return cut(pack.token_grid, place, width);
  if (!pack.token_steps) return null;
  const levels = Int8Array.from(cut(pack.token_steps, place, width));
  for (let i = 1; i < width; i++) levels[i] += levels[i - 1];
  return Float32Array.from(levels, (level) => level * pack.token_scale[place]);
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

/** Writes the address without opening anything: for choices within a view. A lasting choice is a step of its own, to
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
