// Charts of series: the mean of all workers with its range, some workers, and marks for events.

import { element, reconcile, setText } from "./dom.js";
import { bytes, duration, number } from "./format.js";
import { get, ofRun } from "./api.js";

const HEIGHT = 200;
const POINTS_MAX = 1_000;
const NAMES_AT_ONCE = 15;
const EVERY_MILLISECONDS = 2_000;
const TOTAL = "master/update_bytes"; // What the horizontal axis of bytes is made of.
// Distinct for most kinds of eyes, on both grounds (after Okabe and Ito, 2008).
const COLOURS = ["#d55e00", "#009e73", "#cc79a7", "#0072b2", "#e69f00", "#56b4e9", "#8a6d00", "#7a5195"];
const MARK_PIXELS = 4;

const TONES = {
  lost: "bad", expelled: "bad", quarantined: "bad", "checkpoint failed": "bad", repaired: "bad",
  joined: "good", back: "good", began: "good", released: "good", finished: "good",
  left: "warn", outlying: "warn", stopping: "warn",
};

const AXES = {
  step: (value) => number(value),
  seconds: (value) => (value === 0 ? "0 s" : duration(value)),
  bytes: (value) => bytes(value),
};

/** Return how an event of a kind is shown. */
export function toneOf(kind) {
  return TONES[kind] ?? "plain";
}

/** Return the colour of a worker's curves. */
export function colourOf(rank) {
  return COLOURS[rank % COLOURS.length];
}

function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** One chart, of one series. */
class Chart {
  constructor(spec, source) {
    this.spec = spec;
    this.source = source;
    this.title = element("p", { className: "title", id: `chart-${Chart.made++}`, textContent: spec.title });
    this.now = element("p", { className: "now" });
    this.plot = element("div", { className: "plot" });
    this.box = element("div", { className: "chart", role: "group", "aria-labelledby": this.title.id },
      this.title, this.now, this.plot);
    this.visible = false;
    this.curves = [];
    this.others = [];
    this.uplot = null;
    this.shape = "";
    this.isZoomed = false;
  }

  get axis() {
    return this.spec.seconds ? "seconds" : this.source.axis;
  }

  get mean() {
    return this.curves.find((curve) => curve.rank === null);
  }

  get workers() {
    return this.spec.alone ? [] : this.curves.filter((curve) => curve.rank !== null);
  }

  /** Take curves that have come, of the run and of the one beside it. */
  take(curves, others) {
    this.curves = curves;
    this.others = others;
    for (const mean of [this.mean, ...others]) {
      if (this.spec.measured && this.workers.length && mean !== undefined) joinWorkers(mean, this.workers.length);
    }
    this.draw();
  }

  draw() {
    const { axis, mean, workers, source } = this;
    this.say();
    if (mean === undefined || mean.step.length === 0) {
      this.destroy();
      return;
    }
    const positive = (values) => values.map((value) => (source.log && value <= 0 ? null : value));
    const drawn = (values) => positive(smoothed(values, this.spec.measured ? 0 : source.smoothing));
    const data = uPlot.join([
      [mean[axis], positive(mean.low), positive(mean.high), drawn(mean.mean)],
      ...workers.map((curve) => [curve[axis], drawn(curve.mean)]),
      ...this.others.map((curve) => [curve[axis], drawn(curve.mean)]),
    ]);
    const ranks = workers.map((curve) => curve.rank);
    const shape = JSON.stringify([axis, source.log, ranks, this.others.length, themed("card")]);
    if (this.uplot !== null && this.shape === shape) {
      this.uplot.setData(data, !this.isZoomed);
      if (this.isZoomed) this.uplot.redraw();
      return;
    }
    this.destroy();
    this.shape = shape;
    this.uplot = new uPlot(this.options(ranks), data, this.plot);
  }

  destroy() {
    this.uplot?.destroy();
    this.uplot = null;
    this.isZoomed = false;
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.uplot !== null && width > 0) this.uplot.setSize({ width, height: HEIGHT });
  }

  /** Say the newest values, or those at an index, also for those who do not see the curve. */
  say(index = null) {
    const { mean, workers, others, axis } = this;
    const format = this.spec.format ?? number;
    if (mean === undefined || mean.step.length === 0) {
      setText(this.now, "nothing yet");
      return;
    }
    const at = index ?? mean.mean.length - 1;
    let text = format(mean.mean[at]);
    if (workers.length > 1) text += ` (${format(mean.low[at])} to ${format(mean.high[at])})`;
    if (index !== null) text += ` at ${axis === "step" ? "step " : ""}${AXES[axis](mean[axis][at])}`;
    const other = others[0];
    if (other?.mean.length) {
      const there = index === null ? other.mean.length - 1 : nearest(other[axis], mean[axis][at]);
      text += `, beside ${format(other.mean[there])}`;
    }
    setText(this.now, text);
  }

  options(ranks) {
    const format = this.spec.format ?? number;
    const { axis, source } = this;
    const line = (stroke, width, dash) => ({ stroke, width, dash, spanGaps: true, points: { show: false } });
    const grid = { stroke: themed("grid"), width: 1 };
    const axes = { stroke: themed("dim"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(this.plot.clientWidth, 100),
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: true, y: false }, sync: { key: axis }, points: { show: false } },
      scales: { x: { time: false }, y: source.log ? { distr: 3 } : { range: this.spec.fromZero ? rangeFromZero : rangeOf } },
      axes: [
        { ...axes, size: 32, space: 80, values: (_, ticks) => ticks.map(AXES[axis]) },
        { ...axes, size: 74, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) },
      ],
      series: [
        {},
        line("transparent", 0),
        line("transparent", 0),
        line(themed("accent"), 2.5),
        ...ranks.map((rank) => line(colourOf(rank), 1)),
        ...this.others.map(() => line(themed("other"), 2.5, [6, 4])),
      ],
      bands: [{ series: [2, 1], fill: themed("band") }],
      hooks: {
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.point(plot)],
        setSelect: [(plot) => (this.isZoomed = plot.select.width > 0)],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => (this.isZoomed = false))],
      },
    };
  }

  point(plot) {
    const { idx, left } = plot.cursor;
    const isHere = plot.over.matches(":hover");
    const event = isHere && left >= 0 ? this.eventAt(plot, left) : undefined;
    if (event !== undefined) setText(this.now, `${event.kind}: ${event.text}`);
    else if (idx === null || idx === undefined || left < 0) this.say();
    else if (this.mean !== undefined) this.say(nearest(this.mean[this.axis], plot.data[0][idx]));
  }

  eventAt(plot, left) {
    const isNear = ([at]) => Math.abs(at - plot.bbox.left - left * devicePixelRatio) < MARK_PIXELS * devicePixelRatio;
    return this.places(plot).findLast(isNear)?.[1];
  }

  /** Return where the events are, in pixels of the canvas, as far as they are on it. */
  places(plot) {
    const { mean, axis } = this;
    const { min, max } = plot.scales.x;
    if (mean === undefined) return [];
    return this.source.events
      .filter((event) => event.seconds !== null)
      .map((event) => [axis === "seconds" ? event.seconds : interpolated(mean.seconds, mean[axis], event.seconds), event])
      .filter(([at]) => at >= min && at <= max)
      .map(([at, event]) => [plot.valToPos(at, "x", true), event]);
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const size = MARK_PIXELS * devicePixelRatio;
    ctx.save();
    for (const [at, event] of this.places(plot)) {
      const tone = toneOf(event.kind);
      ctx.strokeStyle = ctx.fillStyle = themed(tone === "plain" ? "dim" : tone);
      ctx.globalAlpha = 0.8;
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
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
  constructor() {
    this.axis = "step";
    this.log = false;
    this.smoothing = 0;
    this.frozen = false;
    this.events = [];
    this.run = null;
    this.other = null; // Another run, drawn beside it.
    this.ranks = null; // The first ones, unless someone has chosen.
    this.charts = new Map();
    this.isAsking = false;
    this.askedAt = 0;
    this.onFailure = () => {};
    this.seen = new IntersectionObserver((changes) => {
      for (const change of changes) {
        const chart = this.charts.get(change.target.dataset.key);
        if (chart !== undefined) chart.visible = change.isIntersecting;
      }
      void this.refresh({ onlyEmpty: true });
    }, { rootMargin: "150px" });
    this.sized = new ResizeObserver((changes) => {
      for (const change of changes) this.charts.get(change.target.dataset.key)?.resize();
    });
  }

  /** Show charts in a place: of [name, spec]. */
  place(parent, specs) {
    const entries = specs.map(([name, spec]) => [`${parent.id}/${name}`, { ...spec, name }]);
    const wanted = new Set(entries.map(([key]) => key));
    for (const [key, chart] of this.charts) {
      if (!key.startsWith(`${parent.id}/`) || wanted.has(key)) continue;
      this.seen.unobserve(chart.box);
      this.sized.unobserve(chart.box);
      chart.destroy();
      this.charts.delete(key);
    }
    reconcile(parent, entries, (spec) => {
      const key = `${parent.id}/${spec.name}`;
      const chart = new Chart(spec, this);
      chart.box.dataset.key = key;
      this.charts.set(key, chart);
      this.seen.observe(chart.box);
      this.sized.observe(chart.box);
      return chart.box;
    }, () => {});
  }

  /** Follow another run. */
  follow(run) {
    this.run = run;
    this.events = [];
    this.ranks = null;
    this.other = null;
    for (const chart of this.charts.values()) chart.take([], []);
  }

  /** Draw all charts again: another axis, theme or event. */
  redraw() {
    for (const chart of this.charts.values()) if (chart.visible) chart.draw();
  }

  /** Ask for all curves again: of other ranks, or beside another run. */
  askAgain() {
    this.askedAt = 0;
    void this.refresh();
  }

  /** Ask for the curves of the charts on the screen, if it is time, or of those that have none. */
  async refresh({ onlyEmpty = false } = {}) {
    const wanted = [...this.charts.values()].filter((chart) => chart.visible && (!onlyEmpty || !chart.curves.length));
    const isDue = onlyEmpty || Date.now() - this.askedAt >= EVERY_MILLISECONDS;
    const isStill = this.frozen && !onlyEmpty && this.askedAt > 0;
    if (this.run === null || this.isAsking || !isDue || isStill || !wanted.length || document.hidden) return;
    this.isAsking = true;
    this.askedAt = Date.now();
    const { run, other } = this;
    try {
      for (let at = 0; at < wanted.length; at += NAMES_AT_ONCE) {
        const some = wanted.slice(at, at + NAMES_AT_ONCE);
        const curves = await this.ask(run, some, this.ranks === null ? null : [...this.ranks].join(","));
        const others = other === null ? [] : await this.ask(other, some, "");
        if (run !== this.run || other !== this.other) return;
        for (const chart of some) chart.take(curves.filter(isOf(chart)), others.filter(isOf(chart)));
      }
    } catch (error) {
      this.onFailure(error);
    } finally {
      this.isAsking = false;
    }
  }

  async ask(run, some, ranks) {
    const query = new URLSearchParams(some.map((chart) => ["name", chart.spec.name]));
    query.append("name", TOTAL);
    const widest = Math.max(...some.map((chart) => chart.plot.clientWidth), 100);
    query.append("points", Math.min(Math.round(widest), POINTS_MAX));
    if (ranks !== null) query.append("ranks", ranks);
    const { curves } = await get(ofRun(run, `/series?${query}`));
    const total = curves.find((curve) => curve.name === TOTAL);
    for (const curve of curves) {
      curve.seconds = rising(curve.seconds);
      curve.bytes = curve.seconds.map((at) => (total === undefined ? 0 : interpolated(total.seconds, total.mean, at)));
    }
    return curves;
  }
}

function isOf(chart) {
  return (curve) => curve.name === chart.spec.name;
}

/**
 * Have each point of a mean be one of the last points, as many as there are workers: what sessions
 * report themselves comes once a second, from each of them at another step.
 */
function joinWorkers(mean, workers) {
  const last = (values, at) => values.slice(Math.max(at - workers + 1, 0), at + 1).filter((value) => value !== null);
  const average = (values) => (values.length ? values.reduce((a, b) => a + b) / values.length : null);
  mean.low = mean.low.map((_, at, all) => Math.min(...last(all, at)));
  mean.high = mean.high.map((_, at, all) => Math.max(...last(all, at)));
  mean.mean = mean.mean.map((_, at, all) => average(last(all, at)));
}

/** Return the seconds of buckets, which are those of their last scalars, so that none is earlier. */
function rising(values) {
  let last = -Infinity;
  return values.map((value) => (last = Math.max(last, value ?? last)));
}

/** Return values as an exponential mean, which begins with the first one (as TensorBoard's). */
function smoothed(values, weight) {
  let [mean, seen] = [0, 0];
  if (weight === 0) return values;
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    seen = weight * seen + 1 - weight;
    return mean / seen;
  });
}

/** Return what a curve of sorted x has at a place, between its points. */
function interpolated(xs, ys, x) {
  const at = nearestBelow(xs, x);
  if (at < 0) return ys[0];
  if (at + 1 >= xs.length) return ys[at];
  const part = xs[at + 1] > xs[at] ? (x - xs[at]) / (xs[at + 1] - xs[at]) : 0;
  return ys[at] + part * (ys[at + 1] - ys[at]);
}

function nearestBelow(sorted, value) {
  let [low, high] = [-1, sorted.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle;
    else high = middle;
  }
  return low;
}

function nearest(sorted, value) {
  const at = Math.max(nearestBelow(sorted, value), 0);
  const after = Math.min(at + 1, sorted.length - 1);
  return Math.abs(sorted[after] - value) < Math.abs(sorted[at] - value) ? after : at;
}

/** A range for what is counted. */
function rangeFromZero(_, low, high) {
  return [0, Math.max(1, 1.1 * (high ?? 0))];
}

/** A range that is never empty, with some room above and below. */
function rangeOf(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const room = high > low ? 0.05 * (high - low) : Math.max(Math.abs(high) * 0.1, 1e-9);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
