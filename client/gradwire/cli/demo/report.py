"""Result of the demo: a table, a JSON object, a picture.

Losses are those of the final parameters on held-out text. Bytes are those that the workers' sockets
counted: all that they sent and received, which is all that was sent.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from matplotlib.figure import Figure

from gradwire.cli.demo.model import evaluate, new_model
from gradwire.cli.demo.text import load_text
from gradwire.errors import GradwireError

SMOOTHING: Final = 25
"""Steps over which curves are averaged, so that they can be told apart."""

ROWS: Final = {
    "parameters": "{parameters:,}",
    "held-out loss of {workers} workers": "{loss_shared:.3f}",
    "held-out loss of one alone, as many steps": "{loss_single:.3f}",
    "before training": "{loss_start:.3f}",
    "bytes sent": "{bytes_sent:,}",
    "dense float32 all-reduce, same steps": "{bytes_dense:,}",
    "times fewer": "{compression:.0f}",
    "updates sent": "{updates_sent:,}",
    "updates applied": "{updates_applied:,}",
    "digests of the replicas": "{digests}",
    "seconds": "{seconds:.0f}",
}


read = partial(torch.load, weights_only=True)
"""Returns what a worker has written."""


def judge(found: Sequence[dict[str, Any]], single: dict[str, Any]) -> dict[str, Any]:
    """Return the result; `GradwireError` if the workers' parameters are not the same."""
    state = found[0]["state"]
    for rank, each in enumerate(found):
        if any(not torch.equal(each["state"][name], state[name]) for name in state):
            raise GradwireError(f"worker {rank} does not have the same parameters as the others")
    model, (_, held_out) = new_model(), load_text()
    losses = [evaluate(model, held_out)]
    for trained in (single["state"], state):
        model.load_state_dict(trained)
        losses.append(evaluate(model, held_out))
    workers, steps = len(found), len(single["losses"])
    parameters = sum(p.numel() for p in model.parameters())
    # In a ring all-reduce, all workers together send each parameter 2 (n - 1) times.
    bytes_dense = 2 * (workers - 1) * 4 * parameters * steps
    bytes_sent = sum(each["bytes"][-1][1] for each in found)
    return {
        "workers": workers,
        "steps": steps,
        "parameters": parameters,
        "loss_start": losses[0],
        "loss_single": losses[1],
        "loss_shared": losses[2],
        "bytes_sent": bytes_sent,
        "bytes_dense": bytes_dense,
        "compression": bytes_dense / bytes_sent,
        "digests": [each["digest"] for each in found],
        "updates_sent": sum(each["updates"][0] for each in found),
        "updates_applied": sum(each["updates"][1] for each in found),
    }


def table(result: dict[str, Any]) -> str:
    """Return the result as lines for people."""
    return "\n".join(f"{n.format_map(result):<42} {v.format_map(result)}" for n, v in ROWS.items())


def draw(
    found: Sequence[dict[str, Any]], single: dict[str, Any], result: dict[str, Any], path: Path
) -> None:
    """Draw loss against steps, and loss against bytes."""
    steps = np.arange(1, result["steps"] + 1)
    shared = _smooth(np.mean([each["losses"] for each in found], axis=0))
    counts = np.sum([each["bytes"] for each in found], axis=0) / [len(found), 1]
    sent = np.interp(steps, counts[:, 0], counts[:, 1])
    dense = result["bytes_dense"] / result["steps"] * steps
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    by_steps, by_bytes = figure.subplots(1, 2, sharey=True)
    by_steps.plot(steps, _smooth(single["losses"]), "tab:gray", label="one worker alone")
    by_steps.plot(steps, shared, "tab:blue", label=f"{len(found)} workers with gradwire")
    for loss, color in (("loss_single", "tab:gray"), ("loss_shared", "tab:blue")):
        by_steps.plot(result["steps"], result[loss], "o", color=color)
        by_steps.text(1.02 * result["steps"], result[loss], f"{result[loss]:.2f}")
    by_steps.set(xlabel="steps of each worker", ylabel="training loss; dots: of held-out text")
    by_bytes.plot(sent / 1e6, shared, "tab:blue", label="gradwire, counted at the sockets")
    by_bytes.plot(dense / 1e6, shared, "--", color="tab:red", label="dense all-reduce, computed")
    by_bytes.set(xscale="log", xlabel="megabytes sent", title=f"{result['compression']:.0f}x fewer")
    for axes in (by_steps, by_bytes):
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.savefig(path, dpi=120)


def _smooth(losses: Any) -> Any:
    """Return a running mean over the last `SMOOTHING` values, or fewer at the beginning."""
    ends = range(1, len(losses) + 1)
    return [np.mean(losses[max(end - SMOOTHING, 0) : end]) for end in ends]
