"""The curves of benchmark `time-to-loss`: loss against seconds, and against bytes."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter, LogFormatter

from benchmarks.figures import machine
from benchmarks.time_to_loss.cells import Outcome
from benchmarks.time_to_loss.methods import METHODS, MODES


def draw_curves(found: Mapping[tuple[str, float, str], Outcome], folder: Path) -> None:
    """Draw two pictures, each with a row for a task and a column for a link.

    Parameters
    ----------
    found : mapping
        By task, link and method.
    folder : Path
    """
    if found:
        _draw(found, "seconds", "linear", folder / "time-to-loss.png")
        _draw(found, "megabytes", "log", folder / "bytes-to-loss.png")


def _draw(
    found: Mapping[tuple[str, float, str], Outcome], field: str, scale: str, path: Path
) -> None:
    tasks = list(dict.fromkeys(task for task, _, _ in found))
    links = list(dict.fromkeys(link for _, link, _ in found))
    picture = Picture(figsize=(3.6 * len(links) + 0.6, 2.9 * len(tasks) + 1.5),
                      layout="constrained")  # fmt: skip
    FigureCanvasAgg(picture)
    rows = picture.subplots(len(tasks), len(links), squeeze=False, sharey="row")
    legend: dict[str, Any] = {}
    for task, row in zip(tasks, rows, strict=True):
        for link, axes in zip(links, row, strict=True):
            for method in METHODS:
                if (task, link, method) in found:
                    legend[method] = _line(axes, found[task, link, method], field, method)
            axes.set_xscale(scale)
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
            axes.grid(which="both", color="0.92")
            axes.set_title(f"{task}, {link:g} Mbit/s", fontsize=9)
        row[0].set_ylabel("held-out loss")
    for axes in rows[-1]:
        axes.set_xlabel("seconds" if field == "seconds" else "MB that the link has carried")
    picture.legend(legend.values(), legend, ncols=1 + len(links), fontsize=8,
                   loc="outside lower center")  # fmt: skip
    picture.suptitle(f"each method at its best learning rate\n{machine()}", fontsize=9)
    picture.savefig(path, dpi=110)


def _line(axes: Any, outcome: Outcome, field: str, method: str) -> Any:
    """Draw one method, ours in strong lines; return what the legend shows."""
    ours = method in MODES
    points = [
        (x, loss)
        for x, loss in zip(getattr(outcome, field), outcome.losses, strict=True)
        if isfinite(loss) and x > 0
    ]
    xs, losses = zip(*points, strict=True) if points else ((), ())
    color = f"C{METHODS.index(method) % 10}"
    [line] = axes.plot(xs, losses, color=color, linewidth=2.2 if ours else 1.3,
                       linestyle="-" if ours else "--", label=method)  # fmt: skip
    return line
