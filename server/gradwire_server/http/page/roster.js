// The table of workers.

import { element, reconcile, setText } from "./dom.js";
import { colourOf } from "./charts.js";
import { bytes, count, duration, number, rate } from "./format.js";

const OWN_SCALARS = 1;

const figure = (name, title, format) => ({ name, title, of: (w) => w.figures[name], shown: format });

const COLUMNS = [
  { name: "rank", title: "Rank", of: (w) => w.rank, shown: String },
  { name: "name", title: "Name", text: true, of: (w) => w.name },
  { name: "host", title: "Host", text: true, of: (w) => w.address },
  { name: "state", title: "State", text: true, of: stateOf },
  { name: "step", title: "Step", of: (w) => w.step, shown: count },
  figure("steps_per_second", "Steps/s", number),
  figure("staleness_updates", "Staleness", number),
  figure("encoded_bytes_per_second", "Sends", rate),
  { name: "queued", title: "To receive", of: (w) => w.queued_bytes, shown: bytes },
  { name: "lacks", title: "Lacks", of: (w) => w.lacks_updates, shown: count },
  { name: "rtt", title: "Round trip", of: (w) => w.rtt_seconds, shown: duration },
  { name: "heard", title: "Last heard", of: (w) => w.heard_seconds, shown: ago },
];

/** The table; `act` is told of buttons in it: ("show" | "expel" | "release" | "deny", worker). */
export class Roster {
  constructor(table, act) {
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
      ...COLUMNS.slice(0, 5),
      ...logged.slice(0, OWN_SCALARS).map((name) => ({
        name: `scalar ${name}`, title: name, of: (w) => w.scalars[name], shown: number,
      })),
      ...COLUMNS.slice(5),
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
      setText(cell, (column.shown ?? String)(column.of(worker)));
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
      ...actions.map(([action, title]) => {
        const button = element("button", {
          type: "button", className: "small quiet", textContent: title,
          "aria-label": `${title} rank ${worker.rank}`,
        });
        button.addEventListener("click", () => this.act(action, cell.worker));
        return button;
      }),
    );
  }
}

/** Sort names with those of a loss first. */
export function lossFirst(a, b) {
  const isLoss = (name) => /(^|[^a-z])loss([^a-z]|$)/i.test(name);
  return isLoss(b) - isLoss(a) || a.localeCompare(b);
}

/** Return a worker's state, with what it holds up. */
function stateOf(worker) {
  if (worker.state === "silent") return `silent for ${duration(Math.round(worker.heard_seconds))}`;
  return worker.awaited ? `${worker.state}, awaited` : worker.state;
}

function ago(seconds) {
  return seconds !== null && seconds < 1 ? "now" : duration(seconds === null ? null : Math.round(seconds));
}

function compared(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}
