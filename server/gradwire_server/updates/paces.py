"""`Paces`: when a worker's next contribution to a round can be expected.

A worker trains from the result of one round to its contribution to the next. The mean of that time
and its deviation follow it as a round trip's do in TCP (V. Jacobson, "Congestion avoidance and
control", 1988; RFC 6298, section 2).
"""

from typing import Final

MEAN_PART: Final = 1 / 8
DEVIATION_PART: Final = 1 / 4
"""How far they follow the newest value."""

DEVIATIONS: Final = 4
"""So many deviations after the mean, nearly all have come."""


class Paces:
    """The paces of the workers of a run, by rank. Times are in seconds."""

    def __init__(self) -> None:
        self._began: dict[int, float] = {}
        """When a worker began to train for its next contribution."""
        self._paces: dict[int, tuple[float, float]] = {}
        """Mean and deviation of the time that it takes."""

    def begin(self, rank: int, now: float) -> None:
        """Note that a worker trains from now on."""
        self._began[rank] = now

    def finish(self, rank: int, now: float) -> None:
        """Note that its contribution is here."""
        began = self._began.pop(rank, None)
        if began is None:
            return
        took = now - began
        mean, deviation = self._paces.get(rank, (took, took / 2))
        deviation += DEVIATION_PART * (abs(took - mean) - deviation)
        self._paces[rank] = mean + MEAN_PART * (took - mean), deviation

    def forget(self, rank: int) -> None:
        """Forget a worker that is gone."""
        self._began.pop(rank, None)
        self._paces.pop(rank, None)

    def expected(self, rank: int) -> tuple[float, float] | None:
        """Return when a contribution comes on average, and when at the latest, nearly always.

        None where that is not known yet.
        """
        began, pace = self._began.get(rank), self._paces.get(rank)
        if began is None or pace is None:
            return None
        mean, deviation = pace
        return began + mean, began + mean + DEVIATIONS * deviation
