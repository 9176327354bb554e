"""Names, numbers and curves as text for a terminal.

Names come from other machines. What a terminal would act on, or what would write over other text,
is replaced.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from gradwire.cli.estimate.quantities import show_bytes, show_seconds

CHARACTERS_MAX: Final = 300
"""Most characters of a name or an event that are looked at: more than a line shows."""

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

MARKS: Final = frozenset({"Mn", "Me"})
"""Categories of characters that have no column of their own."""

MARKS_MAX: Final = 2
"""Most accents on a character; more would reach into other lines."""

ELLIPSIS: Final = "\N{HORIZONTAL ELLIPSIS}"

BARS: Final = "▁▂▃▄▅▆▇█"

MISSING: Final = "·"
"""In a curve, where there is no number."""


def plain(value: Any) -> str:
    """Return a text without what a terminal acts on; empty for what is no text."""
    if not isinstance(value, str):
        return ""
    shown: list[str] = []
    marks = 0
    for character in value[:CHARACTERS_MAX]:
        # Control characters, directions, line separators, halves of surrogates, unassigned ones.
        if not character.isprintable():
            character = REPLACEMENT
        marks = marks + 1 if unicodedata.category(character) in MARKS else 0
        if marks <= MARKS_MAX:
            shown.append(character)
    return "".join(shown)


def number(value: Any) -> float | None:
    """Return a finite number; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def fitted(text: str, columns: int, *, right: bool = False) -> str:
    """Return a text in exactly so many columns; what does not fit ends with an ellipsis."""
    if cell_len(text) > columns:
        text = set_cell_size(text, columns - 1) + ELLIPSIS if columns > 0 else ""
    missing = " " * (columns - cell_len(text))
    return missing + text if right else text + missing


def fitted_parts(parts: Iterable[str], columns: int, separator: str = " · ") -> str:
    """Return as many of some texts as so many columns take, from the first on."""
    line = ""
    for part in filter(None, parts):
        longer = line + separator + part if line else part
        if cell_len(longer) > columns:
            return line or fitted(part, columns)
        line = longer
    return line


def show_number(value: float | None) -> str:
    """Return a number with at most four digits, as people compare them; empty without one.

    Sums and multiples of finite numbers may be beyond all floats: those are not shown.
    """
    if value is None or not isfinite(value):
        return ""
    if value == 0 or 0.001 <= abs(value) < 10_000:
        digits = max(3 - len(f"{abs(value):.0f}"), 0) if abs(value) >= 1 else 3
        return f"{value:.{digits}f}"
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.2e}"


def show_whole(value: float | None) -> str:
    """Return a number without its fraction."""
    return "" if value is None or not isfinite(value) else f"{value:,.0f}"


def show_ratio(value: float | None) -> str:
    """Return a part of one in percent."""
    percent = "" if value is None else show_number(100 * value)
    return percent and f"{percent} %"


def show_rate(value: float | None) -> str:
    """Return bytes per second."""
    size = show_size(value)
    return size and f"{size}/s"


def show_size(value: float | None) -> str:
    """Return bytes."""
    return "" if value is None or not isfinite(value) else show_bytes(max(value, 0.0))


def show_delay(value: float | None) -> str:
    """Return a short time."""
    return "" if value is None else show_seconds(value)


def show_duration(value: float | None) -> str:
    """Return a long time: ``1:02:03``, or ``2 d 01:02``."""
    if value is None or not 0 <= value < 1e10:
        return ""
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def sparkline(values: Sequence[float | None], columns: int, *, from_zero: bool = False) -> str:
    """Return a curve in at most so many columns, each the mean of some neighbours.

    The lowest bar is zero, or the least value: the shape of a loss, and the size of a rate.
    """
    if columns < 1 or not values:
        return ""
    count = min(columns, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [_mean(values[low:high]) for low, high in pairwise(edges)]
    known = [mean for mean in means if mean is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    # Halves, because the difference of two floats may be beyond all of them.
    span = high / 2 - low / 2
    return "".join(
        MISSING
        if mean is None
        else BARS[min(int((mean / 2 - low / 2) / span * len(BARS)), len(BARS) - 1) if span else 0]
        for mean in means
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(value / len(known) for value in known) if known else None
