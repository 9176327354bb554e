"""The page ``/runs/NAME/series``: what workers have logged, as JSON lines or as CSV."""

import csv
import io
import json
import math
from collections.abc import Iterator
from typing import Any, Final

from gradwire_server.series.series import Series, Shown

FIELDS: Final = (
    "series", "rank", "step", "steps", "seconds", "mean", "low", "high", "count",
)  # fmt: skip
"""Of a line, in this order."""

JSON_LINES: Final = "jsonl"
CSV: Final = "csv"

TYPES: Final = {
    JSON_LINES: "application/jsonl; charset=utf-8",
    CSV: "text/csv; charset=utf-8",
}
"""Content type of each format."""


POINTS_MAX: Final = 2**16
"""Lines of a page, about: 8 MB."""

LINES: Final = 64
"""Lines that are made at once, in half a millisecond."""


def series_parts(series: Series | None, kind: str) -> Iterator[bytes]:
    """Yield the page in a format, a few lines at a time; nothing of a run that is gone."""
    if kind == CSV:
        yield (",".join(FIELDS) + "\r\n").encode()
    for shown in () if series is None else series.curves(POINTS_MAX):
        if shown is None:
            yield b""
            continue
        for start in range(0, len(shown.curve.step), LINES):
            lines = _lines(shown, slice(start, start + LINES))
            yield _as_csv(lines) if kind == CSV else _as_json(lines)


def _lines(shown: Shown, where: slice) -> Iterator[dict[str, Any]]:
    """Yield lines. What is no finite number has none, as in JSON."""
    curve = shown.curve
    columns = curve.step, curve.seconds, curve.mean, curve.low, curve.high, curve.count
    for step, seconds, mean, low, high, count in zip(
        *(column[where].tolist() for column in columns), strict=True
    ):
        yield {
            "series": shown.series,
            "rank": shown.rank,
            "step": step,
            "steps": curve.steps,
            "seconds": round(seconds, 3),
            "mean": mean if math.isfinite(mean) else None,
            "low": low if math.isfinite(low) else None,
            "high": high if math.isfinite(high) else None,
            "count": count,
        }


def _as_json(lines: Iterator[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _as_csv(lines: Iterator[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS)
    writer.writerows(lines)
    return text.getvalue().encode()
