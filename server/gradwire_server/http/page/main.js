// The page: follows one run, and hands what comes to its parts.

import { byId, element, reconcile, setText, show } from "./dom.js";
import { bytes, clock, count, duration, number, percent, rate } from "./format.js";
import { Refused, download, follow, get, ofRun, order, token } from "./api.js";
import { Charts, toneOf } from "./charts.js";
import { Roster, lossFirst } from "./roster.js";

const EVENTS_MAX = 1_000;
const SCALARS_MAX = 48;
const GAP_MILLISECONDS = 200;
const THEME = "gradwire-theme";

const OWN = [
  ["gradwire/steps_per_second", { title: "Steps per second" }],
  ["gradwire/encoded_bytes_per_second", { title: "Sent by a worker", format: rate }],
  ["gradwire/density_ratio", { title: "Density of updates", format: percent }],
  ["gradwire/threshold", { title: "Threshold" }],
  ["gradwire/residual_age_steps", { title: "Age of the residual, in steps" }],
  ["gradwire/staleness_updates", { title: "Staleness, in updates" }],
  ["gradwire/overhead_ratio", { title: "Part of the time that gradwire takes", format: percent }],
].map(([name, spec]) => [name, { ...spec, measured: true }]);

const MEASURED = [
  ["master/updates_per_second", { title: "Updates per second" }],
  ["master/update_bytes_per_second", { title: "Updates, in bytes", format: rate }],
  ["master/relay_delay_seconds", { title: "From a worker to the others", format: duration }],
  ["master/workers", { title: "Workers in the run", fromZero: true }],
  ["master/unstable_updates", { title: "Updates that some worker lacks", fromZero: true }],
  ["master/processor_ratio", { title: "Processor of the master, of one core", format: percent }],
  ["master/memory_bytes", { title: "Memory of the master", format: bytes }],
  ["master/received_bytes_per_second", { title: "Received by the master", format: rate }],
  ["master/sent_bytes_per_second", { title: "Sent by the master", format: rate }],
].map(([name, spec]) => [name, { ...spec, measured: true, seconds: true, alone: true }]);

const ORDERS = [
  { action: "checkpoint", title: "Write a checkpoint", when: (run) => run.checkpoint !== null, text: "The master writes a checkpoint of the run now." },
  { action: "pause-items", title: "Pause items", when: (run) => run.works.length > 0 && !run.items_paused, text: "No item is granted any more; workers end those that they hold, and wait." },
  { action: "resume-items", title: "Resume items", when: (run) => run.works.length > 0 && run.items_paused, text: "Items are granted again." },
  { action: "drain", title: "Drain", when: (_, all) => !all.draining, ofAll: true, text: "Nobody is let in any more, and the master ends when the last worker has left." },
  { action: "resume", title: "Let workers in again", when: (_, all) => all.draining, ofAll: true, text: "Workers may join again." },
  { action: "stop-training", title: "Stop training", when: (run) => run.stopping === null, text: "All workers end their training, and the run is finished." },
  { action: "end-run", title: "End the run", when: () => true, text: "Workers are sent away, and the next one begins another run. The last checkpoint stays." },
];

const WORKER_ORDERS = {
  expel: ["Expel", "Its connection is closed; it may join again."],
  release: ["Release", "The updates that were kept aside are accepted, and all later ones."],
  deny: ["Deny", "Its key is taken no more until the master ends."],
};

const state = {
  run: null, // Its name; null where there is none.
  summary: null,
  document: null,
  isOver: false, // Whether the run that is shown has ended: its last picture stays.
  events: new Map(),
  lastEvent: 0, // The number of the last one that is known.
  isAsking: false, // Whether events are on their way.
  following: null,
  heardAt: 0,
};

const charts = new Charts();
const roster = new Roster(byId("roster"), act);

// Which run.

function wantedRun() {
  return new URLSearchParams(location.hash.slice(1)).get("run");
}

/** Follow a run, or only the master; what is shown of a run that is over stays. */
function attend(run) {
  state.following?.abort();
  const controller = (state.following = new AbortController());
  follow(run, { heard, lost, signal: controller.signal });
}

function choose(run) {
  state.run = run;
  state.isOver = false;
  state.document = null;
  forgetEvents();
  charts.follow(run);
  attend(run);
}

function stayAfter() {
  state.isOver = true;
  attend(null);
  say(saidOver());
}

function saidOver() {
  return `Run ${state.run} is over: this is how it was last.`;
}

// What comes.

function heard({ kind, data }) {
  state.heardAt = Date.now();
  setLiveness("live", "live");
  show(byId("ask"), false);
  show(byId("everything"), true);
  byId("everything").classList.remove("stale");
  if (kind === "summary") {
    state.summary = data;
    drawChoices(data.runs.map((run) => run.name));
  } else if (kind === "run") {
    state.document = data;
    drawRun(data);
  } else if (kind === "events") {
    // Where the stream was away, some came before: `drawRun` asks for those.
    if (data.events[0]?.number === state.lastEvent + 1) addEvents(data.events, data.last);
  } else if (kind === "over") {
    stayAfter();
  }
  drawSummary();
  setText(byId("notice"), state.isOver ? saidOver() : "");
  show(byId("notice"), state.isOver);
}

function lost(error) {
  const status = error instanceof Refused ? error.status : 0;
  if (status === 401) {
    askForToken(token.get() === null ? "" : "The master does not take this token.");
  } else if (status === 404 && state.run !== null) {
    if (state.document === null) choose(null);
    else if (!state.isOver) stayAfter();
  } else {
    setLiveness("lost", state.heardAt ? `lost at ${clock(state.heardAt / 1000)}` : "no answer");
    byId("everything").classList.add("stale");
    setText(byId("notice"), status ? error.message : "no answer from the master; trying again");
    show(byId("notice"), true);
  }
}
charts.onFailure = lost;

function setLiveness(kind, text) {
  byId("liveness").dataset.state = kind;
  setText(byId("liveness"), text);
}

/** Show which runs there are; go to another one where the one that was followed is over. */
function drawChoices(names) {
  const wanted = names.includes(wantedRun()) ? wantedRun() : (names[0] ?? null);
  if ((state.run === null || state.isOver) && wanted !== null) choose(wanted);
  drawOptions(byId("run"), state.isOver ? [state.run, ...names] : names, state.run);
  drawOptions(byId("other"), ["", ...names.filter((name) => name !== state.run)], charts.other ?? "");
  show(byId("run-choice"), names.length > 0);
  show(byId("other-choice"), names.length > 1);
  show(byId("sections"), state.run !== null);
  show(byId("nothing"), state.run === null);
  show(byId("of-run"), state.document !== null);
  document.title = state.run === null ? "gradwire" : `${state.run} – gradwire`;
}

function drawOptions(select, names, chosen) {
  reconcile(select, names.map((name) => [name, name]), (name) => element("option", { value: name }),
    (option, name) => setText(option, name.slice(0, 80) || "nothing"));
  if (chosen !== null && select.value !== chosen) select.value = chosen;
}

function drawRun(run) {
  show(byId("of-run"), true);
  if (run.events < state.lastEvent) forgetEvents(); // The master was started again.
  // Those of this moment come right after it.
  setTimeout(() => {
    if (run.name === state.run && run.events > state.lastEvent) void fetchEvents(run.name);
  }, GAP_MILLISECONDS);
  drawCharts(run);
  roster.draw(run.workers);
  drawOrders(run);
  void charts.refresh();
}

function drawCharts(run) {
  const own = run.series.filter((name) => !/^(gradwire|master)\//.test(name)).sort(lossFirst);
  const there = new Set(run.series);
  show(byId("nothing-logged"), own.length === 0);
  charts.place(byId("scalars"), own.slice(0, SCALARS_MAX).map((name) => [name, { title: name }]));
  charts.place(byId("own"), OWN.filter(([name]) => there.has(name)));
  charts.place(byId("measured"), MEASURED.filter(([name]) => there.has(name)));
}

function drawSummary() {
  const { summary, document: run } = state;
  if (summary === null) return;
  const tiles = run === null ? [] : tilesOf(run);
  tiles.push(["Processor", percent(summary.figures.processor_ratio)]);
  tiles.push(["Memory", bytes(summary.figures.memory_bytes)]);
  tiles.push(["Up for", duration(summary.uptime_seconds)]);
  if (summary.draining) tiles.push(["Draining", "nobody is let in"]);
  reconcile(
    byId("summary"),
    tiles.map((tile) => [tile[0], tile]),
    ([title]) => element("div", { className: "tile" }, element("dt", { textContent: title }), element("dd")),
    (tile, [, text, tone]) => {
      setText(tile.lastChild, text);
      tile.dataset.tone = tone ?? "";
    },
  );
}

/** Return what is said of a run in short: titles, texts, and perhaps tones. */
function tilesOf(run) {
  const tiles = [["Workers", count(run.workers.length)]];
  const troubled = run.workers.filter((worker) => ["silent", "quarantined"].includes(worker.state));
  if (troubled.length) tiles.push(["In trouble", namesOf(troubled), "bad"]);
  const [name] = [...new Set(run.workers.flatMap((worker) => Object.keys(worker.scalars)))].sort(lossFirst);
  if (name !== undefined) {
    const values = run.workers.map((worker) => worker.scalars[name] ?? null).filter((value) => value !== null);
    tiles.push([name.slice(0, 40), number(values.length ? values.reduce((a, b) => a + b, 0) / values.length : null)]);
  }
  const steps = run.workers.map((worker) => worker.step).filter((step) => step !== null);
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  tiles.push(["Step", steps.length ? (first === last ? count(last) : `${count(first)} – ${count(last)}`) : "–"]);
  tiles.push(["Held up by", heldUpBy(run)]);
  tiles.push(["Updates/s", number(run.figures.updates_per_second)]);
  tiles.push(["Traffic", rate(run.figures.update_bytes_per_second)]);
  tiles.push(["Parameters", number(run.parameters)]);
  tiles.push(["Mode", run.mode]);
  if (run.checkpoint !== null) tiles.push(["Checkpoint", run.checkpoint.file ?? "none yet"]);
  if (run.stopping !== null) tiles.push(["All are to end", run.stopping, "warn"]);
  else if (run.finished) tiles.push(["Finished", "yes", "good"]);
  if (run.scalars_dropped) tiles.push(["Scalars dropped", count(run.scalars_dropped), "warn"]);
  return tiles;
}

/** Say whom a round waits for; without rounds, who has not taken what all others have. */
function heldUpBy(run) {
  const awaited = run.workers.filter((worker) => worker.awaited);
  if (awaited.length) return awaited.length === run.workers.length ? "nobody" : namesOf(awaited);
  const silent = run.workers.filter((worker) => worker.state === "silent" && worker.lacks_updates > 0);
  return silent.length ? namesOf(silent) : "nobody";
}

function namesOf(workers) {
  const ranks = workers.slice(0, 5).map((worker) => worker.rank).join(", ");
  return `rank ${ranks}${workers.length > 5 ? ` and ${workers.length - 5} more` : ""}`;
}

// Events.

/** Ask for what has happened since the last event that is known: at first, and after a gap. */
async function fetchEvents(run) {
  if (state.isAsking) return;
  state.isAsking = true;
  try {
    const found = await get(ofRun(run, `/events?after=${state.lastEvent}`));
    if (run === state.run) addEvents(found.events, found.last);
  } catch (error) {
    lost(error);
  } finally {
    state.isAsking = false;
  }
}

function forgetEvents() {
  state.events = new Map();
  state.lastEvent = 0;
  byId("event-list").replaceChildren();
  charts.events = [];
}

function addEvents(events, last) {
  const isFirst = state.lastEvent === 0;
  state.lastEvent = Math.max(state.lastEvent, last);
  for (const event of events) state.events.set(event.number, event);
  while (state.events.size > EVENTS_MAX) state.events.delete(Math.min(...state.events.keys()));
  const sorted = [...state.events.values()].sort((a, b) => b.number - a.number);
  reconcile(byId("event-list"), sorted.map((event) => [event.number, event]), (event) =>
    element(
      "li", {},
      element("time", { textContent: clock(event.unix_time), dateTime: new Date(1000 * event.unix_time).toISOString() }),
      element("span", { className: "kind", textContent: event.kind, "data-tone": toneOf(event.kind) }),
      element("span", { className: "text", textContent: event.text }),
    ), () => {});
  charts.events = sorted;
  charts.redraw();
  if (!isFirst && events.length) say(events.slice(-3).map((event) => event.text).join(". "));
}

/** Have a screen reader say something. */
function say(text) {
  byId("said").append(element("span", { textContent: `${text} ` }));
  while (byId("said").children.length > 5) byId("said").firstChild.remove();
}

// Orders.

async function learnAccess() {
  try {
    const { orders } = await get("access");
    roster.canOrder = orders;
    show(byId("orders"), orders);
    show(byId("orders-link"), orders);
  } catch {
    // The stream says what is wrong.
  }
}

function drawOrders(run) {
  reconcile(
    byId("order-buttons"),
    ORDERS.filter((each) => each.when(run, state.summary)).map((each) => [each.action, each]),
    (each) => {
      const button = element("button", { type: "button", textContent: each.title });
      button.addEventListener("click", () => give(each.action, each.title, each.text, "", each.ofAll ? null : state.run));
      return button;
    },
    () => {},
  );
}

function act(action, worker) {
  if (action === "show") {
    const ranks = new Set(charts.ranks ?? []);
    if (!ranks.delete(worker.rank)) ranks.add(worker.rank);
    charts.ranks = ranks.size ? ranks : null;
    say(ranks.size ? `Charts show rank ${[...ranks].join(", ")}.` : "Charts show the first workers.");
    charts.askAgain();
    return;
  }
  const [title, text] = WORKER_ORDERS[action];
  const [name, run] = action === "deny" ? [worker.key_name, null] : [String(worker.rank), state.run];
  void give(action, `${title} rank ${worker.rank} (${worker.name})`, text, name, run);
}

async function give(action, title, text, name, run) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "yes") return;
  const answer = byId("order-answer");
  answer.classList.remove("problem");
  try {
    setText(answer, await order(action, name, run));
  } catch (error) {
    answer.classList.add("problem");
    setText(answer, error.message);
  }
}

// The token.

function askForToken(problem) {
  state.following?.abort();
  token.forget();
  for (const id of ["everything", "sections", "run-choice", "forget", "notice"]) show(byId(id), false);
  show(byId("ask"), true);
  setLiveness("", "needs a token");
  setText(byId("token-error"), problem);
  byId("token").focus();
}

function begin() {
  show(byId("forget"), token.get() !== null);
  void learnAccess();
  choose(wantedRun());
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = byId("token").value.trim();
  byId("token").value = "";
  if (!/^[\x21-\x7e]+$/.test(typed)) {
    setText(byId("token-error"), "A token is one word of letters, digits and a few signs.");
    return;
  }
  token.set(typed);
  setText(byId("token-error"), "");
  begin();
});

byId("forget").addEventListener("click", () => askForToken(""));

// Choices.

byId("run").addEventListener("change", (event) => {
  location.hash = `#${new URLSearchParams({ run: event.target.value })}`;
  choose(event.target.value);
});

byId("other").addEventListener("change", (event) => {
  charts.other = event.target.value || null;
  charts.askAgain();
});

for (const radio of document.querySelectorAll('input[name="axis"]')) {
  radio.addEventListener("change", () => {
    charts.axis = radio.value;
    charts.redraw();
  });
}

byId("log").addEventListener("change", (event) => {
  charts.log = event.target.checked;
  charts.redraw();
});

byId("smoothing").addEventListener("input", (event) => {
  charts.smoothing = Number(event.target.value);
  charts.redraw();
});

byId("freeze").addEventListener("click", (event) => {
  charts.frozen = !charts.frozen;
  event.target.setAttribute("aria-pressed", charts.frozen);
  setText(event.target, charts.frozen ? "Frozen" : "Freeze");
  void charts.refresh();
});

for (const kind of ["csv", "jsonl"]) {
  byId(kind).addEventListener("click", () => {
    download(ofRun(state.run, `/series?format=${kind}`), `${state.run}.${kind}`).catch(lost);
  });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(byId("theme"), theme === "dark" ? "Light" : "Dark");
  charts.redraw();
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
setTheme(localStorage.getItem(THEME) ?? (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", () => {
  if (localStorage.getItem(THEME) === null) setTheme(prefersDark.matches ? "dark" : "light");
});
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem(THEME, theme);
  setTheme(theme);
});

document.addEventListener("visibilitychange", () => charts.refresh());

for (const link of document.querySelectorAll("#sections a")) {
  // The hash has the run, so that a reload finds it: a section is gone to without it.
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const section = byId(link.hash.slice(1));
    section.scrollIntoView();
    section.setAttribute("tabindex", "-1");
    section.focus({ preventScroll: true });
  });
}

begin();
