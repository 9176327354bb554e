"""Scalars as a worker sends them, and the curves that a master makes of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradwire_protocol.messages.logged.scalars import POINT, Logged
from gradwire_server.series.board import Curve
from gradwire_server.series.series import Series


def points_of(points: Iterable[tuple[int, int, int, float]]) -> npt.NDArray[Any]:
    """Return scalars: index of the name, step, age in milliseconds, value."""
    return np.array(list(points), POINT)


def logged(number: int, step: int, values: Mapping[str, float], *, dropped: int = 0) -> Logged:
    """Return a message with scalars of one step."""
    points = points_of((index, step, 0, value) for index, value in enumerate(values.values()))
    return Logged(number, tuple(values), points.tobytes(), dropped)


@dataclass(frozen=True)
class Bucket:
    """A bucket of a curve."""

    step: int
    mean: float
    low: float
    high: float
    count: int
    seconds: float


def buckets_of(curve: Curve) -> list[Bucket]:
    """Return the buckets of a curve."""
    arrays = curve.step, curve.mean, curve.low, curve.high, curve.count, curve.seconds
    return [Bucket(*row) for row in zip(*(each.tolist() for each in arrays), strict=True)]


def curves_in(series: Series) -> dict[tuple[str, int | None], Curve]:
    """Return all curves, by name and rank: None for the mean."""
    return {(shown.series, shown.rank): shown.curve for shown in series.curves()}


def logged_by(series: Series, rank: int) -> dict[str, list[tuple[int, float]]]:
    """Return steps and means of what the script of a worker has logged, by name."""
    return {name: found for (name, of), found in means_in(series).items() if of == rank}


def means_in(series: Series) -> dict[tuple[str, int | None], list[tuple[int, float]]]:
    """Return steps and means of all curves, but for what sessions report of themselves."""
    return {
        key: [(bucket.step, bucket.mean) for bucket in buckets_of(curve)]
        for key, curve in curves_in(series).items()
        if not key[0].startswith("gradwire/")
    }
