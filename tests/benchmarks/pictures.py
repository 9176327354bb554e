"""Drawings for the documentation: one line per program, over a few categories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import FuncFormatter

from benchmarks.figures import machine

OURS: Final = "gradwire"
"""What begins like this is drawn in strong lines."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What a picture shows; every value is above 0."""

    title: str
    categories: Sequence[str]
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[float]]
    limit: tuple[str, float] | None = None
    """What cannot be exceeded, and what it is called."""


def draw_lines(lines: Lines, path: Path) -> None:
    """Draw lines over categories, on a logarithmic scale."""
    picture = Picture(figsize=(7.2, 4.4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    places = range(len(lines.categories))
    for i, (name, values) in enumerate(lines.series.items()):
        ours = name.startswith(OURS)
        axes.plot(places, values, marker="o" if ours else "s", color=f"C{i}", label=name,
                  linewidth=2.5 if ours else 1.5, linestyle="-" if ours else "--")  # fmt: skip
        axes.annotate(f"{values[-1]:.3g}", (places[-1], values[-1]), textcoords="offset points",
                      xytext=(8, -3), fontsize=8, color=f"C{i}")  # fmt: skip
    if lines.limit is not None:
        name, value = lines.limit
        axes.axhline(value, color="black", linewidth=0.8, label=name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(places, lines.categories)
    axes.margins(x=0.09)
    axes.grid(axis="y", which="both", color="0.92")
    axes.set_xlabel(lines.x_label)
    axes.set_ylabel(lines.y_label)
    axes.set_title(f"{lines.title}\n{machine()}", fontsize=9)
    picture.legend(fontsize=8, loc="outside lower center", ncols=3)
    picture.savefig(path, dpi=110)
