"""`ClockLags`: how far a worker is ahead of the others, and whom it has to wait for.

Bounded staleness, or stale synchronous parallel (Ho et al., "More Effective Distributed ML via a
Stale Synchronous Parallel Parameter Server", NIPS 2013): a worker that has made c steps begins its
next one only while the slowest worker has made c - s. What counts of another worker is what was
*received* of it: so whoever begins step c + 1 has, or has in its inbox, what all others have
learnt up to step c - s.

Each worker has a clock, the number of its steps, which travels with its updates. It begins where
the first clock is that it hears of, so that clocks of one run are comparable whenever their workers
have joined. Others than in the paper, workers here die, stand still and lose their connection, and
nobody may be held up by that for long:

- A worker counts from the first update on that is received of it, and while it is in the roster.
- Whoever makes no step while it is waited for is *set aside*: it does not count before it makes
  one. All are set aside when our own connection was lost, as nobody knows what was missed.
- Who counts again, and was left behind by more than the bound, is not waited for until it has
  caught up: that lag is *forgiven*, and what counts is what comes on top of it. It is forgiven no
  longer when it is caught up.

No workers wait in a circle: a worker that is waited for has, by what was received of it, made fewer
steps than the one that waits, because neither the bound nor what is forgiven is below 0. The one
that waits has told all its steps before. So along any chain of waiting workers clocks fall, once
what is under way is there, and at its end is one that waits for nobody: the slowest.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Other:
    """What is known of another worker."""

    clock: int
    forgiven: int
    """Steps by which it may be behind besides the bound."""
    counts: bool = True
    holds_since: float | None = None
    """Since when it holds us up without having made a step; None where it does not."""


class ClockLags:
    """A worker's lead over each of the others.

    Parameters
    ----------
    bound : int
        Steps that it may be ahead; with 0, workers go in lockstep.
    timeout_seconds : float
        How long one that makes no step is waited for.
    """

    is_in_force = True
    """Whether anybody is waited for."""

    def __init__(self, bound: int, timeout_seconds: float) -> None:
        self.bound = bound
        self.timeout_seconds = timeout_seconds
        self._others: dict[int, _Other] = {}
        """By rank."""

    def count_from(self, rank: int, clock: int, forgiven: int) -> None:
        """Let another worker count, and forgive it so many steps besides the bound.

        Parameters
        ----------
        rank : int
        clock : int
            The last one received of it.
        forgiven : int
        """
        self._others[rank] = _Other(clock, forgiven)

    def note_step(
        self,
        clock: int,
        clocks: Mapping[int, int],
        ranks: Collection[int],
        paces: Mapping[int, int],
    ) -> None:
        """Take in a step of our own; a bound that is given stays as it is.

        Parameters
        ----------
        clock : int
            Our own.
        clocks : mapping
            By rank: the last one received.
        ranks : collection of int
            The others that train.
        paces : mapping
            By rank: how many microseconds a step takes, our own included, where that is known.
        """

    def look(
        self, clock: int, clocks: Mapping[int, int], ranks: Collection[int], now: float
    ) -> dict[int, int]:
        """Take in how far the others are; return who is too far behind.

        Parameters
        ----------
        clock : int
            Our own.
        clocks : mapping
            By rank: the last one received.
        ranks : collection of int
            The others that train: a worker that has finished, or is gone, is not waited for.
        now : float

        Returns
        -------
        dict
            By rank: how many steps it is behind, without those that are forgiven.
        """
        for rank, other in self._others.items():
            if rank not in ranks:  # its rank may be another one's when it is there again
                other.counts = False
        for rank in ranks:
            if rank in clocks:
                self._hear(rank, clocks[rank], clock)
        held_by = {}
        for rank, other in self._others.items():
            lag = clock - other.clock - other.forgiven
            if other.counts and lag > self.bound:
                held_by[rank] = lag
                other.holds_since = now if other.holds_since is None else other.holds_since
            else:
                other.holds_since = None
        return held_by

    def set_late_aside(self, now: float) -> list[int]:
        """Wait no longer for those who made no step for so long; return their ranks."""
        late = [
            rank
            for rank, other in self._others.items()
            if other.holds_since is not None and now >= other.holds_since + self.timeout_seconds
        ]
        for rank in late:
            self._set_aside(self._others[rank])
        return late

    def set_all_aside(self) -> None:
        """Wait for nobody that makes no step from now on."""
        for other in self._others.values():
            self._set_aside(other)

    @property
    def deadline(self) -> float | None:
        """When somebody is set aside that holds us up; None where nobody does."""
        since = (other.holds_since for other in self._others.values())
        return min(
            (each + self.timeout_seconds for each in since if each is not None), default=None
        )

    def _hear(self, rank: int, theirs: int, ours: int) -> None:
        """Take in how far another worker is."""
        other = self._others.get(rank)
        if other is not None and other.clock == theirs:
            return
        if other is None or not other.counts or theirs < other.clock:
            # It is new, was set aside, or another one has its rank.
            self._others[rank] = _Other(theirs, max(ours - theirs - self.bound, 0))
            return
        other.clock = theirs
        other.forgiven = min(other.forgiven, max(ours - theirs, 0))
        other.holds_since = None

    def _set_aside(self, other: _Other) -> None:
        other.counts = False
        other.holds_since = None
