// The table of workers, and who holds up whom.

import { element, reconcile, setText } from "./dom.js";
import { colourOf } from "./charts.js";
import { bytes, count, duration, number, rate } from "./format.js";

const OWN_SCALARS = 2;
const BEHIND_UPDATES = 100;

const of = (name, title, value, shown) => ({ name, title, of: value, shown: (w) => shown(value(w)) });
const text = (name, title, value, shown = value) => ({ name, title, of: value, shown, isText: true });

const FIRST = [
  of("rank", "Rank", (w) => w.rank, String),
  text("name", "Name", (w) => w.name),
  text("state", "State", (w) => w.state, stateOf),
  of("heard", "Last word", (w) => w.heard_seconds, (seconds) => (seconds === null ? "–" : seconds < 1 ? "now" : `${duration(seconds)} ago`)),
  of("step", "Step", (w) => w.step, count),
];

const LATER = [
  of("speed", "Steps/s", (w) => w.figures.steps_per_second, number),
  of("staleness", "Staleness", (w) => w.figures.staleness_updates, number),
  of("sends", "Sends", (w) => w.figures.encoded_bytes_per_second, rate),
  of("gets", "Gets", (w) => w.gets, rate),
  of("rtt", "Round trip", (w) => w.rtt_seconds, duration),
  of("queued", "Waiting", (w) => w.queued_bytes, bytes),
  of("lacks", "Lacks", (w) => w.lacks_updates, count),
  text("host", "Host", (w) => w.address),
];

/** The table; `act` is told of buttons in it: ("show" | "expel" | "release" | "deny", worker). */
export class Roster {
  constructor(table, act) {
    Object.assign(this, { act, sort: "rank", ascending: true, workers: [], canOrder: false, columns: "" });
    this.shown = null; // The ranks whose curves were chosen.
    this.before = new Map(); // By rank: when how many bytes had been sent to it.
    this.head = element("tr");
    this.body = element("tbody");
    table.append(
      element("caption", { className: "unseen" }, "Workers of the run; a heading sorts by its column"),
      element("thead", {}, this.head), this.body,
    );
  }

  /** Take the workers of a run's document. */
  take({ workers, unix_time: now }) {
    const before = this.before;
    this.before = new Map(workers.map((worker) => [worker.rank, { now, sent: worker.sent_bytes }]));
    for (const worker of workers) {
      const last = before.get(worker.rank);
      const isLater = last !== undefined && now > last.now && worker.sent_bytes >= last.sent;
      worker.gets = isLater ? (worker.sent_bytes - last.sent) / (now - last.now) : null;
    }
    this.draw(workers);
  }

  draw(workers = this.workers) {
    this.workers = workers;
    const logged = [...new Set(workers.flatMap((worker) => Object.keys(worker.scalars)))].sort(lossFirst);
    const own = logged.slice(0, OWN_SCALARS).map((name) => of(`scalar ${name}`, name, (w) => w.scalars[name], number));
    const columns = [...FIRST, ...own, ...LATER];
    this.drawHead(columns);
    const by = columns.find((column) => column.name === this.sort) ?? FIRST[0];
    const sorted = [...workers].sort((a, b) => (this.ascending ? 1 : -1) * compared(by.of(a), by.of(b)) || a.rank - b.rank);
    reconcile(this.body, sorted.map((worker) => [worker.rank, worker]), () => element("tr"), (row, worker) => this.change(row, worker, columns));
  }

  drawHead(columns) {
    const wanted = JSON.stringify(columns.map((column) => column.name));
    if (this.columns !== wanted) {
      this.columns = wanted;
      this.head.replaceChildren(
        ...columns.map(({ name, title, isText }) => {
          const button = element("button", { type: "button", textContent: title });
          button.addEventListener("click", () => this.sortBy(name));
          return element("th", { scope: "col", className: isText ? "text" : "", "data-column": name }, button);
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
    if (row.children.length === 0) {
      row.append(...columns.map(({ isText, name }) => element("td", { className: `${isText ? "text " : ""}${name}` })), element("td", { className: "text" }));
      row.firstChild.style.borderLeftColor = colourOf(worker.rank);
    }
    columns.forEach((column, index) => {
      const cell = row.children[index];
      setText(cell, column.shown(worker));
      if (column.isText && cell.title !== cell.textContent) cell.title = cell.textContent;
      if (column.name === "state") cell.dataset.state = worker.state;
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
    if (cell.dataset.actions !== wanted) {
      cell.dataset.actions = wanted;
      cell.replaceChildren(...actions.map(([action, title]) => {
        const button = element("button", { type: "button", className: "small quiet", textContent: title, "aria-label": `${title} rank ${worker.rank}` });
        button.addEventListener("click", () => this.act(action, cell.worker));
        return button;
      }));
    }
    cell.firstChild.setAttribute("aria-pressed", String(this.shown?.has(worker.rank) ?? false));
  }
}

/** Return who holds up others, in a sentence; empty if nobody does. */
export function heldUp({ round, workers }) {
  const awaited = workers.filter((worker) => worker.awaited);
  if (round && awaited.length > 0 && round.complete.length > 0) {
    return `Round ${round.closed + 1} waits for ${listed(awaited)}${round.seconds === null ? "" : `, since ${duration(round.seconds)}`}.`;
  }
  const there = new Set(workers.map((worker) => worker.rank));
  const held = workers.filter((worker) => there.has(worker.held_by));
  if (held.length > 0) {
    const slower = workers.filter((worker) => held.some((other) => other.held_by === worker.rank));
    const bound = held[0].figures.staleness_bound ?? null;
    const by = bound === null ? "" : `, by the staleness bound of ${count(bound)}`;
    const part = Math.max(...held.map((worker) => worker.figures.wait_ratio));
    return `R${listed(held).slice(1)} ${held.length === 1 ? "waits" : "wait"} for ${listed(slower)}${by}: ${Math.round(100 * part)} % of the time.`;
  }
  const last = workers.reduce((a, b) => (b.lacks_updates > (a?.lacks_updates ?? 0) ? b : a), null);
  if (last === null || last.lacks_updates < BEHIND_UPDATES) return "";
  return `Furthest behind is ${named(last)}: it lacks ${count(last.lacks_updates)} updates.`;
}

const named = (worker) => `rank ${worker.rank} (${worker.name})`;

function listed(workers) {
  return workers.slice(0, 3).map(named).join(", ") + (workers.length > 3 ? `, and ${workers.length - 3} more` : "");
}

/** Sort names with those of a loss first. */
export function lossFirst(a, b) {
  const isLoss = (name) => /(^|[^a-z])loss([^a-z]|$)/i.test(name);
  return isLoss(b) - isLoss(a) || a.localeCompare(b);
}

function stateOf(worker) {
  return worker.state === "silent" ? `silent for ${duration(worker.heard_seconds)}` : worker.awaited ? `${worker.state}, awaited` : worker.state;
}

function compared(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}
