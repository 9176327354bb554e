"""docs/figures.jsonl: the figures that documentation quotes, an object a line, and tables of them.

A run of a benchmark replaces the figures of its own command and leaves the others. A table stands
between marks that name the command's arguments and, where not all figures are to be shown, parts of
their names, or of these and what stands beside them::

    <!-- figures codec; threshold pass; 1.00%: Deeplearning4j: begin -->
    <!-- figures codec; threshold pass; 1.00%: Deeplearning4j: end -->

A figure is old where the code that it measures differs from that of its commit.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.commit import DIRTY, UNKNOWN, commit_of
from benchmarks.figures import Figure, Origin, shown
from benchmarks.registry import BENCHMARKS

FIGURES: Final = Path(__file__).parents[2] / "docs" / "figures.jsonl"

COMMAND: Final = "python tests/benchmarks"

OLD: Final = "†"

Line = Mapping[str, Any]


def differs(folder: Path, commit: str, paths: Sequence[str]) -> bool | None:
    """Return whether files of a checkout are others than in a commit.

    Parameters
    ----------
    folder : Path
        Anywhere in the checkout.
    commit : str
        What it is compared with.
    paths : sequence of str
        Of what is compared, from the checkout's root.

    Returns
    -------
    bool or None
        None where git or the commit is missing, as in a shallow clone.
    """
    if commit_of(folder) == UNKNOWN:
        return None  # git would compare files outside of a checkout
    command = ["git", "-C", str(folder), "diff", "--quiet", commit, "--"]
    tops = [f":/{path}" for path in paths]
    done = subprocess.run([*command, *tops], check=False, capture_output=True)
    return {0: False, 1: True}.get(done.returncode)


def read(file: Path = FIGURES) -> list[Line]:
    """Return the figures there are."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def record(file: Path, name: str, paths: Sequence[str], figures: Iterable[Figure],
           origin: Origin) -> bool:  # fmt: skip
    """Replace the figures of a command in a file.

    Returns
    -------
    bool
        False, and nothing is written, where what was measured is not what its commit has.
    """
    # Other files may differ: this one does, once the benchmark before has written it.
    committed = replace(origin, commit=origin.commit.removesuffix(DIRTY))
    if differs(file.parent, committed.commit, paths) is not False:
        return False
    others = [json.dumps(line) for line in read(file) if line["command"] != origin.command]
    measured = [figure.to_json(name, committed) for figure in figures]
    lines = sorted([*others, *measured], key=lambda line: str(json.loads(line)["command"]))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return True


def marks(text: str) -> list[str]:
    """Return what the marks of a page's tables of figures say."""
    return re.findall(r"^<!-- (figures .+): begin -->$", text, re.MULTILINE)


def is_old(line: Line) -> bool:
    """Return whether the code that a figure is of has changed since; not where nobody can say."""
    paths = BENCHMARKS[line["benchmark"]].measured
    return bool(differs(FIGURES.parent, line["commit"], paths))


def table(mark: str, lines: Iterable[Line], *, old: Callable[[Line], bool] = is_old) -> str:
    """Return the table that belongs between marks.

    Parameters
    ----------
    mark : str
        What these say.
    lines : iterable of figures
        Those there are.
    old : callable
        Says which are marked; `without_marks` takes the marks away.
    """
    arguments, *parts = mark.removeprefix("figures ").split("; ")
    chosen = [
        line
        for line in lines
        if line["command"] == f"{COMMAND} {arguments}"
        and (not parts or any(part in f"{line['figure']}: {line['rival']}" for part in parts))
    ]
    if not chosen:
        raise ValueError(f"no figures for {mark!r} in {FIGURES.name}: run {COMMAND} {arguments}")
    olds = [old(line) for line in chosen]
    rows = "\n".join(map(_row, chosen, olds))
    note = f"\n{OLD} The code has changed since then." if any(olds) else ""
    return f"| | | beside | aim |\n| --- | --- | --- | --- |\n{rows}\n\n{_origin(chosen[0])}{note}"


def without_marks(text: str) -> str:
    """Return a table as it is where no figure is old."""
    return re.sub(rf"\n{OLD} .*| {OLD}(?= \|)", "", text)


def _row(line: Line, old: bool) -> str:
    name = f"{line['figure']} {OLD}" if old else line["figure"]
    value, beside = (_number(line[each]) for each in ("value", "rival_value"))
    ratio = "" if line["ratio"] is None else f" ({shown(line['ratio'])}x)"
    aim = line["aim"].replace("<=", "≤").replace(">=", "≥")
    verdict = "" if aim == "none" else ": met" if line["met"] else ": **missed**"
    cells = (name, f"{value} {line['unit']}{ratio}", f"{line['rival']}: {beside}", aim + verdict)
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "none" if value is None else shown(value)


def _origin(line: Line) -> str:
    """Say where figures are from, and whether other programs were in their way."""
    cores = int(line["machine"].split()[0])
    where = f"`{line['command']}`, commit {line['commit']} of {line['date']}, on {line['machine']}"
    if line["load"] <= cores:
        return f"{where}."
    return (
        f"{where}. **Load {line['load']:.1f} at the start**: other programs ran, which makes times "
        "longer and ratios uncertain."
    )
