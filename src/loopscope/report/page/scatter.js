// Slope against full-step gain on symmetric-log axes: tens of thousands of points on a canvas, each can be picked.

import { announce, colour, h, replace, swatch } from "./dom.js";
import { linear, plural, signed, symlog, symlogThreshold, symlogTicks } from "./numbers.js";
import { OUTCOMES, page, update } from "./data.js";

const REACH = 12;
const STEPS = new Map([["ArrowRight", 1], ["ArrowDown", 1], ["ArrowLeft", -1], ["ArrowUp", -1], ["Home", -Infinity], ["End", Infinity]]);
const EDGE = { left: 58, right: 14, top: 12, bottom: 46 };

export class Scatter {
  constructor(opened) {
    this.opened = opened;
    this.records = new Uint32Array(0);
    this.hovered = -1;
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "scatter plot",
      onpointermove: (event) => this.point(this.pick(event)),
      onpointerleave: () => this.point(-1),
      onclick: (event) => this.open(this.pick(event)),
      onkeydown: (event) => this.key(event),
      onblur: () => this.point(-1),
    });
    this.tip = h("div", { class: "tip", hidden: true });
    this.box = h("div", { class: "plot" }, this.canvas, this.tip);
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  show(records) {
    this.records = records;
    this.hovered = -1;
    this.tip.hidden = true;
    this.layout = null;
    const harmful = records.reduce((count, record) => count + (page.outcome[record] >= 2), 0);
    this.canvas.setAttribute(
      "aria-label",
      `Slope against full-step gain of ${plural(records.length, "update")}, ${harmful} of them harmful. Arrow keys walk through the points by slope, Enter opens one.`,
    );
    this.draw();
  }

  /** Where every point stands; made anew when the records or the size change. */
  place(width, height) {
    const axis = (name, from, to) => {
      const values = Float32Array.from(this.records, (record) => Math.abs(page[name][record]));
      const threshold = symlogThreshold(values);
      const limit = values.reduce((most, value) => Math.max(most, value), threshold);
      const end = symlog(limit, threshold) * 1.04;
      const place = linear(-end, end, from, to);
      return { threshold, limit, at: (value) => place(symlog(value, threshold)) };
    };
    const x = axis("slope", EDGE.left, width - EDGE.right);
    const y = axis("gain", height - EDGE.bottom, EDGE.top);
    const xs = Float32Array.from(this.records, (record) => x.at(page.slope[record]));
    const ys = Float32Array.from(this.records, (record) => y.at(page.gain[record]));
    this.layout = { width, height, x, y, xs, ys };
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    if (!this.layout || this.layout.width !== width || this.layout.height !== height) this.place(width, height);
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    const paint = this.canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.clearRect(0, 0, width, height);
    this.axes(paint);
    this.points(paint, ratio);
    if (this.hovered >= 0) this.ring(paint, this.hovered);
  }

  axes(paint) {
    const { width, height, x, y } = this.layout;
    const [right, bottom] = [width - EDGE.right, height - EDGE.bottom];
    paint.font = `11px ${colour("sans")}`;
    paint.lineWidth = 1;
    // Below the horizontal axis, right of the vertical one: uphill at first, lower in the end.
    paint.fillStyle = colour("finite-soft");
    paint.fillRect(x.at(0), y.at(0), right - x.at(0), bottom - y.at(0));
    paint.fillStyle = colour("soft");
    paint.textAlign = "center";
    const rule = (tick, ...ends) => {
      paint.strokeStyle = colour(tick.value === 0 ? "line-strong" : "line");
      paint.stroke(new Path2D(`M${ends[0]},${ends[1]} L${ends[2]},${ends[3]}`));
    };
    for (const { tick, at } of spaced(x, 34)) {
      rule(tick, at, EDGE.top, at, bottom);
      paint.fillText(tick.text, at, bottom + 16);
    }
    paint.textAlign = "right";
    for (const { tick, at } of spaced(y, 14)) {
      rule(tick, EDGE.left, at, right, at);
      paint.fillText(tick.text, EDGE.left - 8, at + 4);
    }
    paint.textAlign = "center";
    paint.font = `12px ${colour("sans")}`;
    paint.fillText("slope A, nats", (EDGE.left + right) / 2, height - 8);
    paint.save();
    paint.translate(13, (EDGE.top + bottom) / 2);
    paint.rotate(-Math.PI / 2);
    paint.fillText("gain of the full step ΔU, nats", 0, 0);
    paint.restore();
  }

  points(paint, ratio) {
    const { xs, ys } = this.layout;
    const crowd = this.records.length > 4000;
    paint.globalAlpha = crowd ? 0.62 : 0.85;
    for (const code of [0, 1, 2, 3]) {
      const sprite = stamp(code, crowd ? 2.4 : 3.6, ratio);
      const half = sprite.width / ratio / 2;
      for (let i = 0; i < xs.length; i++) {
        if (page.outcome[this.records[i]] === code) paint.drawImage(sprite, xs[i] - half, ys[i] - half, 2 * half, 2 * half);
      }
    }
    paint.globalAlpha = 1;
  }

  ring(paint, index) {
    paint.strokeStyle = colour("ink");
    paint.lineWidth = 2;
    const shape = new Path2D();
    shape.arc(this.layout.xs[index], this.layout.ys[index], 8, 0, 2 * Math.PI);
    paint.stroke(shape);
  }

  /** The nearest point within reach; of points at one place the failure, which is drawn last. */
  pick(event) {
    const { xs, ys } = this.layout;
    const frame = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    let [best, nearest] = [-1, REACH * REACH];
    for (let i = 0; i < xs.length; i++) {
      const distance = (xs[i] - px) ** 2 + (ys[i] - py) ** 2 - page.outcome[this.records[i]] * 1e-3;
      if (distance < nearest) [best, nearest] = [i, distance];
    }
    return best;
  }

  point(index) {
    if (index === this.hovered) return;
    this.hovered = index;
    this.canvas.classList.toggle("pointing", index >= 0);
    this.draw();
    this.tip.hidden = index < 0;
    if (index < 0) return;
    replace(this.tip, tipText(this.records[index]));
    const { xs, ys, width, height } = this.layout;
    const side = (at, size, before, after) => (at > size / 2 ? { [before]: "auto", [after]: `${size - at + 12}px` } : { [before]: `${at + 12}px`, [after]: "auto" });
    Object.assign(this.tip.style, side(xs[index], width, "left", "right"), side(ys[index], height, "top", "bottom"));
  }

  open(index) {
    if (index >= 0) this.opened(this.records[index]);
  }

  key(event) {
    const step = STEPS.get(event.key);
    if (event.key === "Enter" && this.hovered >= 0) this.open(this.hovered);
    if (!step || !this.records.length) return;
    event.preventDefault();
    const order = [...this.layout.xs.keys()].sort((a, b) => this.layout.xs[a] - this.layout.xs[b]);
    const at = this.hovered < 0 ? (step > 0 ? -1 : order.length) : order.indexOf(this.hovered);
    const next = Math.min(Math.max(at + step, 0), order.length - 1);
    this.point(order[next]);
    announce(recordWords(this.records[order[next]]));
  }
}

/** Ticks from the largest inwards to zero, without those whose labels would touch; zero always stays. */
function spaced({ threshold, limit, at }, distance) {
  const ticks = symlogTicks(threshold, limit, 3).map((tick) => ({ tick, at: Math.round(at(tick.value)) + 0.5 }));
  const kept = ticks.filter(({ tick }) => tick.value === 0);
  for (const candidate of ticks.sort((a, b) => Math.abs(b.tick.value) - Math.abs(a.tick.value))) {
    if (kept.every((other) => Math.abs(other.at - candidate.at) >= distance)) kept.push(candidate);
  }
  return kept;
}

const OUTCOME_COLOURS = ["progressing", "neutral", "directional", "finite"];

/** One mark of an outcome, drawn once and stamped everywhere; shapes differ as well as colours. */
function stamp(code, radius, ratio) {
  const size = Math.ceil((radius + 1.5) * 2 * ratio);
  const sprite = new OffscreenCanvas(size, size);
  const paint = sprite.getContext("2d");
  paint.scale(ratio, ratio);
  paint.translate(size / ratio / 2, size / ratio / 2);
  paint.fillStyle = colour(OUTCOME_COLOURS[code]);
  const shape = new Path2D(code === 2 ? `M${-1.1 * radius},${-0.9 * radius} h${2.2 * radius} L0,${1.1 * radius} Z` : "");
  if (code === 1) shape.rect(-radius * 0.8, -radius * 0.8, radius * 1.6, radius * 1.6);
  if (code === 0 || code === 3) shape.arc(0, 0, code ? radius : radius * 0.8, 0, 2 * Math.PI);
  paint.fill(shape);
  return sprite;
}

function recordWords(record) {
  const set = page.sets[page.setOf[record]];
  return `${set.snippets[page.row[record]]}. ${update(page.transition[record])}, ${OUTCOMES[page.outcome[record]]}, slope ${signed(page.slope[record])}, gain ${signed(page.gain[record])}`;
}

function tipText(record) {
  const set = page.sets[page.setOf[record]];
  const outcome = page.outcome[record];
  const run = page.meta.runs.length > 1 ? `${set.run.label} · ` : "";
  return [
    h("p", {}, set.snippets[page.row[record]]),
    h("p", { class: "where" }, `${run}${set.title} · ${update(page.transition[record])}`),
    h("p", { class: "row" }, h("span", {}, swatch(outcome), ` ${OUTCOMES[outcome]}`)),
    h("p", { class: "row number" }, h("span", {}, `A ${signed(page.slope[record])}`), h("span", {}, `ΔU ${signed(page.gain[record])}`)),
  ];
}
