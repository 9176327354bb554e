// Layers: histograms of a tensor's parameters and of what a step changed, and how large that is beside them.

import { byId, element, reconcile, setText, show } from "./dom.js";
import { count, number, percent } from "./format.js";
import { get, ofRun } from "./api.js";

const EVERY_MILLISECONDS = 2_000;
const TITLES = { parameters: "Parameters", update: "Change by a step" };
const RATIO = { title: "Change as a part of the parameters", log: true };
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 100;

/** One histogram: arrow keys and the pointer read its bins. */
class Histogram {
  constructor(quantity) {
    this.title = element("h3", { id: `histogram-${quantity}`, textContent: TITLES[quantity] });
    this.now = element("p", { className: "now" });
    this.svg = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    this.plot = element("div", {
      className: "plot bars", tabIndex: 0, role: "application", "aria-roledescription": "histogram",
      "aria-label": `${TITLES[quantity]}: arrow keys read the bins`,
    }, this.svg);
    this.ends = element("p", { className: "ends" }, ...["", "", ""].map(() => element("span")));
    this.box = element(
      "div", { className: "chart", role: "group", "aria-labelledby": this.title.id }, this.title, this.now, this.plot, this.ends,
    );
    this.plot.addEventListener("keydown", (event) => this.walk(event));
    this.plot.addEventListener("focus", () => this.now.setAttribute("aria-live", "polite"));
    this.plot.addEventListener("blur", () => { this.now.removeAttribute("aria-live"); this.read(null); });
    this.plot.addEventListener("pointermove", ({ offsetX }) => this.read(Math.floor((offsetX / this.plot.clientWidth) * this.found.bins.length)));
    this.plot.addEventListener("pointerleave", () => this.read(null));
  }

  draw(found) {
    this.found = found;
    const { bins, lowest, highest } = found;
    const most = Math.max(...bins, 1);
    this.svg.setAttribute("viewBox", `0 0 ${bins.length} ${HEIGHT}`);
    const bars = bins.map((bin, at) => {
      const height = bin && Math.max((bin / most) * HEIGHT, 1); // A single value can be seen, too.
      return svg("rect", { x: at + 0.06, y: HEIGHT - height, width: 0.88, height });
    });
    const zero = (-lowest / (highest - lowest)) * bins.length;
    const line = zero > 0 && zero < bins.length ? [svg("line", { x1: zero, x2: zero, y1: 0, y2: HEIGHT })] : [];
    this.svg.replaceChildren(...bars, ...line);
    const texts = [number(lowest), line.length ? "dashed: 0" : "", number(highest)];
    [...this.ends.children].forEach((end, at) => setText(end, texts[at]));
    this.read(document.activeElement === this.plot ? this.at ?? null : null);
  }

  /** Say what is in a bin, or in all. */
  read(at) {
    const { bins, lowest, highest, mean, deviation, nan, infinite } = this.found;
    this.at = at === null ? undefined : Math.min(Math.max(at, 0), bins.length - 1);
    for (const bar of this.svg.querySelectorAll("rect")) bar.classList.remove("read");
    if (this.at !== undefined) {
      this.svg.querySelectorAll("rect")[this.at].classList.add("read");
      const edge = (bin) => number(lowest + ((highest - lowest) * bin) / bins.length);
      const all = bins.reduce((sum, bin) => sum + bin, 0);
      setText(this.now, `${edge(this.at)} to ${edge(this.at + 1)}: ${percent(bins[this.at] / Math.max(all, 1))}, ${count(bins[this.at])} of ${count(all)}`);
      return;
    }
    const odd = [[nan, "NaN"], [infinite, "infinite"]].filter(([values]) => values > 0).map(([values, what]) => `${count(values)} ${what}, `);
    setText(this.now, `${odd.join("")}mean ${number(mean)}, deviation ${number(deviation)}`);
    this.now.classList.toggle("problem", odd.length > 0);
  }

  walk(event) {
    const last = this.found.bins.length - 1;
    const at = this.at ?? (event.key === "ArrowLeft" ? last + 1 : -1);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.read(to);
  }
}

/** The section: one layer at a time is shown. */
export class Layers {
  constructor(charts, onFailure) {
    Object.assign(this, { charts, onFailure, histograms: new Map() });
    this.select = byId("layer");
    this.select.addEventListener("change", () => this.refresh(this.taken));
    this.follow(null);
  }

  /** Follow another run. */
  follow(run) {
    Object.assign(this, { run, taken: 0, askedAt: 0 });
    this.select.replaceChildren();
    for (const id of ["layers", "layers-link"]) show(byId(id), false);
  }

  /** Note the document of the run; ask for its histograms, if there are others and it is time. */
  note({ histograms }) {
    const isDue = Date.now() - this.askedAt >= EVERY_MILLISECONDS && !document.hidden && !this.charts.frozen;
    if (histograms !== this.taken && isDue) void this.refresh(histograms);
  }

  async refresh(taken) {
    this.askedAt = Date.now();
    const [run, layer] = [this.run, this.select.value];
    try {
      const found = await get(ofRun(run, `/histograms${layer && `?${new URLSearchParams({ layer })}`}`));
      if (run !== this.run || layer !== this.select.value) return; // Somebody has chosen another one.
      this.draw(found);
      this.taken = taken;
    } catch (error) {
      this.onFailure(error);
    }
  }

  draw({ rank, step, layers, histograms }) {
    for (const id of ["layers", "layers-link"]) show(byId(id), layers.length > 0);
    reconcile(this.select, layers.map(({ name }) => [name, name]), (name) => element("option", { value: name, textContent: name }), () => {});
    const layer = layers.find(({ name }) => name === this.select.value);
    const found = histograms.filter((each) => each.layer === layer?.name);
    if (found.length === 0) return;
    const [{ elements, bins, nan, infinite }] = found;
    const counted = bins.reduce((sum, bin) => sum + bin, nan + infinite);
    const sampled = counted < elements ? `, a sample of ${count(counted)}` : "";
    setText(byId("layer-said"), `Rank ${rank}, step ${count(step)}: ${count(elements)} elements${sampled}`);
    reconcile(byId("histograms"), found.map((each) => [each.quantity, each]), ({ quantity }) => {
      this.histograms.set(quantity, new Histogram(quantity));
      return this.histograms.get(quantity).box;
    }, (_, each) => this.histograms.get(each.quantity).draw(each));
    this.charts.place(byId("layer-ratio"), [[layer.ratio, RATIO]]);
  }
}

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
