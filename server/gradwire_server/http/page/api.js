// What the master is asked, and the token. The token goes into a header, never into a URL.

const PREFIX = "/api/v1/";
const KEPT = "gradwire-token";
const SILENT_MILLISECONDS = 30_000; // The master sends more seldom than once a second under load.
const PAUSES = [1_000, 2_000, 5_000, 10_000];

/** A request that the master has refused. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (value) => sessionStorage.setItem(KEPT, value),
  forget: () => sessionStorage.removeItem(KEPT),
};

/** Return the path of a run's document. */
export function ofRun(run, what = "") {
  return `runs/${encodeURIComponent(run)}${what}`;
}

/** Return a document, or a download as a `blob`. */
export async function get(path, kind = "json") {
  return (await ask(path))[kind]();
}

/** Give an order; return what was done. */
export async function order(action, name, run) {
  const response = await ask("orders", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ action, name, run }),
  });
  return (await response.json()).done;
}

/**
 * Follow a run, or the overview alone, until the signal is aborted.
 *
 * `heard` is called with each event; `lost` with the error when the stream ends, and again for each
 * try that fails. It ends where the master refuses the request itself: a token, or a run.
 */
export async function follow(run, { heard, lost, signal }) {
  let tries = 0;
  while (!signal.aborted) {
    try {
      const query = run === null ? "" : `?run=${encodeURIComponent(run)}`;
      for await (const event of events(`stream${query}`, signal)) {
        tries = 0;
        queueMicrotask(() => signal.aborted || heard(event)); // Its errors are no lost connection.
      }
      throw new Error("the master has ended the connection");
    } catch (error) {
      if (signal.aborted) return;
      lost(error);
      if (error instanceof Refused && [400, 401, 403, 404].includes(error.status)) return;
    }
    await pause(PAUSES[Math.min(tries, PAUSES.length - 1)], signal);
    tries += 1;
  }
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get() !== null) headers.Authorization = `Bearer ${token.get()}`;
  const response = await fetch(PREFIX + path, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw new Refused(response.status, (await response.text()).trim());
  return response;
}

/** Yield the events of a stream (WHATWG HTML, section 9.2.6). */
async function* events(path, signal) {
  const gone = new AbortController();
  const stop = () => gone.abort();
  signal.addEventListener("abort", stop);
  let silence = setTimeout(stop, SILENT_MILLISECONDS);
  try {
    const response = await ask(path, { signal: gone.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(stop, SILENT_MILLISECONDS);
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) yield parsed(part);
    }
  } finally {
    clearTimeout(silence);
    signal.removeEventListener("abort", stop);
    gone.abort();
  }
}

/** Return what is in an event, as the master writes it: a line with the kind, and one with the data. */
function parsed(part) {
  const [, kind, data] = /^event: (.*)\ndata: (.*)$/.exec(part);
  return { kind, data: JSON.parse(data) };
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", resolve);
  });
}
