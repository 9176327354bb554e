"""`CurveDocuments`: curves of a run, as JSON, and as files of lines or a table."""

import csv
import io
import json
import math
from collections.abc import Collection, Iterator
from typing import Any, Final

from gradwire_server.http.schemas import finite
from gradwire_server.runs.figures import PREFIX as FIGURE_PREFIX
from gradwire_server.runs.figures import Figures
from gradwire_server.series.board import SECONDS, Curve
from gradwire_server.series.series import Series, Shown

POINTS: Final = 1_000
POINTS_MAX: Final = 2**12
"""Points of a curve: how many there are at most, unless a request says so, and then."""

POINTS_OF_ANSWER_MAX: Final = 2**16
"""Most points of all curves of an answer, about: 3 MB. With more curves each has fewer points."""

POINTS_AT_ONCE: Final = 256
"""Points that are made in one step: some tenths of a millisecond."""

DIGITS: Final = 10
"""Of the numbers in curves: all of a step, and more of a value than a screen shows."""

RANKS: Final = 16
"""Workers whose curves are given unless a request says which: the first ones."""

NAMES_MAX: Final = 16
"""Most series in one answer of curves."""


class CurveDocuments:
    """Makes documents of what workers have logged, and of figures."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def document(
        self, series: Series, names: Collection[str], points: int, ranks: Collection[int] | None
    ) -> Iterator[bytes]:
        """Yield the parts of a `Curves`."""
        chosen = [rank for rank in series.ranks if ranks is None or rank in ranks]
        chosen = chosen[:RANKS] if ranks is None else chosen
        points = min(points, max(POINTS_OF_ANSWER_MAX // (len(names) * (1 + len(chosen))), 1))
        yield b'{"curves": ['
        separator = b""
        for name in names:
            for _, rank, curve in self._shown(series, name, points, chosen):
                named = json.dumps({"name": name, "rank": rank, "steps": curve.steps})
                yield separator + named[:-1].encode()
                yield from _columns(curve)
                yield b"}"
                separator = b", "
        yield b"]}"

    def download(self, series: Series, names: Collection[str], kind: str) -> Iterator[bytes]:
        """Yield the parts of a file, jsonl or csv, of all workers; without names of all series."""
        if kind == "csv":
            yield (",".join(FIELDS) + "\r\n").encode()
        for name in names or series.names():
            for shown in self._shown(series, name, POINTS_MAX, None):
                for start in range(0, len(shown.curve.numbers), POINTS_AT_ONCE):
                    rows = _rows(shown, slice(start, start + POINTS_AT_ONCE))
                    yield _as_csv(rows) if kind == "csv" else _as_json_lines(rows)

    def _shown(
        self, series: Series, name: str, points: int, ranks: Collection[int] | None
    ) -> Iterator[Shown]:
        if not name.startswith(FIGURE_PREFIX):
            yield from series.curves_of(name, points_max=points, ranks=ranks)
            return
        curve = self._figures.curve(name, series) or self._figures.curve(name)
        if curve is not None:
            width = 2 ** (max(len(curve.numbers) - 1, 0) // points).bit_length()
            yield Shown(name, None, self._in_time_of(series, curve.coarser(width * curve.steps)))

    def _in_time_of(self, series: Series, curve: Curve) -> Curve:
        """Return a figure with seconds as in a run's series, not since the master was started."""
        cells = curve.cells.copy()
        cells[SECONDS] += 0.0 if series.began is None else self._figures.began - series.began
        return Curve(curve.steps, curve.numbers, cells)


def _columns(curve: Curve) -> Iterator[bytes]:
    """Yield the columns of a curve as members of a JSON object, some numbers at a time."""
    for name in ("step", "seconds", "mean", "low", "high"):
        column = getattr(curve, name)
        yield f', "{name}": ['.encode()
        for start in range(0, len(column), POINTS_AT_ONCE):
            numbers = column[start : start + POINTS_AT_ONCE].tolist()
            shown = (f"{each:.{DIGITS}g}" if math.isfinite(each) else "null" for each in numbers)
            yield ((", " if start else "") + ", ".join(shown)).encode()
        yield b"]"


FIELDS: Final = (
    "series", "rank", "step", "steps", "seconds", "mean", "low", "high", "count",
)  # fmt: skip
"""Of a line of a download."""


def _rows(shown: Shown, where: slice) -> Iterator[dict[str, Any]]:
    """Yield lines of a download. What is no finite number has none, as in JSON."""
    name, rank, curve = shown
    columns = curve.step, curve.seconds, curve.mean, curve.low, curve.high, curve.count
    for step, seconds, mean, low, high, count in zip(
        *(column[where].tolist() for column in columns), strict=True
    ):
        numbers = finite({"mean": mean, "low": low, "high": high})
        head = {"series": name, "rank": rank, "step": step, "steps": curve.steps}
        yield {**head, "seconds": round(seconds, 3), **numbers, "count": count}


def _as_json_lines(rows: Iterator[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _as_csv(rows: Iterator[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, FIELDS).writerows(rows)
    return text.getvalue().encode()
