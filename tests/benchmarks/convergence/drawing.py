"""The curves of benchmark `convergence`: loss against samples, against bytes, against seconds.

The seconds are those on a link of 100 Mbit/s that all share, by arithmetic: a step of a synchronous
method takes what one worker's computing takes and then what its bytes take on the link; gradwire
sends while it computes, so a step takes the longer of both.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture

from benchmarks.convergence.results import DDP, GRADWIRE, POWER_SGD, Comparison
from benchmarks.convergence.tasks import BATCH
from benchmarks.figures import machine

LINK_MEGABYTES_PER_SECOND: Final = 100 / 8
METHODS: Final = {DDP: "tab:gray", POWER_SGD: "tab:orange", GRADWIRE: "tab:blue"}
"""And what they are drawn in."""


class Axis(NamedTuple):
    """What the loss is drawn against."""

    label: str
    scale: str
    value: Callable[[Comparison, str, int], float]
    """Of one step, by method and number of workers."""


def megabytes_of_step(done: Comparison, method: str, workers: int) -> float:
    """Return what all processes send in a step."""
    return done.four[method].megabytes / done.task.steps


def seconds_of_step(done: Comparison, method: str, workers: int) -> float:
    """Return what a step takes on the link."""
    sending = megabytes_of_step(done, method, workers) / LINK_MEGABYTES_PER_SECOND
    return max(done.seconds, sending) if method == GRADWIRE else done.seconds + sending


AXES: Final = (
    Axis("samples", "linear", lambda done, method, workers: workers * BATCH),
    Axis("sent by all, MB", "log", megabytes_of_step),
    Axis("seconds on a shared 100 Mbit/s link", "log", seconds_of_step),
)


def draw_comparisons(compared: Sequence[Comparison], workers: int, path: Path) -> None:
    """Draw a row for each task, and a column for each axis."""
    picture = Picture(figsize=(11, 3.1 * len(compared) + 0.9), layout="constrained")
    FigureCanvasAgg(picture)
    rows = picture.subplots(len(compared), len(AXES), squeeze=False, sharey="row")
    for row, done in zip(rows, compared, strict=True):
        for axes, axis in zip(row, AXES, strict=True):
            _draw(axes, done, axis, workers)
        row[0].set_ylabel(f"{done.task.name}: held-out loss")
    handles, labels = rows[0][0].get_legend_handles_labels()
    picture.legend(handles, labels, ncols=len(labels), fontsize=9, loc="outside lower center")
    picture.suptitle(
        f"{workers} workers, each method at its best learning rate; bands are seeds\n{machine()}",
        fontsize=9,
    )
    picture.savefig(path, dpi=110)


def _draw(axes: Any, done: Comparison, axis: Axis, workers: int) -> None:
    for method, color in METHODS.items():
        outcomes = done.four[method].best
        losses = np.array([outcome.losses for outcome in outcomes])
        x = axis.value(done, method, workers) * np.array(outcomes[0].steps)
        axes.plot(x, losses.mean(0), color=color, label=method, linewidth=2)
        axes.fill_between(x, losses.min(0), losses.max(0), color=color, alpha=0.2, linewidth=0)
    axes.set_xscale(axis.scale)
    axes.set_yscale("log")
    axes.grid(which="both", color="0.92")
    axes.set_xlabel(axis.label)
