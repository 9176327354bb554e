// The page: follows one run, and hands what comes to its parts.

import { byId, element, reconcile, setText, show } from "./dom.js";
import { bytes, clock, count, duration, moment, number, percent, rate } from "./format.js";
import { Refused, follow, get, ofRun, token } from "./api.js";
import { Charts } from "./charts.js";
import { Events, say } from "./events.js";
import { Layers } from "./layers.js";
import { drawOrders, orderAbout } from "./orders.js";
import { Roster, heldUp, lossFirst } from "./roster.js";

const SCALARS_MAX = 48;
const RANKS_SHOWN = 16; // By the master, unless someone has chosen.
const THEME = "gradwire-theme";

const OWN = [
  ["gradwire/steps_per_second", { title: "Steps per second" }],
  ["gradwire/encoded_bytes_per_second", { title: "Sent by a worker", format: rate }],
  ["gradwire/density_ratio", { title: "Density of updates", format: percent }],
  ["gradwire/threshold", { title: "Threshold" }],
  ["gradwire/residual_age_steps", { title: "Age of the residual, in steps" }],
  ["gradwire/staleness_updates", { title: "Staleness, in updates" }],
  ["gradwire/wait_ratio", { title: "Part of the time that it waits for slower workers", format: percent }],
  ["gradwire/overhead_ratio", { title: "Part of the time that gradwire takes", format: percent }],
];

const MEASURED = [
  ["master/updates_per_second", { title: "Updates per second" }],
  ["master/update_bytes_per_second", { title: "Updates, in bytes", format: rate }],
  ["master/relay_delay_seconds", { title: "From a worker to the others", format: duration }],
  ["master/staleness_updates", { title: "Staleness of updates" }],
  ["master/unstable_updates", { title: "Updates that some worker lacks" }],
  ["master/processor_ratio", { title: "Processor of the master, of one core", format: percent }],
  ["master/memory_bytes", { title: "Memory of the master", format: bytes }],
  ["master/received_bytes_per_second", { title: "Received by the master", format: rate }],
  ["master/sent_bytes_per_second", { title: "Sent by the master", format: rate }],
].map(([name, spec]) => [name, { ...spec, seconds: true, alone: true }]);

const state = {
  run: null, // Its name; null for the summary alone.
  summary: null,
  document: null,
  isOver: false, // Whether the run that is shown has ended.
  mayOrder: false,
  following: null,
};

const charts = new Charts({ onFailure: lost, onZoom: () => freeze(true) });
const events = new Events({ onFailure: lost, changed: (found) => { charts.events = found; charts.redraw(); } });
const layers = new Layers(charts, lost);
const roster = new Roster(byId("roster"), act);

// Which run.

function wantedRun() {
  return new URLSearchParams(location.hash.slice(1)).get("run");
}

function choose(run) {
  Object.assign(state, { run, document: null, isOver: false });
  freeze(false);
  events.follow(run);
  charts.follow(run);
  layers.follow(run);
  besides(null);
  roster.shown = null;
  listen(run);
}

/** Return the run to go to, if the one that is shown does not stay. */
function nextRun(going, over) {
  const wanted = wantedRun();
  if (state.run === null) return [wanted, ...going, ...over].find((name) => going.includes(name) || over.includes(name));
  if (!state.isOver) return undefined;
  if (going.includes(state.run)) return state.run; // A new one of its name.
  // One that someone has chosen stays.
  return state.run === wanted ? undefined : [wanted, ...going].find((name) => going.includes(name));
}

/** Keep what is shown of a run that is over. */
function stayAfter() {
  state.isOver = true;
  say(`Run ${state.run} is over.`);
  listen(null);
}

function listen(run) {
  state.following?.abort();
  state.following = new AbortController();
  void follow(run, { heard, lost, signal: state.following.signal });
}

// What comes.

function heard({ kind, data }) {
  setLiveness("live", "live");
  show(byId("ask"), false);
  show(byId("everything"), true);
  byId("everything").classList.remove("stale");
  if (kind === "summary") drawSummary(data);
  else if (kind === "run") drawRun(data);
  else if (kind === "events") events.take(data);
  else if (kind === "over") stayAfter();
  if (state.isOver) {
    const ended = state.document?.ended_unix_time ?? null;
    setText(byId("notice"), `Run ${state.run} is over${ended === null ? "" : `, since ${moment(ended)}`}: this is how it was last.`);
  }
  byId("notice").classList.remove("problem");
  show(byId("notice"), state.isOver);
}

function lost(error) {
  const status = error instanceof Refused ? error.status : null;
  if (status === 401) {
    askForToken(token.get() === null ? "" : "The master does not take this token.");
  } else if (status === 404 && state.run !== null) {
    if (state.isOver) return; // Curves are asked for once more than there are.
    if (state.document === null) choose(null);
    else stayAfter();
  } else {
    setLiveness("lost", state.summary === null ? "no answer" : `lost ${clock(state.summary.unix_time)}`);
    byId("everything").classList.add("stale");
    byId("notice").classList.add("problem");
    setText(byId("notice"), status === null ? "No answer from the master; trying again." : error.message);
    show(byId("notice"), true);
  }
}

function setLiveness(kind, text) {
  byId("liveness").dataset.state = kind;
  setText(byId("liveness"), text);
}

function drawSummary(summary) {
  state.summary = summary;
  const going = summary.runs.map((run) => run.name);
  const next = nextRun(going, summary.over.map((run) => run.name));
  if (next !== undefined) choose(next);
  const titles = new Map([
    ...going.map((name) => [name, name.slice(0, 80)]),
    ...summary.over.map((run) => [run.name, `${run.name.slice(0, 80)}, ended ${moment(run.ended_unix_time)}`]),
  ]);
  const shown = titles.has(state.run) || state.run === null ? [...titles] : [[state.run, state.run.slice(0, 80)], ...titles];
  drawNames(byId("run"), shown);
  if (state.run !== null) byId("run").value = state.run;
  titles.delete(state.run);
  if (charts.other !== null && !titles.has(charts.other)) besides(null);
  drawNames(byId("other"), [["", "no other"], ...titles]);
  byId("other").value = charts.other ?? "";
  if (state.isOver && going.includes(charts.other)) void charts.refresh();
  show(byId("run-choice"), shown.length > 0);
  show(byId("other-choice"), titles.size > 0);
  show(byId("sections"), state.run !== null);
  show(byId("nothing"), state.run === null);
  show(byId("of-run"), state.document !== null);
  document.title = state.run === null ? "gradwire" : `${state.run} – gradwire`;
  drawTiles();
}

function drawNames(select, titles) {
  reconcile(select, titles.map(([name, title]) => [`=${name}`, [name, title]]), ([name]) => element("option", { value: name }), (option, [, title]) => setText(option, title));
}

function drawRun(run) {
  const isFirst = state.document === null;
  state.document = run;
  show(byId("of-run"), true);
  events.note(run.events);
  const own = run.series.filter((name) => !/^(gradwire|master)\//.test(name)).sort(lossFirst);
  const there = new Set(run.series);
  show(byId("nothing-logged"), own.length === 0);
  show(byId("key"), own.length > 0);
  charts.place(byId("scalars"), own.slice(0, SCALARS_MAX).map((name) => [name, { title: name }]));
  charts.place(byId("own"), OWN.filter(([name]) => there.has(name)));
  charts.place(byId("measured"), MEASURED.filter(([name]) => there.has(name)));
  charts.began = run.seconds === null ? null : run.unix_time - run.seconds;
  void charts.refresh({ now: isFirst });
  layers.note(run);
  roster.canOrder = state.mayOrder && run.ended_unix_time === null;
  roster.take(run);
  setText(byId("held-up"), heldUp(run));
  if (state.summary !== null) drawOrders(state.summary, run);
  drawTiles();
}

function drawTiles() {
  const { summary, document: run } = state;
  const tiles = [];
  if (run !== null) {
    const steps = run.workers.map((worker) => worker.step).filter((step) => step !== null);
    const troubled = run.workers.filter((worker) => ["silent", "quarantined"].includes(worker.state)).length;
    const logged = [...new Set(run.workers.flatMap((worker) => Object.keys(worker.scalars)))].sort(lossFirst)[0];
    if (logged !== undefined) {
      const values = run.workers.map((worker) => worker.scalars[logged]).filter((value) => value !== undefined);
      const isFinite = !values.includes(null);
      tiles.push([logged.slice(0, 40), isFinite ? number(values.reduce((a, b) => a + b, 0) / values.length) : "not finite"]);
    }
    tiles.push(["Steps", steps.length ? spanned(Math.min(...steps), Math.max(...steps)) : "–"]);
    tiles.push(["Workers", troubled ? `${count(run.workers.length)}, ${troubled} in trouble` : count(run.workers.length)]);
    if (run.ended_unix_time !== null) tiles.push([run.finished ? "Finished" : "Ended", moment(run.ended_unix_time)]);
    else tiles.push(["Updates", `${number(run.figures.updates_per_second)}/s, ${rate(run.figures.update_bytes_per_second)}`]);
    tiles.push(["Parameters", number(run.parameters)], ["Mode", run.mode]);
    if (run.checkpoint !== null) tiles.push(["Checkpoint", run.checkpoint.file ?? "none yet"]);
    if (run.stopping !== null) tiles.push(["All are to end", run.stopping]);
    else if (run.finished && run.ended_unix_time === null) tiles.push(["Finished", "yes"]);
  }
  if (summary !== null) {
    tiles.push(["Master", `${percent(summary.figures.processor_ratio)} of a core, ${bytes(summary.figures.memory_bytes)}`]);
    tiles.push([`Version ${summary.version}`, `up for ${duration(summary.uptime_seconds)}`]);
    if (summary.draining) tiles.push(["Draining", "nobody is let in"]);
  }
  reconcile(
    byId("summary"),
    tiles.map(([title, text]) => [title, [title, text]]),
    ([title]) => element("div", { className: "tile" }, element("dt", { textContent: title }), element("dd")),
    (tile, [, text]) => setText(tile.lastChild, text),
  );
}

function spanned(low, high) {
  return low === high ? count(low) : `${count(low)} – ${count(high)}`;
}

// What is done in the table of workers, and orders.

function act(action, worker) {
  if (action !== "show") {
    orderAbout(action, worker, state.run);
    return;
  }
  const ranks = new Set(charts.ranks ?? []);
  if (!ranks.delete(worker.rank)) ranks.add(worker.rank);
  charts.ranks = roster.shown = ranks.size ? ranks : null;
  say(charts.ranks === null ? `Charts show the first ${RANKS_SHOWN} workers.` : `Charts show rank ${[...ranks].join(", ")}.`);
  roster.draw();
  charts.forget();
}

async function learnAccess() {
  try {
    const { orders } = await get("access");
    state.mayOrder = orders;
    show(byId("order-buttons"), orders);
    show(byId("order-closed"), !orders);
    setText(byId("order-problem"), token.get() === null ? "" : "The token that was entered gives no orders.");
  } catch {
    // The stream says what is wrong.
  }
}

// The token.

function askForToken(problem) {
  state.following?.abort();
  token.forget();
  for (const id of ["everything", "sections", "run-choice", "other-choice", "forget", "notice"]) show(byId(id), false);
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

for (const id of ["forget", "enter"]) byId(id).addEventListener("click", () => askForToken(""));

// Choices.

byId("run").addEventListener("change", (event) => {
  location.hash = String(new URLSearchParams({ run: event.target.value }));
  choose(event.target.value);
});

function besides(other) {
  byId("other").value = other ?? "";
  charts.other = other;
  setText(byId("other-name"), other ?? "");
  show(byId("other-key"), other !== null);
}

byId("other").addEventListener("change", (event) => {
  besides(event.target.value || null);
  charts.forget();
});

for (const radio of document.querySelectorAll('input[name="axis"]')) {
  radio.addEventListener("change", async () => {
    charts.axis = document.querySelector('input[name="axis"]:checked').value;
    await charts.fetchTotals().catch(lost);
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

function freeze(frozen) {
  const wasFrozen = charts.frozen;
  charts.frozen = frozen;
  byId("freeze").setAttribute("aria-pressed", String(frozen));
  setText(byId("freeze"), frozen ? "Follow again" : "Freeze charts");
  if (wasFrozen && !frozen) void charts.refresh({ now: true });
}
byId("freeze").addEventListener("click", () => freeze(!charts.frozen));

/** Save a file of all curves: a link could not send the token. */
for (const format of ["csv", "jsonl"]) {
  byId(format).addEventListener("click", async (event) => {
    event.preventDefault();
    try {
      const url = URL.createObjectURL(await get(ofRun(state.run, `/series?format=${format}`), "blob"));
      element("a", { href: url, download: `${state.run}.${format}` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    } catch (error) {
      lost(error);
    }
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
