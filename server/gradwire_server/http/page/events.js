// What has happened in a run: a list, which charts mark and a screen reader says.

import { byId, element, reconcile, setText } from "./dom.js";
import { clock } from "./format.js";
import { get, ofRun } from "./api.js";

const EVENTS_MAX = 1_000;
const GAP_MILLISECONDS = 300;

const TONES = {
  lost: "bad", expelled: "bad", quarantined: "bad", "checkpoint failed": "bad", repaired: "bad",
  joined: "good", back: "good", began: "good", released: "good", finished: "good",
  left: "warn", outlying: "warn", stopping: "warn",
};

/** Return how an event of a kind is shown: the name of a colour. */
export function toneOf(kind) {
  return TONES[kind] ?? "dim";
}

/** Say something to those who use a screen reader. */
export function say(text) {
  byId("said").append(element("p", { textContent: text }));
  while (byId("said").children.length > 5) byId("said").firstChild.remove();
}

/** The events of the run that is followed; `changed` is told of all of them. */
export class Events {
  constructor({ changed, onFailure }) {
    Object.assign(this, { changed, onFailure, isAsking: false });
    this.follow(null);
  }

  follow(run) {
    this.run = run;
    this.found = new Map();
    this.last = 0; // The number of the newest one that was asked for.
    this.draw();
  }

  /** Take events that came by themselves; those in a gap before them are asked for. */
  take({ events, last }) {
    if (events.length > 0 && events[0].number <= this.last + 1) this.add(events, last);
  }

  /** Note how many there are: what did not come by itself soon after is asked for. */
  note(last) {
    if (last < this.last) this.follow(this.run); // The master was started again.
    const { run } = this;
    setTimeout(() => {
      if (run === this.run && last > this.last) void this.fetch();
    }, this.last === 0 ? 0 : GAP_MILLISECONDS);
  }

  async fetch() {
    if (this.isAsking) return;
    this.isAsking = true;
    const { run } = this;
    try {
      const { events, last } = await get(ofRun(run, `/events?after=${this.last}`));
      if (run === this.run) this.add(events, last);
    } catch (error) {
      this.onFailure(error);
    } finally {
      this.isAsking = false;
    }
  }

  add(events, last) {
    const isFirst = this.last === 0;
    this.last = Math.max(this.last, last);
    for (const event of events) this.found.set(event.number, event);
    for (const number of this.found.keys()) {
      if (this.found.size <= EVENTS_MAX) break;
      this.found.delete(number);
    }
    this.draw();
    if (!isFirst && events.length) say(events.slice(-3).map((event) => event.text).join(". "));
  }

  draw() {
    const sorted = [...this.found.values()].sort((a, b) => b.number - a.number);
    reconcile(byId("event-list"), sorted.map((event) => [event.number, event]), (event) =>
      element(
        "li", {},
        element("time", { textContent: clock(event.unix_time), dateTime: new Date(1000 * event.unix_time).toISOString() }),
        element("span", { className: "kind", textContent: event.kind, "data-tone": toneOf(event.kind) }),
        element("span", { className: "text", textContent: event.text }),
      ), () => {});
    this.changed(sorted);
  }
}
