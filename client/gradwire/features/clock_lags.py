"""`ClockLags`: how far a worker is ahead of the others, and which of them it waits for.

docs/staleness.md has the rule and the paper that it is of. What counts of another worker is what
was *received* of it. So a worker that begins step c + 1 has, or has in its inbox, what all others
have learnt up to step c - s.

Each worker has a clock, the number of its steps, which travels with its updates. It begins at the
first clock that the worker hears of, so that the clocks of one run are comparable whenever their
workers have joined. Unlike in the paper, workers here die, stand still and lose their connection,
and none may hold up the others by that for long:

- A worker counts from its first received update on, and while it is in the roster.
- A worker that makes no step while it is waited for is *set aside*: it does not count before it
  makes one. All are set aside when our own connection was lost, because what was missed is unknown.
- A worker that counts again, and was left behind by more than the bound, is not waited for until it
  has caught up: that lag is *forgiven*, and only what comes on top of it counts. Once caught up, it
  is forgiven no longer.

No workers wait in a circle: a worker that is waited for has, by what was received of it, made fewer
steps than the worker that waits, because neither the bound nor what is forgiven is below 0. The
waiting worker has told all its steps before. So along any chain of waiting workers clocks fall,
once all that is on its way has arrived, and at its end is a worker that waits for no other: the
slowest.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Other:
    """What is known of another worker."""

    clock: int
    forgiven: int
    """Steps that it may be behind besides the bound."""
    counts: bool = True


class ClockLags:
    """A worker's lead over each of the others.

    Parameters
    ----------
    bound : int
        Steps that it may be ahead; with 0, workers go in lockstep.
    timeout_seconds : float
        How long to wait for a worker that makes no step.
    """

    counts_unheard = False
    """Whether a worker is waited for that nothing was received of."""

    def __init__(self, bound: int, timeout_seconds: float) -> None:
        self.bound: int | None = bound
        """None while no worker is waited for."""
        self.timeout_seconds = timeout_seconds
        self._others: dict[int, _Other] = {}
        """By rank."""
        self._held_since: dict[tuple[int, int], float] = {}
        """By rank and clock of each worker that holds us up: since when it does so."""

    def count_from(self, rank: int, clock: int, forgiven: int) -> None:
        """Let another worker count from this clock on, and forgive it steps besides the bound."""
        self._others[rank] = _Other(clock, forgiven)

    def look(
        self, clock: int, clocks: Mapping[int, int], ranks: Collection[int], now: float
    ) -> dict[int, int]:
        """Note how far the others are; return by how many steps each one is too far behind.

        `clock` is our own, `clocks` has the last one received of each rank. `ranks` are the others
        that train: a worker that has finished, or is gone, is not waited for. Steps that are
        forgiven do not count.
        """
        if self.bound is None:
            return {}
        for rank, other in self._others.items():
            if rank not in ranks:  # another worker may get its rank
                other.counts = False
        for rank in ranks:
            if rank in clocks:
                self._hear(rank, clocks[rank], clock, self.bound)
            elif self.counts_unheard:
                # A step behind us, also once our clock is set to where the run is.
                self._others.setdefault(rank, _Other(clock - 1, 0)).clock = clock - 1
        held_by, before, self._held_since = {}, self._held_since, {}
        for rank, other in self._others.items():
            lag = clock - other.clock - other.forgiven
            if other.counts and lag > self.bound:
                held_by[rank] = lag
                self._held_since[rank, other.clock] = before.get((rank, other.clock), now)
        return held_by

    @property
    def deadline(self) -> float:
        """When the next worker is set aside, if one held us up at the last look."""
        return min(self._held_since.values()) + self.timeout_seconds

    def set_late_aside(self, now: float) -> list[int]:
        """Set aside workers that made no step for `timeout_seconds`; return their ranks."""
        late = [
            rank
            for (rank, _), since in self._held_since.items()
            if now >= since + self.timeout_seconds
        ]
        for rank in late:
            self._others[rank].counts = False
        return late

    def set_all_aside(self) -> None:
        """Wait for no worker until it makes a step."""
        for other in self._others.values():
            other.counts = False

    def _hear(self, rank: int, theirs: int, ours: int, bound: int) -> None:
        """Note how far another worker is."""
        other = self._others.get(rank)
        if other is not None and other.clock == theirs:
            return
        if other is None or not other.counts or theirs < other.clock:
            # It is new, was set aside, or another worker has its rank.
            self.count_from(rank, theirs, max(ours - theirs - bound, 0))
        else:
            other.clock = theirs
            other.forgiven = min(other.forgiven, max(ours - theirs, 0))
