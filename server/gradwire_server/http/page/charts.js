// Charts of series: the mean of all workers with its range, some workers, another run, and events.

import { element, reconcile, setText } from "./dom.js";
import { bytes, duration, number } from "./format.js";
import { get, ofRun } from "./api.js";
import { bytesUpTo, lastUpTo, placeOf, places, positive, rangeOf, smoothed } from "./curves.js";
import { toneOf } from "./events.js";

const POINTS_MAX = 1_000;
const NAMES_AT_ONCE = 12;
const EVERY_MILLISECONDS = 2_000;
const BYTES = "master/update_bytes_per_second";
// Distinct for most kinds of eyes, on both grounds (after Okabe and Ito, 2008).
const COLOURS = ["#d55e00", "#009e73", "#cc79a7", "#0072b2", "#e69f00", "#56b4e9", "#8a6d00", "#7a5195"];

/** Return the colour of a worker's curves. */
export function colourOf(rank) {
  return COLOURS[rank % COLOURS.length];
}

function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** One chart, of one series. `spec`: title, format, and whether it is `alone`, of seconds, `log`. */
class Chart {
  constructor(name, spec, source) {
    Object.assign(this, { name, spec, source, visible: false, curves: [], beside: [], shape: "", uplot: null });
    this.title = element("h3", { id: `chart-${Chart.made++}`, textContent: spec.title });
    this.now = element("p", { className: "now", textContent: "nothing yet" });
    this.plot = element("div", {
      className: "plot", tabIndex: 0, role: "application", "aria-roledescription": "chart",
      "aria-label": `${spec.title}: arrow keys read its points`,
    });
    this.box = element("div", { className: "chart", role: "group", "aria-labelledby": this.title.id }, this.title, this.now, this.plot);
    this.plot.addEventListener("keydown", (event) => this.walk(event));
    this.plot.addEventListener("focus", () => this.now.setAttribute("aria-live", "polite"));
    this.plot.addEventListener("blur", () => this.leave());
  }

  get axis() {
    return this.spec.seconds ? "seconds" : this.source.axis;
  }

  get isLog() {
    return this.spec.log || (this.source.log && !this.spec.seconds);
  }

  get mean() {
    return this.curves.find((curve) => curve.rank === null);
  }

  get workers() {
    return this.spec.alone ? [] : this.curves.filter((curve) => curve.rank !== null);
  }

  /** Draw the curves, which have come or are to be shown otherwise. */
  draw() {
    if (this.mean === undefined || this.mean.step.length === 0) {
      this.destroy();
      setText(this.now, "nothing yet");
      return;
    }
    const { source, axis, mean, workers } = this;
    const shown = (values) => (this.isLog ? positive(values) : values);
    const smooth = (values) => shown(smoothed(values, this.spec.seconds ? 0 : source.smoothing));
    const at = (curve, run) => places(curve, axis, source.totals.get(run));
    const tables = [
      [at(mean, source.run), shown(mean.low), shown(mean.high), smooth(mean.mean)],
      ...workers.map((curve) => [at(curve, source.run), smooth(curve.mean)]),
      ...this.beside.map((curve) => [at(curve, source.other), smooth(curve.mean)]),
    ];
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const shape = JSON.stringify([axis, this.isLog, workers.map((curve) => curve.rank), this.beside.length, themed("card")]);
    if (this.uplot === null || this.shape !== shape) {
      this.destroy();
      this.shape = shape;
      this.uplot = new uPlot(this.options(), data, this.plot);
    } else {
      this.uplot.setData(data);
    }
    if (document.activeElement !== this.plot) this.say(null);
  }

  destroy() {
    this.uplot = this.uplot?.destroy() ?? null;
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (this.uplot !== null && width > 0) this.uplot.setSize({ width, height });
  }

  /** Say the values at a point of the mean, or the newest: also for those who do not see the curve. */
  say(index) {
    const { mean, workers } = this;
    const format = this.spec.format ?? number;
    const at = index ?? mean.mean.length - 1;
    const value = (it) => (it === null ? "no finite number" : format(it));
    let text = value(mean.mean[at]);
    if (workers.length > 1 && mean.low[at] !== mean.high[at]) text = `mean ${text}, from ${value(mean.low[at])} to ${value(mean.high[at])}`;
    if (index !== null) text += ` at ${this.axis === "steps" ? `step ${mean.step[at]}` : this.shown(places(mean, this.axis, this.total)[at])}`;
    setText(this.now, text);
  }

  get total() {
    return this.source.totals.get(this.source.run);
  }

  /** Return a place on the horizontal axis as a text. */
  shown(place) {
    return { steps: number, seconds: duration, bytes }[this.axis](place);
  }

  options() {
    const line = (stroke, width, more) => ({ stroke, width, spanGaps: true, points: { show: false }, ...more });
    const grid = { stroke: themed("grid"), width: 1 };
    const text = { stroke: themed("dim"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const format = this.spec.format ?? number;
    const range = (_, low, high) => (low > 0 ? uPlot.rangeLog(low, high, 10, false) : [0.1, 1]);
    return {
      width: Math.max(this.plot.clientWidth, 100),
      height: this.plot.clientHeight,
      legend: { show: false },
      cursor: { drag: { x: true, y: false } },
      scales: {
        x: { time: false },
        y: this.isLog ? { distr: 3, range } : { range: (_, low, high) => rangeOf(low, high) },
      },
      axes: [
        { ...text, size: 30, space: 70, values: (_, ticks) => ticks.map((tick) => this.shown(tick)) },
        { ...text, size: 70, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) },
      ],
      series: [
        {}, line("transparent", 0), line("transparent", 0), line(themed("accent"), 2.5),
        ...this.workers.map((curve) => line(colourOf(curve.rank), 1, { alpha: 0.6 })),
        ...this.beside.map(() => line(themed("beside"), 2, { dash: [6, 4] })),
      ],
      bands: [{ series: [2, 1], fill: themed("band") }],
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.point(plot)],
        setSelect: [() => this.source.onZoom()],
      },
    };
  }

  /** Say what is below the cursor: an event, or the point of the mean. */
  point({ cursor: { idx, left }, data }) {
    if (this.mean === undefined || !this.uplot) return;
    const event = left >= 0 ? this.eventAt(left) : undefined;
    if (event !== undefined) setText(this.now, `${event.kind}: ${event.text}`);
    else if (idx === null || idx === undefined || left < 0) this.say(null);
    else this.say(lastUpTo(places(this.mean, this.axis, this.total), data[0][idx]));
  }

  /** Move the cursor by the keyboard. */
  walk(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || this.uplot === null) return;
    event.preventDefault();
    const at = places(this.mean, this.axis, this.total);
    this.index = Math.min(Math.max((this.index ?? at.length - 1) + by, 0), at.length - 1);
    const left = this.uplot.valToPos(at[this.index], "x");
    this.uplot.setCursor({ left, top: 10 }, false);
    this.say(this.index);
  }

  leave() {
    this.now.removeAttribute("aria-live");
    this.index = undefined;
    this.uplot?.setCursor({ left: -10, top: -10 });
  }

  eventAt(left) {
    const edge = this.uplot.bbox.left / devicePixelRatio;
    return this.marks(this.uplot).findLast(([at]) => Math.abs(at / devicePixelRatio - edge - left) < 4)?.[1];
  }

  /** Return where the events are, in pixels of the canvas, as far as they are on it. */
  marks(plot) {
    const { min, max } = plot.scales.x;
    const { events, began } = this.source; // Where it has not begun, there is nothing to draw.
    return events
      .map((event) => [placeOf(event.unix_time - began, this.mean, this.axis, this.total), event])
      .filter(([place]) => place >= min && place <= max)
      .map(([place, event]) => [plot.valToPos(place, "x", true), event]);
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const size = 4 * devicePixelRatio;
    ctx.save();
    ctx.globalAlpha = 0.7;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([size, size]);
    for (const [at, event] of this.marks(plot)) {
      ctx.strokeStyle = ctx.fillStyle = themed(toneOf(event.kind));
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(at - size, bbox.top);
      ctx.lineTo(at + size, bbox.top);
      ctx.lineTo(at, bbox.top + 1.6 * size);
      ctx.fill();
    }
    ctx.restore();
  }
}
Chart.made = 0;

/** All charts: asks for the curves of those that are on the screen, now and then. */
export class Charts {
  constructor({ onFailure, onZoom }) {
    Object.assign(this, { onFailure, onZoom, axis: "steps", log: false, smoothing: 0, frozen: false });
    this.charts = new Map();
    this.isAsking = false;
    this.askedAt = -Infinity;
    this.follow(null);
    this.seen = new IntersectionObserver((changes) => {
      for (const { target, isIntersecting } of changes) {
        const chart = this.charts.get(target.dataset.key);
        if (chart === undefined) continue;
        chart.visible = isIntersecting;
        if (isIntersecting && chart.curves.length > 0) chart.draw();
      }
      void this.refresh({ onlyNew: true });
    }, { rootMargin: "100px" });
    this.sized = new ResizeObserver((changes) => {
      for (const { target } of changes) this.charts.get(target.dataset.key)?.resize();
    });
  }

  /** Show charts in a place: of [name, spec]. */
  place(parent, specs) {
    const entries = specs.map(([name, spec]) => [`${parent.id}/${name}`, { name, spec }]);
    const wanted = new Set(entries.map(([key]) => key));
    for (const [key, chart] of this.charts) {
      if (!key.startsWith(`${parent.id}/`) || wanted.has(key)) continue;
      this.seen.unobserve(chart.box);
      this.sized.unobserve(chart.box);
      chart.destroy();
      this.charts.delete(key);
    }
    reconcile(parent, entries, ({ name, spec }) => {
      const chart = new Chart(name, spec, this);
      this.charts.set(`${parent.id}/${name}`, chart);
      chart.box.dataset.key = `${parent.id}/${name}`;
      this.seen.observe(chart.box);
      this.sized.observe(chart.box);
      return chart.box;
    }, () => {});
  }

  /** Follow another run. */
  follow(run) {
    this.run = run;
    this.other = null; // The run that is shown beside it.
    this.ranks = null; // The first ones, unless someone has chosen.
    this.events = [];
    this.began = null; // When seconds begin, by the master's clock.
    this.totals = new Map(); // Of each run: bytes over time.
    this.forget();
  }

  /** Ask anew for all curves: other workers, or another run beside it. */
  forget() {
    for (const chart of this.charts.values()) {
      chart.curves = chart.beside = [];
      chart.draw();
    }
    void this.refresh({ now: true });
  }

  /** Draw all charts again: another axis, theme or event. */
  redraw() {
    for (const chart of this.charts.values()) if (chart.visible) chart.draw();
  }

  /** Ask for the curves of the charts on the screen, if it is time, or of those that have none. */
  async refresh({ now = false, onlyNew = false } = {}) {
    const due = now || onlyNew || (!this.frozen && performance.now() - this.askedAt >= EVERY_MILLISECONDS);
    if (this.run === null || this.isAsking || !due || document.hidden) return;
    const wanted = [...this.charts.values()].filter((chart) => chart.visible && (!onlyNew || chart.curves.length === 0));
    if (wanted.length === 0) return;
    this.isAsking = true;
    this.askedAt = performance.now(); // The time of day may be set, and go back.
    try {
      await this.fetchTotals();
      for (let at = 0; at < wanted.length; at += NAMES_AT_ONCE) await this.fetchCurves(wanted.slice(at, at + NAMES_AT_ONCE));
    } catch (error) {
      this.onFailure(error);
    } finally {
      this.isAsking = false;
    }
  }

  async fetchCurves(charts) {
    const { run, other } = this;
    const names = charts.map((chart) => chart.name);
    const points = Math.min(Math.max(...charts.map((chart) => chart.plot.clientWidth), 100), POINTS_MAX);
    const ranks = this.ranks === null ? [] : [["ranks", [...this.ranks].join(",")]];
    const found = await series(run, names, points, ranks);
    const beside = other === null ? [] : await series(other, names, points, [["ranks", ""]]);
    if (run !== this.run || other !== this.other) return;
    for (const chart of charts) {
      const of = (curve) => curve.name === chart.name && curve.step.length > 0;
      chart.curves = found.filter(of);
      chart.beside = chart.spec.alone ? [] : beside.filter(of);
      chart.draw();
    }
  }

  /** Where bytes are the axis, ask how many each run has received so far. */
  async fetchTotals() {
    if (this.axis !== "bytes") return;
    for (const run of [this.run, this.other]) {
      if (run === null) continue;
      const [rate] = await series(run, [BYTES], POINTS_MAX, []);
      if (rate?.seconds.length) this.totals.set(run, bytesUpTo(rate));
    }
  }
}

async function series(run, names, points, more) {
  const query = new URLSearchParams([...names.map((name) => ["name", name]), ["points", Math.round(points)], ...more]);
  return (await get(ofRun(run, `/series?${query}`))).curves;
}
