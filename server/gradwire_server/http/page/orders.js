// Orders: each is asked for once more before it is given.

import { byId, element, reconcile, setText } from "./dom.js";
import { order } from "./api.js";

const OF_DAEMON = ["drain", "resume", "deny"];
const ANSWER_MILLISECONDS = 15_000;

const BUTTONS = [
  ["checkpoint", "Write a checkpoint", "The master writes a checkpoint of the run now.", () => true],
  ["pause-items", "Pause items", "No item is granted any more; workers end those that they hold, and wait.", (_, run) => run.works.length > 0 && !run.items_paused],
  ["resume-items", "Resume items", "Items are granted again.", (_, run) => run.works.length > 0 && run.items_paused],
  ["stop-training", "Stop training", "All workers end their training, and the run is finished.", (_, run) => run.stopping === null],
  ["end-run", "End the run", "Workers are sent away, and the next one begins another run. The last checkpoint stays.", () => true],
  ["drain", "Drain", "Nobody is let in any more, and the master ends when the last worker has left.", (overview) => !overview.draining],
  ["resume", "Let workers in again", "Workers may join again.", (overview) => overview.draining],
];

const OF_WORKERS = {
  expel: ["Expel", "Its connection is closed; unless its name is denied, it may join again."],
  release: ["Release", "The updates that were kept aside are accepted, and all later ones."],
  deny: ["Deny", "Its key is taken no more until the master ends."],
};

/** Show the orders that make sense now. */
export function drawOrders(overview, run) {
  const takes = (action) => run.ended_unix_time === null || OF_DAEMON.includes(action);
  const wanted = BUTTONS.filter(([action, , , makesSense]) => takes(action) && makesSense(overview, run));
  reconcile(byId("order-buttons"), wanted.map((each) => [`${run.name}/${each[0]}`, each]), ([action, title, text]) => {
    const button = element("button", { type: "button", textContent: title });
    button.addEventListener("click", () => give(action, title, text, "", run.name));
    return button;
  }, () => {});
}

/** Give an order about a worker. */
export function orderAbout(action, worker, run) {
  const [title, text] = OF_WORKERS[action];
  const name = action === "deny" ? worker.key_name : String(worker.rank);
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
  try {
    answer(await order(action, name, OF_DAEMON.includes(action) ? null : run), false);
  } catch (error) {
    answer(error.message, true);
  }
}

function answer(text, isProblem) {
  const shown = byId("order-answer");
  shown.classList.toggle("problem", isProblem);
  setText(shown, text);
  clearTimeout(answer.timer);
  answer.timer = setTimeout(() => setText(shown, ""), ANSWER_MILLISECONDS);
}
