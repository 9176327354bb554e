// Who is connected through whom, as a tree of lists: a screen reader reads it as it is drawn.

import { element } from "./dom.js";
import { count } from "./format.js";

const LEAVES_MAX = 64;

/** Draw the masters, the relays, and the workers behind each. */
export function drawTopology(place, overview, run) {
  const behind = (number) => run.workers.filter((worker) => worker.relay === number);
  const relays = overview.relays.map((relay) =>
    element("li", {}, node(`relay ${relay.number} at ${relay.address}`), leaves(behind(relay.number))),
  );
  const part = overview.shard === null ? "" : `part ${overview.shard} of the parameters, `;
  const master = element(
    "li", {},
    node(`this master: ${part}${count(run.workers.length)} workers, ${count(run.parameters)} parameters`),
    element("ul", {}, ...relays, element("li", {}, leaves(behind(null)))),
  );
  const all = [master];
  overview.shards.forEach((address, index) => {
    const which = `${index + 1}/${overview.shards.length}`;
    if (which !== overview.shard) {
      all.push(element("li", {}, node(`another master, with part ${which} of the parameters, at ${address}`)));
    }
  });
  const { other, role, standby_connected: connected } = overview.master;
  if (other) {
    const what = role === "standby" ? "primary" : "standby";
    all.push(element("li", {}, node(`${what} at ${other}${connected || role === "standby" ? "" : ", not connected"}`)));
  }
  if (run.observers.length) {
    all.push(element("li", {}, node(`${count(run.observers.length)} observers`)));
  }
  const signature = all.map((each) => each.textContent).join("|") + run.workers.map((worker) => worker.state).join();
  if (place.dataset.shown === signature) return;
  place.dataset.shown = signature;
  place.replaceChildren(element("ul", {}, ...all));
}

function node(text) {
  return element("span", { className: "node", textContent: text });
}

function leaves(workers) {
  const list = element("div", { className: "leaves" });
  for (const worker of workers.slice(0, LEAVES_MAX)) {
    const leaf = node(`${worker.rank} ${worker.name}`);
    leaf.classList.add("state");
    leaf.dataset.state = worker.state;
    leaf.title = `${worker.state}, ${worker.address}`;
    list.append(leaf);
  }
  if (workers.length > LEAVES_MAX) list.append(node(`and ${workers.length - LEAVES_MAX} more`));
  return list;
}
