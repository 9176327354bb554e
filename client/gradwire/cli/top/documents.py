"""What a master says of itself and its runs, as one object of JSON.

::

    {"overview": /api/v1/overview,
     "runs": {NAME: {"run": /api/v1/runs/NAME, "events": …/events, "series": …/series}},
     "over": a line for each run that is over, the newest first}

It comes from another machine, and perhaps from another version: what it lacks is not shown.
"""

import re
from collections.abc import Iterable
from sys import float_info
from typing import Any, Final
from urllib.parse import quote, urlencode

from gradwire.cli.master_http import MasterHttp
from gradwire.errors import RefusedError

Document = dict[str, Any]

RUNS_PATH: Final = "/api/v1/runs"

NOT_FOUND: Final = "404"

RUNS_MAX: Final = 16
"""Runs that are asked for; a master serves no more unless told otherwise."""

POINTS: Final = 256
"""Of a curve: more than a terminal has columns for it."""

LOSS: Final = re.compile(r"(?i)(?:.*[^a-z])?loss(?:[^a-z].*)?")
"""Names of series that are a loss: ``loss``, ``train/loss``, ``loss_epoch``."""


def read(master: MasterHttp, run: str | None) -> Document:
    """Ask a master for everything about one run, or about all; raises as `MasterHttp.get` does."""
    overview = fields(master.overview())
    names = [each["name"] for each in objects(overview.get("runs")) if text(each.get("name"))]
    runs = {}
    for name in names[:RUNS_MAX] if run is None else [run]:
        try:
            runs[name] = _read_run(master, f"{RUNS_PATH}/{quote(name, safe='')}")
        except RefusedError as error:
            if name == run or error.code != NOT_FOUND:  # it may have ended meanwhile
                raise
    over = objects(overview.get("over")) if run is None else []
    return {"overview": overview, "runs": runs, "over": over}


def _read_run(master: MasterHttp, path: str) -> Document:
    document = fields(master.get(path))
    names = document.get("series")
    loss = loss_name(names if isinstance(names, list) else ())
    query = urlencode({"name": loss, "points": POINTS, "ranks": ""})
    return {
        "run": document,
        "events": master.get(f"{path}/events"),
        "series": master.get(f"{path}/series?{query}") if loss else None,
    }


def loss_name(names: Iterable[Any]) -> str | None:
    """Return which of some series is the loss: the one with the shortest name, if there is one."""
    found = (name for name in names if text(name) and LOSS.fullmatch(name))
    return min(found, key=lambda name: (len(name), name), default=None)


def text(value: Any) -> str:
    """Return a text; an empty one for everything else."""
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """Return a finite number; None for everything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and -float_info.max <= value <= float_info.max else None


def fields(value: Any) -> Document:
    """Return an object; an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def objects(value: Any) -> list[Document]:
    """Return the objects in a list; none for everything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
