"""`Tail`: what is new in the curves of a run, for files that only grow.

A reader of such a file cannot take back a point that it has shown, and takes a step that goes back
for a training that began once more. So a bucket is due when its worker has gone on to a later one,
once, and each curve only goes forward: what comes later for steps that are written is left out.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from gradwire_server.series.board import Front
from gradwire_server.series.series import Series, Shown

POINTS_MAX: Final = 2**20
"""Points of a run that are looked at, about. Where there are more, neighbours become one: so a run
has so many points in its files, 50 MB, and half as many more whenever its steps have doubled."""

POINTS: Final = 2**5
"""Points that are due at once: a millisecond of writing."""

ABSENT_SECONDS: Final = 60.0
"""A worker that has logged nothing for so long is waited for no more."""


class Tail:
    """How far each curve of a run is written."""

    def __init__(self) -> None:
        self._marks: dict[tuple[int | None, str], int] = {}
        """By rank, which is None for the mean, and series: the first step that is not written."""

    def due(self, series: Series, seconds: float, *, is_over: bool) -> Iterator[Shown | None]:
        """Yield what is due of each curve; None where nothing is ready yet.

        Parameters
        ----------
        seconds : float
            The time, counted from the first scalar.
        is_over : bool
            Whether nothing comes any more: then everything is due.
        """
        fronts = {} if is_over else _expected(series.fronts(), seconds)
        for shown in series.curves(POINTS_MAX):
            if shown is None:
                yield None
                continue
            curve, mark = shown.curve, self._marks.get((shown.rank, shown.series), 0)
            where = curve.step >= mark
            if (limit := _limit(shown.rank, fronts, mark)) is not None:
                where &= curve.step + curve.steps <= limit
            at = np.flatnonzero(where)
            for start in range(0, len(at), POINTS):
                yield shown._replace(curve=curve.part(at[start : start + POINTS]))

    def is_settled(self, series: Series, seconds: float) -> bool:
        """Return whether no worker is expected to log more: all that is there was due."""
        return not _expected(series.fronts(), seconds)

    def note(self, rank: int | None, name: str, step: int) -> None:
        """Note that a curve is written up to before a step."""
        self._marks[rank, name] = max(step, self._marks.get((rank, name), 0))

    def forget(self, rank: int | None) -> None:
        """Note that nothing is written of a worker, or of the mean."""
        for each in [each for each in self._marks if each[0] == rank]:
            del self._marks[each]


def _expected(fronts: dict[int, Front], seconds: float) -> dict[int, Front]:
    """Return the workers that are expected to go on."""
    since = seconds - ABSENT_SECONDS
    return {rank: front for rank, front in fronts.items() if front.seconds >= since}


def _limit(rank: int | None, fronts: dict[int, Front], mark: int) -> int | None:
    """Return the step before which a curve is complete; None if all of it is."""
    if rank is not None:
        return fronts[rank].step if rank in fronts else None
    # One that trains at steps which are written already would hold up the mean for as long as the
    # worker before it has trained.
    return min((front.step for front in fronts.values() if front.latest >= mark), default=None)
