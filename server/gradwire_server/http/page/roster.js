// The table of workers.

import { byId, element, reconcile, setText } from "./dom.js";
import { colourOf } from "./charts.js";
import { bytes, count, duration, number, percent, rate } from "./format.js";

const OWN_SCALARS = 3;

const COLUMNS = [
  { name: "rank", title: "Rank", of: (w) => w.rank, shown: (w) => String(w.rank) },
  { name: "name", title: "Name", text: true, of: (w) => w.name, shown: (w) => w.name },
  { name: "host", title: "Host", text: true, of: (w) => w.address, shown: (w) => w.address },
  { name: "state", title: "State", text: true, of: (w) => w.state, shown: stateOf },
  { name: "step", title: "Step", of: (w) => w.step, shown: (w) => count(w.step) },
  { name: "speed", title: "Steps/s", of: (w) => w.figures.steps_per_second, shown: (w) => number(w.figures.steps_per_second) },
  { name: "staleness", title: "Staleness", of: (w) => w.figures.staleness_updates, shown: (w) => number(w.figures.staleness_updates) },
  { name: "density", title: "Density", of: (w) => w.figures.density_ratio, shown: (w) => percent(w.figures.density_ratio) },
  { name: "bytes", title: "Sends", of: (w) => w.figures.encoded_bytes_per_second, shown: (w) => rate(w.figures.encoded_bytes_per_second) },
  { name: "rtt", title: "Round trip", of: (w) => w.rtt_seconds, shown: (w) => duration(w.rtt_seconds) },
  { name: "queued", title: "Waiting", of: (w) => w.queued_bytes, shown: (w) => bytes(w.queued_bytes) },
  { name: "updates", title: "Updates", of: (w) => w.updates, shown: (w) => count(w.updates) },
  { name: "transport", title: "Over", text: true, of: (w) => w.transport, shown: transportOf },
  { name: "version", title: "Version", text: true, of: (w) => w.version, shown: (w) => w.version || "–" },
];

/** The table; `act` is told of buttons in it: ("show" | "expel" | "release" | "deny", worker). */
export class Roster {
  constructor(table, act) {
    this.table = table;
    this.act = act;
    this.sort = "rank";
    this.ascending = true;
    this.workers = [];
    this.canOrder = false;
    this.columns = "";
    this.head = element("tr");
    this.body = element("tbody");
    table.append(
      element("caption", { className: "unseen" }, "Workers of the run; a heading sorts by its column"),
      element("thead", {}, this.head),
      this.body,
    );
  }

  /** Show workers. */
  draw(workers = this.workers) {
    this.workers = workers;
    const logged = [...new Set(workers.flatMap((worker) => Object.keys(worker.scalars)))].sort(lossFirst);
    const columns = [
      ...COLUMNS.slice(0, 6),
      ...logged.slice(0, OWN_SCALARS).map((name) => ({
        name: `scalar ${name}`, title: name, of: (w) => w.scalars[name], shown: (w) => number(w.scalars[name]),
      })),
      ...COLUMNS.slice(6),
    ];
    this.drawHead(columns);
    const by = columns.find((column) => column.name === this.sort) ?? COLUMNS[0];
    const sorted = [...workers].sort((a, b) => (this.ascending ? 1 : -1) * compared(by.of(a), by.of(b)) || a.rank - b.rank);
    reconcile(
      this.body,
      sorted.map((worker) => [worker.rank, worker]),
      () => element("tr"),
      (row, worker) => this.change(row, worker, columns),
    );
  }

  drawHead(columns) {
    const wanted = JSON.stringify([columns.map((column) => column.name), this.canOrder]);
    if (this.columns !== wanted) {
      this.columns = wanted;
      this.head.replaceChildren(
        ...columns.map((column) => {
          const button = element("button", { type: "button", textContent: column.title });
          button.addEventListener("click", () => this.sortBy(column.name));
          return element("th", { scope: "col", className: column.text ? "text" : "", "data-column": column.name }, button);
        }),
        element("th", { scope: "col", className: "text" }, "Actions"),
      );
      this.body.replaceChildren();
    }
    for (const cell of this.head.children) {
      if (cell.dataset.column === this.sort) cell.setAttribute("aria-sort", this.ascending ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    }
  }

  sortBy(name) {
    this.ascending = this.sort === name ? !this.ascending : true;
    this.sort = name;
    this.draw();
  }

  change(row, worker, columns) {
    if (row.children.length !== columns.length + 1) {
      row.replaceChildren(
        ...columns.map((column) => element("td", { className: column.text ? "text" : "" })),
        element("td", { className: "text" }),
      );
    }
    columns.forEach((column, index) => {
      const cell = row.children[index];
      setText(cell, column.shown(worker));
      if (column.text && cell.title !== cell.textContent) cell.title = cell.textContent;
      if (column.name === "state") {
        cell.classList.add("state");
        cell.dataset.state = worker.state;
      } else if (column.name === "rank") {
        cell.style.borderLeft = `4px solid ${colourOf(worker.rank)}`;
      }
    });
    this.drawActions(row.lastChild, worker);
  }

  drawActions(cell, worker) {
    const actions = [["show", "Chart"]];
    if (this.canOrder) {
      if (worker.state === "quarantined") actions.push(["release", "Release"]);
      actions.push(["expel", "Expel"]);
      if (worker.key_name !== null) actions.push(["deny", "Deny"]);
    }
    const wanted = actions.map(([action]) => action).join(" ");
    cell.worker = worker;
    if (cell.dataset.actions === wanted) return;
    cell.dataset.actions = wanted;
    cell.replaceChildren(
      ...actions.flatMap(([action, title]) => {
        const button = element("button", {
          type: "button", className: "small quiet", textContent: title,
          "aria-label": `${title} rank ${worker.rank}`,
        });
        button.addEventListener("click", () => this.act(action, cell.worker));
        return [button, " "];
      }),
    );
  }
}

/** Sort names with those of a loss first. */
export function lossFirst(a, b) {
  const isLoss = (name) => /(^|[^a-z])loss([^a-z]|$)/i.test(name);
  return isLoss(b) - isLoss(a) || a.localeCompare(b);
}

function stateOf(worker) {
  return worker.state === "silent" ? `silent for ${duration(worker.heard_seconds)}` : worker.state;
}

function transportOf(worker) {
  return worker.relay === null ? worker.transport : `relay ${worker.relay}`;
}

function compared(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}
