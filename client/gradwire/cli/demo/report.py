"""Result of the demo: a table, a JSON object, a picture.

Losses are those of the saved parameters on held-out text, after the run. Bytes are those that the
sockets counted.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from gradwire.cli.demo.model import evaluate, new_model
from gradwire.cli.demo.race import Progress, Race
from gradwire.cli.demo.text import load_text
from gradwire.errors import GradwireError

SMOOTHING = 25
"""Steps over which curves are averaged, so that they can be told apart."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result, as ``--json`` writes it."""

    workers: int
    steps: int
    """Of each worker."""
    parameters: int
    loss_start: float
    """On held-out text, before any training."""
    loss_single: float
    """After as many steps of one worker alone."""
    loss_shared: float
    """After the run of all workers."""
    bytes_sent: int
    """UDP payload that all sockets sent, the master's included: parameters at the beginning,
    updates, acknowledgements, and all else."""
    bytes_dense: int
    """What a ring all-reduce of float32 gradients would have sent in the same steps."""
    compression: float
    """`bytes_dense` over `bytes_sent`."""
    digests: list[str]
    """Digests of the workers' replicas, which are equal."""
    updates_sent: int
    updates_applied: int
    """By all workers together: each update counts at every worker but its origin."""
    seconds: float
    """Duration of the whole demo."""


def judge(race: Race) -> Result:
    """Evaluate the parameters of all workers; `GradwireError` if their bits are not the same."""
    _, held_out = load_text()
    model = new_model()
    parameters = sum(p.numel() for p in model.parameters())
    loss_start = evaluate(model, held_out)
    model.load_state_dict(_load(race, race.alone))
    loss_single = evaluate(model, held_out)
    states = [_load(race, worker) for worker in race.workers]
    for worker, state in zip(race.workers, states, strict=True):
        if any(not torch.equal(state[name], states[0][name]) for name in state):
            raise GradwireError(
                f"{worker.name} does not have the same parameters as the other workers"
            )
    model.load_state_dict(states[0])
    loss_shared = evaluate(model, held_out)
    n = len(race.workers)
    # In a ring all-reduce, all workers together send each parameter 2 (n - 1) times.
    bytes_dense = 2 * (n - 1) * 4 * parameters * race.steps
    return Result(
        workers=n,
        steps=race.steps,
        parameters=parameters,
        loss_start=loss_start,
        loss_single=loss_single,
        loss_shared=loss_shared,
        bytes_sent=race.bytes_sent,
        bytes_dense=bytes_dense,
        compression=bytes_dense / race.bytes_sent,
        digests=[worker.digest for worker in race.workers],
        updates_sent=sum(worker.stats["updates_sent"] for worker in race.workers),
        updates_applied=sum(worker.stats["updates_applied"] for worker in race.workers),
        seconds=time.monotonic() - race.began,
    )


def _load(race: Race, worker: Progress) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(race.saved(worker), weights_only=True)
    return state


def result_table(result: Result) -> Table:
    """Return the result as a table for people."""
    table = Table(title="gradwire demo", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("parameters", f"{result.parameters:,}")
    table.add_row(f"held-out loss of {result.workers} workers", f"{result.loss_shared:.3f}")
    table.add_row("held-out loss of one alone, as many steps", f"{result.loss_single:.3f}")
    table.add_row("before training", f"{result.loss_start:.3f}")
    table.add_section()
    table.add_row("sent by all sockets", f"{result.bytes_sent / 1e6:,.1f} MB")
    table.add_row("dense float32 all-reduce, same steps", f"{result.bytes_dense / 1e6:,.1f} MB")
    table.add_row("ratio", f"{result.compression:.0f}x")
    table.add_section()
    table.add_row("updates sent", f"{result.updates_sent:,}")
    table.add_row("updates applied by the others", f"{result.updates_applied:,}")
    for rank, digest in enumerate(result.digests):
        table.add_row(f"digest of replica {rank}", digest)
    table.add_section()
    table.add_row("seconds", f"{result.seconds:.0f}")
    return table


def write_json(result: Result, path: Path) -> None:
    """Write the result as one JSON object."""
    path.write_text(json.dumps(asdict(result)) + "\n", encoding="utf-8")


def draw(race: Race, result: Result, path: Path) -> None:
    """Draw loss against steps, and loss against bytes."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    by_steps, by_bytes = figure.subplots(1, 2, sharey=True)
    shared = np.mean([worker.losses for worker in race.workers], axis=0)
    steps = np.arange(1, result.steps + 1)
    _draw_by_steps(by_steps, result, steps, _smooth(shared), _smooth(np.array(race.alone.losses)))
    _draw_by_bytes(by_bytes, race, result, steps, _smooth(shared))
    figure.suptitle(
        f"A character transformer of {result.parameters:,} parameters on Python's standard library"
    )
    figure.savefig(path, dpi=120)


def _draw_by_steps(axes: Axes, result: Result, steps: Any, shared: Any, alone: Any) -> None:
    axes.plot(steps, alone, color="tab:gray", label="one worker alone")
    axes.plot(steps, shared, color="tab:blue", label=f"{result.workers} workers with gradwire")
    axes.plot(result.steps, result.loss_single, "o", color="tab:gray")
    axes.plot(result.steps, result.loss_shared, "o", color="tab:blue")
    for loss in (result.loss_single, result.loss_shared):
        axes.annotate(
            f"{loss:.2f}", (result.steps, loss), xytext=(6, -3), textcoords="offset points"
        )
    axes.set_xlabel("steps of each worker")
    axes.set_ylabel("loss (nats per character)")
    axes.set_title("training loss; dots: held-out text, after the run", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_by_bytes(axes: Axes, race: Race, result: Result, steps: Any, shared: Any) -> None:
    known = np.array([(0.0, 0), *race.bytes_by_step, (float(result.steps), result.bytes_sent)])
    sent = np.interp(steps, known[:, 0], known[:, 1])
    dense = result.bytes_dense / result.steps * steps
    axes.plot(sent / 1e6, shared, color="tab:blue", label="gradwire, counted at the sockets")
    axes.plot(
        dense / 1e6,
        shared,
        color="tab:red",
        linestyle="--",
        label="dense all-reduce, same steps, computed",
    )
    axes.set_xscale("log")
    axes.set_xlabel("megabytes sent by all machines")
    axes.set_title(f"{result.compression:.0f} times fewer bytes", fontsize=10)
    axes.grid(alpha=0.3, which="both")
    axes.legend()


def _smooth(losses: Any) -> Any:
    """Return a running mean over the last `SMOOTHING` values, or fewer at the beginning."""
    totals = np.cumsum(np.insert(losses, 0, 0.0))
    ends = np.arange(1, len(losses) + 1)
    starts = np.maximum(ends - SMOOTHING, 0)
    return (totals[ends] - totals[starts]) / (ends - starts)
