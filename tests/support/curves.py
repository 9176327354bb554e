"""Curves of what was logged, bucket by bucket."""

from dataclasses import dataclass

from gradwire_server.series.board import Curve
from gradwire_server.series.series import Series


@dataclass(frozen=True)
class Bucket:
    """Scalars of some neighbouring steps."""

    step: int
    steps: int
    seconds: float
    mean: float
    low: float
    high: float
    count: int


def buckets_of(curve: Curve) -> list[Bucket]:
    """Return the buckets of a curve."""
    columns = curve.step, curve.seconds, curve.mean, curve.low, curve.high, curve.count
    return [
        Bucket(step, curve.steps, *rest)
        for step, *rest in zip(*(column.tolist() for column in columns), strict=True)
    ]


def buckets_in(series: Series) -> dict[tuple[str, int | None], list[Bucket]]:
    """Return all buckets by series and rank, which is None for the mean, in the order shown."""
    return {
        (shown.series, shown.rank): buckets_of(shown.curve)
        for shown in series.curves()
        if shown is not None
    }


def logged_by(series: Series, rank: int) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values of what a worker has logged, by name."""
    return {
        name: [(bucket.step, bucket.mean) for bucket in buckets]
        for (name, of), buckets in buckets_in(series).items()
        if of == rank
    }
