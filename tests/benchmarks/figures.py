"""What a benchmark measures, how it is compared, and how it is shown."""

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure beside its rival. `value` and `rival_value` are medians."""

    figure: str
    value: float
    unit: str
    rival: str
    rival_value: float
    ratio: float
    aim: str
    """``<= 1.3x`` or ``>= 20x`` of the ratio, ``>= 10 Gbit/s`` of the value itself, ``none``."""
    met: bool
    runs: int

    def to_json(self) -> str:
        """Return one JSON object."""
        return json.dumps(asdict(self), default=lambda scalar: scalar.item())


def at_most(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
            runs: int) -> Figure:  # fmt: skip
    """Return a figure whose ratio to its rival should not exceed `aim`."""
    ratio = value / rival_value
    return Figure(name, value, unit, rival, rival_value, ratio, f"<= {aim}x", ratio <= aim, runs)


def at_least(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
             runs: int) -> Figure:  # fmt: skip
    """Return a figure whose ratio to its rival should reach `aim`."""
    ratio = value / rival_value
    return Figure(name, value, unit, rival, rival_value, ratio, f">= {aim}x", ratio >= aim, runs)


def reaching(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
             runs: int) -> Figure:  # fmt: skip
    """Return a figure that should itself reach `aim`, whatever its ratio to its rival."""
    text = f">= {aim:g} {unit}"
    return Figure(name, value, unit, rival, rival_value, value / rival_value, text, value >= aim,
                  runs)  # fmt: skip


def within(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
           runs: int) -> Figure:  # fmt: skip
    """Return a figure that should itself not exceed `aim`, whatever its ratio to its rival."""
    text = f"<= {aim:g} {unit}"
    return Figure(name, value, unit, rival, rival_value, value / rival_value, text, value <= aim,
                  runs)  # fmt: skip


def below(name: str, value: float, unit: str, rival: str, rival_value: float, *, limit: float,
          runs: int) -> Figure:  # fmt: skip
    """Return a figure whose ratio to its rival has to stay below `limit`."""
    ratio = value / rival_value
    return Figure(name, value, unit, rival, rival_value, ratio, f"< {limit}x", ratio < limit, runs)


def beside(name: str, value: float, unit: str, rival: str, rival_value: float, *,
           runs: int) -> Figure:  # fmt: skip
    """Return a figure that is to be seen beside its rival, and has no aim."""
    return Figure(name, value, unit, rival, rival_value, value / rival_value, "none", True, runs)


def alternately(
    *works: Callable[[], object], runs: int = 9, clock: Callable[[], float] = perf_counter
) -> list[float]:
    """Time several works in turn, `runs` rounds after one to warm up; return median seconds."""
    times: list[list[float]] = [[] for _ in works]
    for i in range(runs + 1):
        for work, measured in zip(works, times, strict=True):
            began = clock()
            work()
            if i:
                measured.append(clock() - began)
    return [median(measured) for measured in times]


def machine() -> str:
    """Name the machine that the figures are from."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{os.cpu_count()} x {model}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def print_table(name: str, figures: list[Figure]) -> None:
    """Print the figures of one benchmark."""
    table = Table(title=name, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("rival")
    table.add_column("value", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("aim")
    for figure in figures:
        verdict = "met" if figure.met else "MISSED"
        aim = "none" if figure.aim == "none" else f"{figure.aim}: {verdict}"
        table.add_row(
            figure.figure,
            f"{_shown(figure.value)} {figure.unit}",
            figure.rival,
            f"{_shown(figure.rival_value)} {figure.unit}",
            f"{figure.ratio:.4g}",
            aim,
        )
    Console(width=140).print(table)


def _shown(value: float) -> str:
    """Return four digits, or more where there are more before the point."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def aimed_ratio(figure: Figure) -> float | None:
    """Return the ratio that a figure's aim comes to, given what its rival did."""
    if figure.aim == "none":
        return None
    _, number, *unit = figure.aim.split()
    return float(number) / figure.rival_value if unit else float(number.removesuffix("x"))


def draw(name: str, figures: list[Figure], path: Path) -> None:
    """Draw the ratios of one benchmark as bars, each with a mark where it should end."""
    picture = Picture(figsize=(9, 1.4 + 0.5 * len(figures)), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for row, figure in enumerate(figures):
        aim, end, text = aimed_ratio(figure), figure.ratio, f" {figure.ratio:.3g}"
        color = "tab:green" if figure.met else "tab:red"
        if aim is None:
            color = "tab:gray"
        else:
            axes.plot([aim, aim], [row - 0.4, row + 0.4], color="black", linewidth=2)
            end, text = max(aim, end), f"{text} (aim {figure.aim})"
        axes.barh(row, figure.ratio, height=0.6, color=color)
        axes.annotate(text, (end, row), va="center", fontsize=8)
    axes.set_yticks(range(len(figures)), [f"{f.figure}\nto {f.rival}" for f in figures], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("ratio; the mark is the aim")
    axes.set_title(f"{name}, on {machine()}", fontsize=9)
    picture.savefig(path, dpi=110)
