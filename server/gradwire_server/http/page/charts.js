// Charts of series: the mean of all workers with its range, some workers, and marks for events.

import { byId, element, reconcile, setText } from "./dom.js";
import { number } from "./format.js";
import { get, ofRun } from "./api.js";

const HEIGHT = 200;
const POINTS_MAX = 1_000;
const NAMES_AT_ONCE = 16;
const EVERY_MILLISECONDS = 2_000;
// Distinct for most kinds of eyes, on both grounds (after Okabe and Ito, 2008).
const COLOURS = ["#d55e00", "#009e73", "#cc79a7", "#0072b2", "#e69f00", "#56b4e9", "#8a6d00", "#7a5195"];

const MARKS = {
  lost: "bad", expelled: "bad", quarantined: "bad", "checkpoint failed": "bad", repaired: "bad",
  joined: "good", back: "good", began: "good", released: "good", finished: "good",
  left: "warn", clipped: "warn", stopping: "warn", checkpoint: "plain",
};

/** Return how an event of a kind is shown. */
export function toneOf(kind) {
  return MARKS[kind] ?? "plain";
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
    this.title = element("p", { className: "title", id: `chart-${Chart.made++}` });
    this.now = element("div", { className: "now" });
    this.plot = element("div", { className: "plot" });
    this.box = element(
      "div",
      { className: "chart", role: "group", "aria-labelledby": this.title.id },
      this.title, this.now, this.plot,
    );
    this.visible = false;
    this.curves = [];
    this.uplot = null;
    this.shape = "";
    setText(this.title, spec.title);
  }

  /** Take curves that have come; draw them. */
  draw(curves = this.curves) {
    this.curves = curves;
    const axis = this.spec.seconds ? "seconds" : this.source.axis;
    const mean = curves.find((curve) => curve.rank === null);
    const workers = this.spec.alone ? [] : curves.filter((curve) => curve.rank !== null);
    this.say(mean, workers);
    if (mean === undefined || mean.step.length === 0) {
      this.destroy();
      return;
    }
    const tables = [
      [x(mean, axis), mean.low, mean.high, mean.mean],
      ...workers.map((curve) => [x(curve, axis), curve.mean]),
    ];
    const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const shape = JSON.stringify([axis, workers.map((curve) => curve.rank), themed("card")]);
    if (this.uplot !== null && this.shape === shape) {
      this.uplot.setData(data);
      return;
    }
    this.destroy();
    this.shape = shape;
    this.uplot = new uPlot(this.options(axis, workers), data, this.plot);
  }

  destroy() {
    this.uplot?.destroy();
    this.uplot = null;
  }

  resize() {
    const width = this.plot.clientWidth;
    if (this.uplot !== null && width > 0) this.uplot.setSize({ width, height: HEIGHT });
  }

  /** Say the newest values, also for those who do not see the curve. */
  say(mean, workers, index = null) {
    const format = this.spec.format ?? number;
    if (mean === undefined || mean.step.length === 0) {
      setText(this.now, "nothing yet");
      return;
    }
    const at = index ?? mean.mean.length - 1;
    let text = `${format(mean.mean[at])}`;
    if (!this.spec.alone && workers.length > 1) {
      text = `mean ${text}, from ${format(mean.low[at])} to ${format(mean.high[at])}`;
    }
    if (index !== null) text += ` at ${this.spec.seconds || this.source.axis === "seconds" ? `${number(mean.seconds[at])} s` : `step ${mean.step[at]}`}`;
    setText(this.now, text);
  }

  options(axis, workers) {
    const line = (stroke, width) => ({ stroke, width, spanGaps: true, points: { show: false } });
    const text = { stroke: themed("dim"), grid: { stroke: themed("grid"), width: 1 }, ticks: { stroke: themed("grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    const format = this.spec.format ?? number;
    return {
      width: Math.max(this.plot.clientWidth, 100),
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: true, y: false } },
      scales: { x: { time: false }, y: this.spec.log ? { distr: 3 } : { range: rangeOf } },
      axes: [
        { ...text, size: 34, values: (_, ticks) => ticks.map((tick) => number(tick) + (axis === "seconds" ? " s" : "")) },
        { ...text, size: 72, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format(tick))) },
      ],
      series: [
        {},
        line("transparent", 0),
        line("transparent", 0),
        line(themed("accent"), 2.5),
        ...workers.map((curve) => line(colourOf(curve.rank), 1)),
      ],
      bands: [{ series: [2, 1], fill: themed("band") }],
      hooks: {
        draw: [(plot) => this.drawMarks(plot, axis)],
        setCursor: [(plot) => this.point(plot, workers)],
      },
    };
  }

  point(plot, workers) {
    const mean = this.curves.find((curve) => curve.rank === null);
    if (mean === undefined) return;
    const { idx, left } = plot.cursor;
    const event = left >= 0 ? this.eventAt(plot, left) : null;
    if (event !== null) {
      setText(this.now, `${event.kind}: ${event.text}`);
    } else if (idx === null || idx === undefined) {
      this.say(mean, workers);
    } else {
      const axis = this.spec.seconds ? "seconds" : this.source.axis;
      this.say(mean, workers, nearest(x(mean, axis), plot.data[0][idx]));
    }
  }

  eventAt(plot, left) {
    const near = this.places(plot).filter(([at]) => Math.abs(at - left * devicePixelRatio - plot.bbox.left) < 4 * devicePixelRatio);
    return near.length ? near[near.length - 1][1] : null;
  }

  /** Return where the events are, in pixels of the canvas, as far as they are on it. */
  places(plot) {
    const mean = this.curves.find((curve) => curve.rank === null);
    const steps = !this.spec.seconds && this.source.axis === "steps";
    const found = [];
    for (const event of this.source.events) {
      if (event.seconds === null || mean === undefined) continue;
      const value = steps ? stepAt(mean, event.seconds) : event.seconds;
      if (value < plot.scales.x.min || value > plot.scales.x.max) continue;
      found.push([plot.valToPos(value, "x", true), event]);
    }
    return found;
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const [at, event] of this.places(plot)) {
      const tone = toneOf(event.kind);
      ctx.strokeStyle = ctx.fillStyle = themed(tone === "plain" ? "dim" : tone);
      ctx.globalAlpha = 0.7;
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      const size = 4 * devicePixelRatio;
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
    this.axis = "steps";
    this.events = [];
    this.run = null;
    this.ranks = null; // The first ones, unless someone has chosen.
    this.charts = new Map();
    this.taken = -1; // How many scalars the run had when curves were asked for.
    this.isAsking = false;
    this.askedAt = 0;
    this.onFailure = () => {};
    this.seen = new IntersectionObserver((changes) => {
      for (const change of changes) {
        const chart = this.charts.get(change.target.dataset.key);
        if (chart !== undefined) chart.visible = change.isIntersecting;
      }
      this.refresh(true);
    }, { rootMargin: "100px" });
    this.sized = new ResizeObserver((changes) => {
      for (const change of changes) this.charts.get(change.target.dataset.key)?.resize();
    });
  }

  /** Show charts in a place: of [name, spec]. */
  place(parent, specs) {
    const entries = specs.map(([name, spec]) => [`${parent.id}/${name}`, { ...spec, name }]);
    const wanted = new Set(entries.map(([key]) => key));
    for (const [key, chart] of this.charts) {
      if (key.startsWith(`${parent.id}/`) && !wanted.has(key)) {
        this.seen.unobserve(chart.box);
        this.sized.unobserve(chart.box);
        chart.destroy();
        this.charts.delete(key);
      }
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
    this.taken = -1;
    for (const chart of this.charts.values()) {
      chart.draw([]);
    }
  }

  /** Draw all charts again: another axis, theme or event. */
  redraw() {
    for (const chart of this.charts.values()) if (chart.visible) chart.draw();
  }

  /** Note that the run has so many scalars, and perhaps ask for curves. */
  note(scalars) {
    const isNew = scalars !== this.taken;
    this.taken = scalars;
    if (isNew || Date.now() - this.askedAt > 2 * EVERY_MILLISECONDS) this.refresh(false);
  }

  /** Ask for the curves of the charts on the screen. */
  async refresh(now) {
    const wanted = [...this.charts.values()].filter((chart) => chart.visible && (!now || chart.curves.length === 0));
    const due = now || Date.now() - this.askedAt >= EVERY_MILLISECONDS;
    if (this.run === null || this.isAsking || !due || wanted.length === 0 || document.hidden) return;
    this.isAsking = true;
    this.askedAt = Date.now();
    const run = this.run;
    try {
      for (let at = 0; at < wanted.length; at += NAMES_AT_ONCE) {
        const some = wanted.slice(at, at + NAMES_AT_ONCE);
        const query = new URLSearchParams(some.map((chart) => ["name", chart.spec.name]));
        const widest = Math.max(...some.map((chart) => chart.plot.clientWidth), 100);
        query.append("points", Math.min(Math.round(widest), POINTS_MAX));
        if (this.ranks !== null) query.append("ranks", [...this.ranks].join(","));
        const { curves } = await get(ofRun(run, `/series?${query}`));
        if (run !== this.run) return;
        for (const chart of some) chart.draw(curves.filter((curve) => curve.name === chart.spec.name));
      }
    } catch (error) {
      this.onFailure(error);
    } finally {
      this.isAsking = false;
    }
    if (now && [...this.charts.values()].some((chart) => chart.visible && chart.curves.length === 0)) return;
  }
}

function x(curve, axis) {
  if (axis === "steps") return curve.step;
  // Seconds of a bucket are those of its last scalar: never less than those of the one before.
  let last = -Infinity;
  return curve.seconds.map((value) => (last = Math.max(last, value ?? last)));
}

/** Return the step at which a curve was at a moment, between its points. */
function stepAt(curve, seconds) {
  const at = nearestBelow(curve.seconds, seconds);
  if (at < 0) return curve.step[0];
  if (at + 1 >= curve.step.length) return curve.step[at];
  const [from, to] = [curve.seconds[at], curve.seconds[at + 1]];
  const part = to > from ? (seconds - from) / (to - from) : 0;
  return curve.step[at] + part * (curve.step[at + 1] - curve.step[at]);
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

/** A range that is never empty, with some room above and below. */
function rangeOf(_, low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) return [low - Math.max(Math.abs(low) * 0.1, 1e-9), high + Math.max(Math.abs(high) * 0.1, 1e-9)];
  const room = 0.05 * (high - low);
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
