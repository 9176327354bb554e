"""What a benchmark measures, how it is compared, and how it is shown."""

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import isfinite, nan
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Self

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where figures are from."""

    commit: str
    quick: bool
    """Whether they were measured on so little that they say nothing: then no aim was met or
    missed."""
    machine: str
    date: str
    command: str
    load: float
    """Processes that ran or waited for a core in the minute before."""

    @classmethod
    def now(cls, commit: str, command: str, *, quick: bool) -> Self:
        """Return that of what is measured from now on."""
        return cls(
            commit=commit,
            quick=quick,
            machine=machine(),
            date=datetime.now(UTC).date().isoformat(),
            command=command,
            load=round(os.getloadavg()[0], 2),
        )


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

    def to_json(self, benchmark: str, origin: Origin) -> str:
        """Return one JSON object.

        Parameters
        ----------
        benchmark : str
            Its name: figures of several come in one file.
        origin : Origin
            What was measured, where and when.
        """
        values = {"benchmark": benchmark, **asdict(self), **asdict(origin)}
        if origin.quick:
            values["met"] = None
        for name, value in values.items():
            if isinstance(value, float):  # JSON has no number that is not finite
                values[name] = float(f"{value:.6g}") if isfinite(value) else None
        return json.dumps(values, default=lambda scalar: scalar.item())


def at_most(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
            runs: int) -> Figure:  # fmt: skip
    """Return a figure whose ratio to its rival should not exceed `aim`."""
    ratio = _ratio(value, rival_value)
    return Figure(
        name, value, unit, rival, rival_value, ratio, _times("<=", aim), ratio <= aim, runs
    )


def at_least(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
             runs: int) -> Figure:  # fmt: skip
    """Return a figure whose ratio to its rival should reach `aim`."""
    ratio = _ratio(value, rival_value)
    return Figure(
        name, value, unit, rival, rival_value, ratio, _times(">=", aim), ratio >= aim, runs
    )


def reaching(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
             runs: int) -> Figure:  # fmt: skip
    """Return a figure that should itself reach `aim`, whatever its ratio to its rival."""
    text = f">= {aim:g} {unit}"
    return Figure(name, value, unit, rival, rival_value, _ratio(value, rival_value), text,
                  value >= aim, runs)  # fmt: skip


def within(name: str, value: float, unit: str, rival: str, rival_value: float, *, aim: float,
           runs: int) -> Figure:  # fmt: skip
    """Return a figure that should itself not exceed `aim`, whatever its ratio to its rival."""
    text = f"<= {aim:g} {unit}"
    return Figure(name, value, unit, rival, rival_value, _ratio(value, rival_value), text,
                  value <= aim, runs)  # fmt: skip


def below(name: str, value: float, unit: str, rival: str, rival_value: float, *, limit: float,
          runs: int) -> Figure:  # fmt: skip
    """Return a figure whose ratio to its rival has to stay below `limit`."""
    ratio = _ratio(value, rival_value)
    return Figure(name, value, unit, rival, rival_value, ratio, f"< {limit}x", ratio < limit, runs)


def beside(name: str, value: float, unit: str, rival: str, rival_value: float, *,
           runs: int) -> Figure:  # fmt: skip
    """Return a figure that is to be seen beside its rival, and has no aim."""
    ratio = _ratio(value, rival_value)
    return Figure(name, value, unit, rival, rival_value, ratio, "none", True, runs)


def _times(relation: str, aim: float) -> str:
    """Return an aim that is a ratio as a text."""
    return f"{relation} {float(aim):.4}x"


def _ratio(value: float, rival_value: float) -> float:
    """Return the ratio to a rival; not a number where that did nothing, as in a quick run."""
    return value / rival_value if rival_value else nan


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
        f"{os.cpu_count()} x {model}, {platform.system()} {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def print_table(name: str, figures: list[Figure], *, quick: bool) -> None:
    """Print the figures of one benchmark; quick ones say so, and have met or missed no aim."""
    title = f"{name}, a quick run: not to be quoted"
    table = Table(title=title if quick else name, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("rival")
    table.add_column("value", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("aim")
    for figure in figures:
        verdict = "" if quick else ": met" if figure.met else ": MISSED"
        aim = "none" if figure.aim == "none" else f"{figure.aim}{verdict}"
        table.add_row(
            figure.figure,
            f"{shown(figure.value)} {figure.unit}",
            figure.rival,
            f"{shown(figure.rival_value)} {figure.unit}",
            f"{figure.ratio:.4g}",
            aim,
        )
    Console(width=140).print(table)


def shown(value: float) -> str:
    """Return four digits, or more where there are more before the point."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
