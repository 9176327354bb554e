// The page: follows one run, and hands what comes to its parts.

import { byId, element, reconcile, setText, show } from "./dom.js";
import { bytes, clock, count, duration, number, percent, rate } from "./format.js";
import { Refused, follow, get, ofRun, order, token } from "./api.js";
import { Charts, toneOf } from "./charts.js";
import { Layers } from "./layers.js";
import { Roster, lossFirst } from "./roster.js";
import { drawTopology } from "./topology.js";

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
  ["gradwire/delay_steps", { title: "Delay of changes, in steps" }],
  ["gradwire/momentum", { title: "Momentum in use" }],
  ["gradwire/overhead_ratio", { title: "Part of the time that gradwire takes", format: percent }],
];

const MEASURED = [
  ["master/updates_per_second", { title: "Updates per second" }],
  ["master/update_bytes_per_second", { title: "Updates, in bytes", format: rate }],
  ["master/relay_delay_seconds", { title: "From a worker to the others", format: duration }],
  ["master/staleness_updates", { title: "Staleness of updates" }],
  ["master/workers", { title: "Workers" }],
  ["master/unstable_updates", { title: "Updates that some worker lacks" }],
  ["master/processor_ratio", { title: "Processor of the master, of one core", format: percent }],
  ["master/memory_bytes", { title: "Memory of the master", format: bytes }],
  ["master/received_bytes_per_second", { title: "Received by the master", format: rate }],
  ["master/sent_bytes_per_second", { title: "Sent by the master", format: rate }],
].map(([name, spec]) => [name, { ...spec, seconds: true, alone: true }]);

const ORDERS = [
  { action: "drain", title: "Drain", when: (o) => !o.draining, of: "daemon", text: "Nobody is let in any more, and the master ends when the last worker has left." },
  { action: "resume", title: "Let workers in again", when: (o) => o.draining, of: "daemon", text: "Workers may join again." },
  { action: "checkpoint", title: "Write a checkpoint", when: () => true, text: "The master writes a checkpoint of the run now." },
  { action: "pause-items", title: "Pause items", when: (o, r) => r.works.length > 0 && !r.items_paused, text: "No item is granted any more; workers end those that they hold, and wait." },
  { action: "resume-items", title: "Resume items", when: (o, r) => r.works.length > 0 && r.items_paused, text: "Items are granted again." },
  { action: "stop-training", title: "Stop training", when: (o, r) => r.stopping === null, text: "All workers end their training, and the run is finished." },
  { action: "end-run", title: "End the run", when: () => true, text: "Workers are sent away, and the next one begins another run. The last checkpoint stays." },
];

const state = {
  run: null, // Its name; null for the overview alone.
  overview: null,
  document: null,
  isOver: false, // Whether the run that is shown has ended.
  logged: null, // What is there of a run that had ended before it was looked at.
  events: new Map(),
  lastEvent: 0, // The number of the last one that was asked for.
  isAsking: false, // Whether events, or what was logged, are on their way.
  following: null,
  heardAt: 0,
};

const charts = new Charts();
const layers = new Layers(byId("layer-charts"), charts);
const roster = new Roster(byId("roster"), act);

// Which run.

function wantedRun() {
  return new URLSearchParams(location.hash.slice(1)).get("run");
}

function hashOf(run) {
  return `#${new URLSearchParams({ run })}`;
}

/** Return which run to show: one that is followed stays until it is over. */
function picked(names, over) {
  if (state.run !== null && !state.isOver) return state.run;
  const wanted = wantedRun();
  // One that was over already when it was chosen stays; one that was followed to its end does not.
  if (names.includes(wanted) || (state.document === null && over.includes(wanted))) return wanted;
  return names[0] ?? state.run ?? over.at(-1) ?? null;
}

function choose(run) {
  state.following?.abort();
  state.run = run;
  state.isOver = state.overview?.over.includes(run) ?? false;
  state.document = null;
  state.logged = null;
  forgetEvents();
  charts.follow(run);
  layers.follow(run);
  document.body.classList.toggle("ended", state.isOver);
  const controller = (state.following = new AbortController());
  follow(state.isOver ? null : run, { heard, lost, signal: controller.signal });
}

/** Keep what is shown of a run that is over, until another one begins. */
function stayAfter(run) {
  state.following?.abort();
  state.isOver = true;
  say(saidOver());
  const controller = (state.following = new AbortController());
  follow(null, { heard, lost, signal: controller.signal });
}

function saidOver() {
  const shown = state.document === null ? "these curves are what its workers logged" : "this is how it was last";
  return `Run ${state.run} is over: ${shown}.`;
}

/** Ask for what workers of a run that is over have logged. */
async function fetchLogged(run) {
  if (state.isAsking) return;
  state.isAsking = true;
  try {
    const found = await get(ofRun(run, "/logged"));
    if (run === state.run && state.isOver) state.logged = found;
  } catch (error) {
    lost(error);
  } finally {
    state.isAsking = false;
  }
}

/** Ask for what has happened since the last event that is known: at first, and after a gap. */
async function fetchEvents(run, after = 0) {
  if (state.isAsking) return;
  state.isAsking = true;
  try {
    const found = await get(ofRun(run, `/events?after=${after}`));
    if (run === state.run) addEvents(found.events, { isNew: after > 0, last: found.last });
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

// What comes.

function heard({ kind, data }) {
  state.heardAt = Date.now();
  setLiveness("live", "live");
  show(byId("ask"), false);
  show(byId("everything"), true);
  byId("everything").classList.remove("stale");
  if (kind === "overview") {
    state.overview = data;
    drawOverview(data);
  } else if (kind === "run") {
    state.document = data;
    drawRun(data);
  } else if (kind === "events") {
    // Where the stream was away, some came before: `drawRun` asks for those.
    const isNext = data.events.length > 0 && data.events[0].number === state.lastEvent + 1;
    if (isNext) addEvents(data.events, { isNew: true, last: data.last });
  } else if (kind === "over") {
    stayAfter(state.run);
  }
  if (state.isOver) setText(byId("notice"), saidOver());
  show(byId("notice"), state.isOver);
}

function lost(error) {
  if (error instanceof Refused && error.status === 401) {
    askForToken(token.get() === null ? "" : "The master does not take this token.");
  } else if (error instanceof Refused && error.status === 404 && state.run !== null) {
    if (state.isOver) return; // Curves are asked for once more than there are.
    if (state.document === null) choose(null);
    else stayAfter(state.run);
  } else {
    const said = error instanceof Refused ? error.message : "no answer from the master; trying again";
    setLiveness("lost", state.heardAt ? `lost ${clock(state.heardAt / 1000)}` : "no answer");
    byId("everything").classList.add("stale");
    setText(byId("notice"), said);
    show(byId("notice"), true);
  }
}
charts.onFailure = lost;
layers.onFailure = lost;

function setLiveness(kind, text) {
  byId("liveness").dataset.state = kind;
  setText(byId("liveness"), text);
}

function drawOverview(overview) {
  const names = overview.runs.map((run) => run.name);
  const run = picked(names, overview.over);
  if (run !== state.run || (state.isOver && names.includes(run))) {
    // It leaves a run that has ended: a reload is to show the same.
    if (state.isOver && wantedRun() !== null) history.replaceState(null, "", hashOf(run));
    choose(run);
  }
  const select = byId("run");
  const options = [...names, ...overview.over];
  reconcile(
    select,
    options.map((name, index) => [name, [name, index < names.length ? "" : " (over)"]]),
    ([name]) => element("option", { value: name }),
    (option, [name, mark]) => setText(option, name.slice(0, 80) + mark),
  );
  if (run !== null) select.value = run;
  show(byId("run-choice"), options.length > 0);
  show(byId("sections"), run !== null);
  show(byId("nothing"), run === null);
  if (state.logged !== null) drawLogged(state.logged);
  else if (state.isOver && state.document === null && overview.over.includes(run)) void fetchLogged(run);
  show(byId("of-run"), run !== null && (state.document ?? state.logged) !== null);
  document.title = state.run === null ? "gradwire" : `${state.run} – gradwire`;
  drawSummary();
}

function drawRun(run) {
  show(byId("of-run"), true);
  charts.note(run.scalars);
  if (run.events < state.lastEvent) forgetEvents(); // The master was started again.
  // Those of this moment come right after it.
  setTimeout(() => {
    if (run.name === state.run && run.events > state.lastEvent) void fetchEvents(run.name, state.lastEvent);
  }, GAP_MILLISECONDS);
  drawCharts(run);
  roster.draw(run.workers);
  if (state.overview !== null) {
    drawTopology(byId("tree"), state.overview, run);
    drawOrders(state.overview, run);
  }
  drawSummary();
}

function drawLogged(logged) {
  drawCharts(logged);
  void charts.refresh(true); // Those that are not there yet: nothing else changes.
}

function drawCharts(run) {
  const own = run.series.filter((name) => !/^(gradwire|master)\//.test(name)).sort(lossFirst);
  show(byId("nothing-logged"), own.length === 0);
  charts.place(byId("scalars"), own.slice(0, SCALARS_MAX).map((name) => [name, { title: name }]));
  const there = new Set(run.series);
  charts.place(byId("own"), OWN.filter(([name]) => there.has(name)));
  charts.place(byId("measured"), MEASURED.filter(([name]) => there.has(name)));
  layers.note(run);
  show(byId("layers"), layers.hasAny);
  show(byId("layers-link"), layers.hasAny);
}

function drawSummary() {
  const { overview, document: run } = state;
  if (overview === null) return;
  const tiles = [];
  if (run !== null) {
    const steps = run.workers.map((worker) => worker.step).filter((step) => step !== null);
    const losses = run.workers.flatMap((worker) => Object.entries(worker.scalars).sort(([a], [b]) => lossFirst(a, b)).slice(0, 1));
    tiles.push(["Workers", count(run.workers.length)]);
    const troubled = run.workers.filter((worker) => ["silent", "quarantined"].includes(worker.state)).length;
    if (troubled) tiles.push(["Silent or quarantined", count(troubled)]);
    tiles.push(["Steps", steps.length ? `${count(Math.min(...steps))} – ${count(Math.max(...steps))}` : "–"]);
    const [name] = losses[0] ?? [];
    if (name !== undefined) {
      const values = losses.filter(([other, value]) => other === name && value !== null).map(([, value]) => value);
      tiles.push([name.slice(0, 40), values.length ? number(values.reduce((a, b) => a + b, 0) / values.length) : "–"]);
    }
    tiles.push(["Updates per second", number(run.figures.updates_per_second)]);
    tiles.push(["Updates, in bytes", rate(run.figures.update_bytes_per_second)]);
    tiles.push(["Parameters", number(run.parameters)]);
    tiles.push(["Mode", run.mode]);
    tiles.push(["Checkpoint", run.checkpoint?.file ?? run.checkpoint?.name ?? "none"]);
    if (run.stopping !== null) tiles.push(["All are to end", run.stopping]);
    else if (run.finished) tiles.push(["Finished", "yes"]);
  }
  tiles.push(["Master's processor", percent(overview.figures.processor_ratio)]);
  tiles.push(["Master's memory", bytes(overview.figures.memory_bytes)]);
  tiles.push(["Up for", duration(overview.uptime_seconds)]);
  tiles.push(["Version", overview.version]);
  if (overview.draining) tiles.push(["Draining", "nobody is let in"]);
  reconcile(
    byId("summary"),
    tiles.map(([title, text]) => [title, [title, text]]),
    ([title]) => element("div", { className: "tile" }, element("dt", { textContent: title }), element("dd")),
    (tile, [, text]) => setText(tile.lastChild, text),
  );
}

// Events.

function addEvents(events, { isNew, last }) {
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
  if (isNew && events.length) say(events.slice(-3).map((event) => event.text).join(". "));
}

function say(text) {
  byId("said").append(element("p", { textContent: text }));
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

function drawOrders(overview, run) {
  const wanted = ORDERS.filter((each) => each.when(overview, run));
  reconcile(
    byId("order-buttons"),
    wanted.map((each) => [each.action, each]),
    (each) => {
      const button = element("button", { type: "button", textContent: each.title });
      button.addEventListener("click", () => give(each.action, each.title, each.text, "", each.of === "daemon" ? null : state.run));
      return button;
    },
    () => {},
  );
}

function act(action, worker) {
  if (action === "show") {
    const ranks = charts.ranks ?? new Set(state.document.workers.slice(0, 16).map((each) => each.rank));
    if (charts.ranks !== null && ranks.has(worker.rank)) ranks.delete(worker.rank);
    else if (charts.ranks === null) ranks.clear(), ranks.add(worker.rank);
    else ranks.add(worker.rank);
    charts.ranks = ranks.size ? ranks : null;
    say(charts.ranks === null ? "Charts show the first workers." : `Charts show rank ${[...ranks].join(", ")}.`);
    for (const chart of charts.charts.values()) chart.curves = [];
    void charts.refresh(true);
    return;
  }
  const [title, text, name] = {
    expel: ["Expel", "Its connection is closed; unless its name is denied, it may join again.", String(worker.rank)],
    release: ["Release", "The updates that were kept aside are accepted, and all later ones.", String(worker.rank)],
    deny: ["Deny", "Its key is taken no more until the master ends.", worker.key_name],
  }[action];
  void give(action, `${title} rank ${worker.rank} (${worker.name})`, text, name, action === "deny" ? null : state.run);
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
  show(byId("everything"), false);
  show(byId("sections"), false);
  show(byId("run-choice"), false);
  show(byId("forget"), false);
  show(byId("notice"), false);
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

byId("forget").addEventListener("click", () => {
  askForToken("");
});

// Choices.

byId("run").addEventListener("change", (event) => {
  location.hash = hashOf(event.target.value);
  choose(event.target.value);
});

for (const radio of document.querySelectorAll('input[name="axis"]')) {
  radio.addEventListener("change", () => {
    charts.axis = document.querySelector('input[name="axis"]:checked').value;
    charts.redraw();
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

document.addEventListener("visibilitychange", () => charts.refresh(false));

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
