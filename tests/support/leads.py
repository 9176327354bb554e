"""`Leads`: watches how far workers with a bound on staleness are ahead, and for how long they wait.

The rule is told anew here, from what happens rather than from what `Lead` keeps:

- staleness: from the moment on at which a worker knows another one to be as far as itself, it
  begins no step more than the bound ahead of it. That ends when it has lost its connection, when
  the other one is not in its roster or has finished, and when it has waited for it in vain.
- deadline: nobody waits longer than the timeout for one that makes no step, dead or alive.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.simulated_bound import SimulatedBound
    from support.trainee import Trainee


@dataclass(slots=True)
class _Pair:
    """What a worker knows of another one."""

    stale: int | None = None
    """What it had heard of the other's clock when that began to count no more."""
    is_level: bool = False
    """Whether the other one has been as far as itself since then."""


class Leads:
    """Looks at a worker after each of its attempts to begin a step.

    Parameters
    ----------
    bound : int
    timeout_seconds : float
    """

    def __init__(self, bound: int, timeout_seconds: float) -> None:
        self.compared = 0
        """How many leads were found to be no larger than the bound."""
        self.waits = 0
        """How many attempts ended in a wait."""
        self._bound = bound
        self._timeout = timeout_seconds
        self._pairs: dict[tuple[Trainee, Trainee], _Pair] = {}
        self._seen: dict[Trainee, tuple[int, int]] = {}
        """By worker: how often it was back, and for how many it has waited in vain."""
        self._waiting: dict[tuple[Trainee, int], tuple[int, float]] = {}
        """By worker and the rank it waits for: its clock as it was heard, and since when."""

    def check(self, worker: "Trainee", bound: "SimulatedBound", others: list["Trainee"]) -> None:
        """Look at a worker that begins a step, or waits."""
        self._check_deadline(worker, bound.held_by)
        _, before = self._seen.get(worker, (0, 0))
        in_vain = bound.set_aside[before:]
        seen = worker.reconnections, len(bound.set_aside)
        was_away = worker.lost is not None or seen[0] != self._seen.get(worker, seen)[0]
        self._seen[worker] = seen
        for other in others:
            if other is worker or not other.clock:
                continue
            pair = self._pairs.setdefault((worker, other), _Pair())
            heard = worker.clocks.latest.get(other.rank)
            if was_away or other.rank in in_vain or other.rank not in worker.others:
                pair.stale, pair.is_level = heard, False
            elif _knows(worker, other) and heard is not None and heard != pair.stale:
                pair.is_level |= heard >= worker.clock
            if pair.is_level and not bound.held_by:
                lead = worker.clock - other.clock
                assert lead <= self._bound, (
                    f"staleness: {worker.name} begins a step {lead} ahead of {other.name}, which "
                    f"is more than {self._bound}"
                )
                self.compared += 1

    def _check_deadline(self, worker: "Trainee", held_by: dict[int, int]) -> None:
        self.waits += bool(held_by)
        for rank in [rank for one, rank in self._waiting if one is worker and rank not in held_by]:
            del self._waiting[worker, rank]
        for rank in held_by:
            heard = worker.clocks.latest[rank]
            clock, since = self._waiting.get((worker, rank), (None, 0.0))
            if clock != heard:
                self._waiting[worker, rank] = heard, worker.now
            else:
                assert worker.now - since < self._timeout, (
                    f"deadline: {worker.name} waits for rank {rank}, which has made no step for "
                    f"{worker.now - since:.3f} s; the timeout is {self._timeout} s"
                )


def _knows(worker: "Trainee", other: "Trainee") -> bool:
    """Return whether a worker has heard of another one, rather than of who had its rank before."""
    assert other.welcome is not None
    return worker.received(other.rank) > other.welcome.sequence
