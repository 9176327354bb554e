"""`Leads`: watches how far workers with a bound on staleness are ahead, and for how long they wait.

The rule is told anew here, from what happens rather than from what `Lead` keeps:

- staleness: once a worker knows at the end of a step that another one is as far as itself, it
  begins no step more than the bound ahead of it. That ends when it has lost its connection, when
  the other one is not in its roster or has finished, when it has waited for it in vain, and when it
  sets its own clock by the first that it hears of.
- deadline: nobody waits longer than the timeout for one that makes no step, dead or alive.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire.features.staleness_bound import StalenessBound

if TYPE_CHECKING:
    from support.trainee import Trainee


class Looks:
    """What the bound of a worker was told when it looked, and whom it waited for in vain."""

    def __init__(self) -> None:
        self.heard: Mapping[int, int] = {}
        """By rank: the clocks of others, at its last look."""
        self.received: Mapping[int, int] = {}
        """By rank: the last update that had come then."""
        self.set_aside: list[int] = []
        """The ranks that were, one by one."""
        self.missed: set[int] = set()
        """Ranks that had been heard of and did not train at some look, since this was emptied."""

    def watch(self, bound: StalenessBound, received: Callable[[int], int]) -> None:
        """Note all its looks from now on.

        Parameters
        ----------
        bound : StalenessBound
        received : callable
            Told a rank, returns the last update that has come of it.
        """
        look, set_late_aside = bound.lags.look, bound.lags.set_late_aside

        def noting(
            clock: int, clocks: Mapping[int, int], ranks: Collection[int], now: float
        ) -> dict[int, int]:
            self.heard = dict(clocks)
            self.missed |= clocks.keys() - ranks
            self.received = {rank: received(rank) for rank in clocks}
            return look(clock, clocks, ranks, now)

        def setting_aside(now: float) -> list[int]:
            ranks = set_late_aside(now)
            self.set_aside += ranks
            return ranks

        bound.lags.look = noting  # type: ignore[method-assign]
        bound.lags.set_late_aside = setting_aside  # type: ignore[method-assign]


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
        self._seen: dict[Trainee, tuple[int, int, int]] = {}
        """By worker: how often it was back, for how many it has waited in vain, and its clock."""
        self._waiting: dict[tuple[Trainee, int], tuple[int, float]] = {}
        """By worker and the rank it waits for: its clock as it was heard, and since when."""

    def check(
        self,
        worker: "Trainee",
        bound: StalenessBound,
        looks: Looks,
        others: list["Trainee"],
    ) -> None:
        """Look at a worker that begins a step, or waits."""
        held_by = bound.held_by if worker.is_waiting else {}
        self._check_deadline(worker, looks, held_by)
        seen = worker.reconnections, len(looks.set_aside), worker.clock
        reconnections, waited_for, clock = self._seen.get(worker, (seen[0], 0, seen[2]))
        in_vain = looks.set_aside[waited_for:]
        was_away = worker.lost is not None or seen[0] != reconnections
        was_away |= worker.clock > clock + 1  # it has just heard where the clocks of the run are
        self._seen[worker] = seen
        missed, looks.missed = looks.missed, set()
        for other in others:
            if other is worker or not other.clock:
                continue
            pair = self._pairs.setdefault((worker, other), _Pair())
            heard = looks.heard.get(other.rank)
            is_out = other.rank in missed or other.rank not in worker.others
            if was_away or other.rank in in_vain or is_out:
                pair.stale, pair.is_level = heard, False
            elif _knows(looks, other) and heard is not None and heard != pair.stale:
                pair.is_level |= heard >= worker.clock
            if pair.is_level and not held_by:
                lead = worker.clock - other.clock
                assert lead <= self._bound, (
                    f"staleness: {worker.name} begins a step {lead} ahead of {other.name}, which "
                    f"is more than {self._bound}"
                )
                self.compared += 1

    def _check_deadline(self, worker: "Trainee", looks: Looks, held_by: Mapping[int, int]) -> None:
        self.waits += bool(held_by)
        for rank in [rank for one, rank in self._waiting if one is worker and rank not in held_by]:
            del self._waiting[worker, rank]
        for rank in held_by:
            heard = looks.heard[rank]
            clock, since = self._waiting.get((worker, rank), (None, 0.0))
            if clock != heard:
                self._waiting[worker, rank] = heard, worker.now
            else:
                assert worker.now - since < self._timeout, (
                    f"deadline: {worker.name} waits for rank {rank}, which has made no step for "
                    f"{worker.now - since:.3f} s; the timeout is {self._timeout} s"
                )


def _knows(looks: Looks, other: "Trainee") -> bool:
    """Return whether a worker has heard of another one, rather than of who had its rank before."""
    assert other.welcome is not None
    return looks.received.get(other.rank, 0) > other.welcome.sequence
