"""Drawings for the documentation: lines over a few categories, or curves over numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import FuncFormatter, LogFormatter

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
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    axes.set_xticks(places, lines.categories)
    axes.margins(x=0.12)
    axes.grid(axis="y", which="both", color="0.92")
    axes.set_xlabel(lines.x_label)
    axes.set_ylabel(lines.y_label)
    axes.set_title(f"{lines.title}\n{machine()}", fontsize=9)
    picture.legend(fontsize=8, loc="outside lower center", ncols=3)
    picture.savefig(path, dpi=110)


@dataclass(frozen=True, slots=True)
class Curves:
    """What a picture shows; every number is above 0."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    """Parts of a whole."""
    series: Mapping[str, Sequence[float]]
    levels: Mapping[str, float]
    """What does not depend on x."""
    bound: tuple[str, Sequence[float]]
    """What cannot be fallen below, and what it is called."""


COLORS: Final = ("#0072B2", "#D55E00", "#009E73")
"""Told apart by everyone: M. Okabe and K. Ito, "Color universal design", 2008. Markers and dashes
differ too."""
STYLES: Final = (("o", "-"), ("s", "--"), ("^", "-."))


def draw_curves(curves: Curves, path: Path) -> None:
    """Draw curves, and levels beside them, with both axes logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import EngFormatter, FuncFormatter

    picture = Picture(figsize=(7.2, 5.6), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log")
    for name, value in curves.levels.items():
        axes.axhline(value, color="0.55", linewidth=0.9)
        axes.annotate(name, (curves.x[0], value), textcoords="offset points", xytext=(0, 1.5),
                      fontsize=7, color="0.3")  # fmt: skip
    for (label, values), color, (marker, dashes) in zip(
        curves.series.items(), COLORS, STYLES, strict=False
    ):
        axes.plot(curves.x, values, marker=marker, linestyle=dashes, color=color, label=label,
                  linewidth=2.2 if label.startswith(OURS) else 1.5)  # fmt: skip
    name, bound = curves.bound
    axes.plot(curves.x, bound, color="black", linewidth=1, linestyle=":", label=name)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.yaxis.set_major_formatter(EngFormatter("B"))
    axes.grid(which="major", color="0.92")
    axes.set_axisbelow(True)
    axes.set_xlabel(curves.x_label)
    axes.set_ylabel(curves.y_label)
    axes.set_title(curves.title, fontsize=10)
    picture.legend(fontsize=8, loc="outside lower center", ncols=4)
    picture.savefig(path, dpi=110)
