// One run's number of every question against the other run's: both axes alike, so that equal numbers lie on a line.

import { announce, colour, h, replace, swatch } from "./dom.js";
import { axisFormat, linear, number, plural, signed, symlog, symlogThreshold, symlogTicks, ticks } from "./numbers.js";
import { OUTCOMES, page } from "./data.js";

export const SCALES = new Map([
  ["gain", { title: "gain of the full step ΔU", unit: "nats", symmetric: true }],
  ["slope", { title: "slope A", unit: "nats", symmetric: true }],
  ["quadratic", { title: "quadratic coefficient Q", unit: "nats", symmetric: true }],
  ["before", { title: "utility before the update", unit: "nats" }],
  ["scale", { title: "predicted scale α̂" }],
  ["optimum", { title: "best scale α* on the grid" }],
]);

const REACH = 12;
const EDGE = { left: 62, right: 14, top: 12, bottom: 46 };
const STEPS = new Map([["ArrowRight", 1], ["ArrowDown", 1], ["ArrowLeft", -1], ["ArrowUp", -1], ["Home", -Infinity], ["End", Infinity]]);
const COLOURS = ["progressing", "neutral", "directional", "finite"];

export class PairScatter {
  constructor({ names, column, opened }) {
    Object.assign(this, { names, column, opened, about: SCALES.get(column), hovered: -1, records: [], kept: new Set() });
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

  /** All pairs set the axes; those that pass the filter are drawn in full. */
  show(records, kept) {
    this.kept = new Set(kept);
    this.records = records.filter((record) => record.every((place) => Number.isFinite(page[this.column][place])));
    const label = `${this.about.title}: ${this.names[1]} against ${this.names[0]}, ${plural(this.records.length, "question")}. Arrow keys walk through the shown ones, Enter opens one.`;
    this.canvas.setAttribute("aria-label", label);
    this.layout = null;
    this.draw();
  }

  place(width, height) {
    const values = this.records.map((record) => record.map((place) => page[this.column][place]));
    const flat = values.flat();
    const axis = this.about.symmetric ? symmetricAxis(flat) : linearAxis(flat);
    const x = linear(...axis.range, EDGE.left, width - EDGE.right);
    const y = linear(...axis.range, height - EDGE.bottom, EDGE.top);
    const points = values.map(([first, second]) => [x(axis.at(first)), y(axis.at(second))]);
    this.layout = { width, height, axis, x: (value) => x(axis.at(value)), y: (value) => y(axis.at(value)), points };
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    if (!this.layout || this.layout.width !== width || this.layout.height !== height) this.place(width, height);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const paint = this.canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.axes(paint);
    this.marks(paint);
  }

  axes(paint) {
    const { width, height, axis, x, y } = this.layout;
    const [right, bottom] = [width - EDGE.right, height - EDGE.bottom];
    const stroke = (name, x1, y1, x2, y2, dash = []) => {
      paint.strokeStyle = colour(name);
      paint.setLineDash(dash);
      paint.beginPath();
      paint.moveTo(x1, y1);
      paint.lineTo(x2, y2);
      paint.stroke();
      paint.setLineDash([]);
    };
    paint.font = `11px ${colour("sans")}`;
    paint.lineWidth = 1;
    paint.fillStyle = colour("soft");
    const kept = { x: [], y: [] };
    for (const { value, text } of axis.ticks) {
      const name = value === 0 && this.about.symmetric ? "line-strong" : "line";
      const [px, py] = [Math.round(x(value)) + 0.5, Math.round(y(value)) + 0.5];
      if (kept.x.every((other) => Math.abs(other - px) >= 36)) {
        kept.x.push(px);
        stroke(name, px, EDGE.top, px, bottom);
        paint.textAlign = "center";
        paint.fillText(text, px, bottom + 16);
      }
      if (kept.y.every((other) => Math.abs(other - py) >= 15)) {
        kept.y.push(py);
        stroke(name, EDGE.left, py, right, py);
        paint.textAlign = "right";
        paint.fillText(text, EDGE.left - 7, py + 4);
      }
    }
    stroke("soft", EDGE.left, bottom, right, EDGE.top, [4, 4]);
    paint.textAlign = "center";
    paint.font = `12px ${colour("sans")}`;
    const unit = this.about.unit ? `, ${this.about.unit}` : "";
    paint.fillText(`first: ${short(this.names[0])}${unit}`, (EDGE.left + right) / 2, height - 8);
    paint.save();
    paint.translate(13, (EDGE.top + bottom) / 2);
    paint.rotate(-Math.PI / 2);
    paint.fillText(`second: ${short(this.names[1])}${unit}`, 0, 0);
    paint.restore();
  }

  marks(paint) {
    const order = [...this.records.keys()].sort((a, b) => this.weight(a) - this.weight(b));
    for (const at of order) {
      const [px, py] = this.layout.points[at];
      const weight = this.weight(at);
      const code = page.outcome[this.records[at][1]];
      paint.globalAlpha = weight ? 0.85 : 0.35;
      paint.fillStyle = colour(weight === 2 ? COLOURS[code] : "progressing");
      paint.beginPath();
      shape(paint, px, py, weight === 2 ? code : 0, weight ? 3.6 : 2);
      paint.fill();
    }
    paint.globalAlpha = 1;
    if (this.hovered < 0) return;
    paint.strokeStyle = colour("ink");
    paint.lineWidth = 2;
    paint.beginPath();
    paint.arc(...this.layout.points[this.hovered], 8, 0, 2 * Math.PI);
    paint.stroke();
  }

  /** 0: does not pass the filter; 1: passes, same outcome; 2: passes, another outcome. */
  weight(at) {
    const record = this.records[at];
    return this.kept.has(record) ? 1 + (page.outcome[record[0]] !== page.outcome[record[1]]) : 0;
  }

  pick(event) {
    const frame = this.canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
    let best = -1;
    let nearest = REACH * REACH;
    this.layout?.points.forEach(([x, y], at) => {
      const distance = (x - px) ** 2 + (y - py) ** 2 + (this.weight(at) ? 0 : REACH);
      if (distance < nearest) [nearest, best] = [distance, at];
    });
    return best;
  }

  point(at) {
    if (at === this.hovered) return;
    this.hovered = at;
    this.tip.hidden = at < 0;
    this.canvas.classList.toggle("pointing", at >= 0);
    this.draw();
    if (at < 0) return;
    replace(this.tip, this.about_(this.records[at]));
    const [x, y] = this.layout.points[at];
    const { width, height } = this.layout;
    const [right, low] = [x > width / 2, y > height / 2];
    Object.assign(this.tip.style, { left: right ? "auto" : `${x + 14}px`, right: right ? `${width - x + 14}px` : "auto", top: low ? "auto" : `${y + 10}px`, bottom: low ? `${height - y + 10}px` : "auto" });
  }

  about_([first, second]) {
    const set = page.sets[page.setOf[first]];
    const side = (name, place) => h("p", { class: "row" }, h("span", {}, swatch(page.outcome[place]), ` ${name}: ${OUTCOMES[page.outcome[place]]}`), h("span", { class: "number" }, this.worded(place)));
    return [h("p", {}, set.snippets[page.row[first]] || set.ids[page.row[first]]), side("first", first), side("second", second)];
  }

  worded(place) {
    return (this.about.symmetric ? signed : number)(page[this.column][place]);
  }

  open(at) {
    if (at >= 0) this.opened(this.records[at]);
  }

  key(event) {
    const step = STEPS.get(event.key);
    if (event.key === "Enter") this.open(this.hovered);
    const order = [...this.records.keys()].filter((at) => this.weight(at)).sort((a, b) => this.layout.points[a][0] - this.layout.points[b][0]);
    if (!step || !order.length) return;
    event.preventDefault();
    const here = order.indexOf(this.hovered);
    const next = order[Math.min(Math.max((here < 0 && step < 0 ? order.length : here) + step, 0), order.length - 1)];
    this.point(next);
    const [first, second] = this.records[next];
    const set = page.sets[page.setOf[first]];
    announce(`${set.snippets[page.row[first]]}. First ${this.worded(first)}, ${OUTCOMES[page.outcome[first]]}; second ${this.worded(second)}, ${OUTCOMES[page.outcome[second]]}`);
  }
}

const short = (text) => (text.length > 28 ? `${text.slice(0, 17)}…${text.slice(-9)}` : text);

function symmetricAxis(values) {
  const sizes = Float32Array.from(values, Math.abs);
  const threshold = symlogThreshold(sizes);
  const limit = sizes.reduce((most, value) => Math.max(most, value), threshold);
  const end = symlog(limit, threshold) * 1.04;
  const inwards = symlogTicks(threshold, limit, 3).sort((a, b) => (a.value === 0 ? -1 : b.value === 0 ? 1 : Math.abs(b.value) - Math.abs(a.value)));
  return { range: [-end, end], at: (value) => symlog(value, threshold), ticks: inwards };
}

function linearAxis(values) {
  const [low, high] = [Math.min(...values, Infinity), Math.max(...values, -Infinity)];
  const [from, to] = values.length ? [low, high] : [0, 1];
  const pad = (to - from || 1) * 0.04;
  const places = ticks(from, to, 5);
  const format = axisFormat(places);
  return { range: [from - pad, to + pad], at: (value) => value, ticks: places.map((value) => ({ value, text: format.text(value) })) };
}

function shape(paint, x, y, code, radius) {
  if (code === 1) paint.rect(x - radius * 0.8, y - radius * 0.8, radius * 1.6, radius * 1.6);
  else if (code === 2) {
    paint.moveTo(x - radius * 1.1, y - radius * 0.9);
    paint.lineTo(x + radius * 1.1, y - radius * 0.9);
    paint.lineTo(x, y + radius * 1.1);
  } else paint.arc(x, y, radius, 0, 2 * Math.PI);
}
