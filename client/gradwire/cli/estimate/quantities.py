"""Counts, times and rates with units: ``14.6M``, ``20ms``, ``100Mbit``.

Prefixes are decimal, as usual for links and parameter counts: 1 Mbit/s is 10^6 bits a second.
"""

import re
from math import isfinite
from typing import Final

from gradwire.errors import UsageError

NUMBER: Final = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([^\d\s]*)\s*", re.IGNORECASE
)

COUNTS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
"""By suffix; B is usual for the billions of language models."""

SECONDS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}

BITS_PER_SECOND: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
"""A rate needs a unit: 100 could mean bits, Mbit or bytes."""


def parse_count(text: str, name: str) -> float:
    """Return a count such as ``14.6M``.

    A `UsageError` of the functions here names the option and the accepted form.
    """
    return _parse(text, name, COUNTS, "a number, with k, M or G behind it where it is large")


def parse_seconds(text: str, name: str) -> float:
    """Return a time such as ``20ms`` in seconds."""
    return _parse(text, name, SECONDS, "a time such as 20ms, 0.1s or 500us")


def parse_rate(text: str, name: str) -> float:
    """Return a rate such as ``100Mbit`` or ``1 Gbit/s`` in bits per second."""
    shortened = re.sub(r"(?i)(?:/s|ps)$", "", text.strip())
    return _parse(shortened, name, BITS_PER_SECOND, "a rate such as 100Mbit, 1Gbit or 512kbit")


def check_between(value: float, low: float, high: float, name: str, *, unit: str = "") -> None:
    """Refuse a value beyond its limits with a `UsageError` that names both."""
    if not low <= value <= high:
        raise UsageError(
            f"{name}={value:g}{unit}; it has to be at least {low:g} and at most {high:g}{unit}"
        )


def _parse(text: str, name: str, units: dict[str, float], wanted: str) -> float:
    match = NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise UsageError(f"{name}={text!r}; it has to be {wanted}")
    value = float(match[1]) * units[match[2].lower()]
    if not isfinite(value):
        raise UsageError(f"{name}={text!r}; it has to be finite")
    return value


def show_count(count: float) -> str:
    """Return ``14.6 M`` for 14,600,000."""
    return _show(count, (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)))


def show_bytes(size: float) -> str:
    """Return ``166 KB`` for 166,475."""
    return _show(size, (("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0)))


def show_seconds(seconds: float) -> str:
    """Return ``3.2 ms`` for 0.0032."""
    return _show(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)))


def show_rate(bits_per_second: float) -> str:
    """Return ``100 Mbit/s`` for 10^8."""
    units = (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0))
    return _show(bits_per_second, units)


def _show(value: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, factor = next((u for u in units if abs(value) >= 0.9995 * u[1]), units[-1])
    scaled = value / factor
    digits = f"{scaled:.3g}" if abs(scaled) < 999.5 else f"{scaled:.0f}"
    return f"{digits} {unit}".strip()
