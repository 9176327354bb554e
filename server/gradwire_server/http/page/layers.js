// Histograms of parameters, updates and residual of a layer, and how large updates are beside them.

import { element, reconcile, setText } from "./dom.js";
import { count, number } from "./format.js";
import { get, ofRun } from "./api.js";

const EVERY_MILLISECONDS = 3_000;
const QUANTITIES = [
  ["parameters", "Parameters"],
  ["update", "Change by the last step"],
  ["residual", "Residual: what is not sent yet"],
];
const RATIO = "gradwire/update_ratio/";
const [WIDTH, HEIGHT, FOOT] = [320, 140, 18];
const SVG = "http://www.w3.org/2000/svg";

/** The section of layers: one at a time is shown. */
export class Layers {
  constructor(place, charts) {
    this.charts = charts;
    this.hasAny = false;
    this.onFailure = () => {};
    this.select = element("select", { id: "layer" });
    this.select.addEventListener("change", () => this.refresh(true));
    this.said = element("p", { className: "hint" });
    this.histograms = element("div", { className: "charts" });
    this.ratio = element("div", { className: "charts", id: "layer-ratio" });
    place.append(
      element("label", { className: "choice" }, element("span", { textContent: "Layer" }), this.select),
      this.said, this.histograms, this.ratio,
    );
    this.follow(null);
  }

  /** Follow another run. */
  follow(run) {
    this.run = run;
    this.hasAny = false;
    this.isAsking = false;
    this.askedAt = 0;
    this.taken = 0;
    this.select.replaceChildren();
    this.histograms.replaceChildren();
  }

  /** Note the document of the run, and perhaps ask for histograms. */
  note(run) {
    this.hasAny = run.histograms > 0;
    if (!this.hasAny) return;
    if (run.histograms !== this.taken || this.histograms.children.length === 0) void this.refresh(false);
    this.series = run.series;
    this.taken = run.histograms;
  }

  async refresh(now) {
    if (this.isAsking || (!now && Date.now() - this.askedAt < EVERY_MILLISECONDS) || document.hidden) return;
    this.isAsking = true;
    this.askedAt = Date.now();
    const run = this.run;
    try {
      const query = new URLSearchParams(this.select.value ? { layer: this.select.value } : {});
      const found = await get(ofRun(run, `/histograms?${query}`));
      if (run === this.run) this.draw(found);
    } catch (error) {
      this.onFailure(error);
    } finally {
      this.isAsking = false;
    }
  }

  draw({ layers, histograms }) {
    const chosen = this.select.value;
    reconcile(
      this.select, layers.map((name) => [name, name]),
      (name) => element("option", { value: name, textContent: name }), () => {},
    );
    if (layers.includes(chosen)) this.select.value = chosen;
    const layer = this.select.value;
    const [first] = histograms;
    if (first === undefined) return;
    setText(this.said, `Rank ${first.rank}, step ${count(first.step)}; ${count(first.elements)} elements`);
    reconcile(
      this.histograms,
      QUANTITIES.flatMap(([quantity, title]) => {
        const one = histograms.find((each) => each.quantity === quantity && each.layer === layer);
        return one === undefined ? [] : [[quantity, { title, one }]];
      }),
      ({ title }) => element(
        "div", { className: "chart histogram", role: "group", "aria-label": title },
        element("p", { className: "title", textContent: title }),
        element("div", { className: "now" }), element("div"),
      ),
      (box, { one }) => {
        const [, now, plot] = box.children;
        setText(now, described(one));
        plot.replaceChildren(drawn(one));
      },
    );
    const name = RATIO + layer;
    const specs = this.series?.includes(name)
      ? [[name, { title: "Change by a step, as a part of the parameters", log: true }]] : [];
    this.charts.place(this.ratio, specs);
  }
}

function described(one) {
  const odd = [[one.nan, "NaN"], [one.infinite, "infinite"]].filter(([n]) => n > 0).map(([n, what]) => `, ${count(n)} ${what}`);
  return `mean ${number(one.mean)}, deviation ${number(one.deviation)}${odd.join("")}`;
}

function drawn(one) {
  const highest = Math.max(...one.bins, 1);
  const width = WIDTH / one.bins.length;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" });
  one.bins.forEach((bin, index) => {
    const height = (bin / highest) * (HEIGHT - FOOT - 4);
    picture.append(svg("rect", { x: index * width + 0.5, y: HEIGHT - FOOT - height, width: width - 1, height }));
  });
  const ends = [[0, "start", one.lowest], [WIDTH, "end", one.highest]];
  for (const [x, anchor, value] of ends) {
    const text = svg("text", { x, y: HEIGHT - 4, "text-anchor": anchor });
    text.textContent = number(value);
    picture.append(text);
  }
  return picture;
}

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
