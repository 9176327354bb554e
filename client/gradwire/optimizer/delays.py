"""`Delays`: how late changes come, measured as training goes.

There are two delays. *On the network*: an update is applied when others already are that it did not
know. Their number is its staleness; it is counted where it is applied, for the updates of each
peer, and by the origin for its own, until the master has them. *In the residual*: a change that has
not reached the threshold waits. How long, on average, follows from Little's law (J. Little, "A
Proof for the Queuing Formula L = λW", 1961): what is in the residual divided by what leaves it per
step, both as sums of absolute values. Nothing has to be known about any single change.

**Staleness in steps.** In lockstep, when everything of step t is applied before step t + 1, an
update among W workers finds applied before it: the receiver's own of that step, always, and of the
W - 2 others, which come in any order, half. So its mean staleness is ``1 + (W - 2)/2 = W/2`` though
nothing is late. Where all updates come a step later than that, it is W more: one of each of the
W - 2 others, and two of the receiver's own, because one more was made since, and one more had not
come to the origin when it read its parameters. Hence ``excess = max(0, (staleness - W/2) / W)``.
"""

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

BUCKETS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper limits of a distribution's buckets: of staleness in updates, of ages in steps."""

RECENT_UPDATES: Final = 256
"""Updates of peers over which their staleness is averaged."""

RECENT_OF_RANK: Final = 64
"""Updates of one origin over which theirs is."""

RECENT_STEPS: Final = 64
"""Steps over which what is sent and what is in the residual are averaged."""

LATENESS_UPDATES: Final = 16
"""Updates of one origin over which lateness is judged, without the latest of them: one that waited
for a checkpoint to be written says nothing of the others."""

LATENESS_UPDATES_MIN: Final = 8
"""Before so many have come, it is not judged."""

SETTLED_AGES: Final = 6.0
"""After so many times the residual's age, it is a small part of what was trained, and mostly noise:
docs/decisions/finish-residual.md has the figures."""

SAMPLE_EVERY: Final = 7
SAMPLE_ALL_UNTIL: Final = 32
"""The residual is looked at in the first steps, and in every seventh one after them: it takes up to
65,536 elements that are far apart in memory. Seven, because what is sent may come in every fourth
or eighth step, and the looks have to fall on all of these in turn."""


class RecentMean:
    """A mean in which what is long ago counts less and less.

    Parameters
    ----------
    span : float
        How far back it reaches: weights fall by ``1/e`` in so many values.
    """

    __slots__ = ("_keep", "_sum", "_weight")

    def __init__(self, span: float) -> None:
        self._keep = 1.0 - 1.0 / span
        self._sum = 0.0
        self._weight = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Add a value, as if it came so many times."""
        keep = self._keep if count == 1 else self._keep**count
        self._sum = keep * self._sum + (1.0 - keep) * value
        self._weight = keep * self._weight + (1.0 - keep)

    @property
    def value(self) -> float:
        """The mean; 0 before the first value."""
        return self._sum / self._weight if self._weight else 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """How values are distributed, since the beginning of the session."""

    count: int
    """How many there were."""
    sum: float
    """What they add up to."""
    at_most: tuple[int, ...]
    """How many were not above each of `BUCKETS`."""

    @property
    def mean(self) -> float:
        """Their mean; 0 without any."""
        return self.sum / self.count if self.count else 0.0


class Histogram:
    """Counts values by bucket."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, as if it came so many times."""
        self._counts[bisect_left(BUCKETS, value)] += count
        self._sum += value * count

    def distribution(self) -> Distribution:
        """Return what was counted so far."""
        return Distribution(
            sum(self._counts), self._sum, tuple(accumulate(self._counts[: len(BUCKETS)]))
        )


class Delays:
    """The delays of one worker. Told of every update and every step; knows no clock."""

    def __init__(self) -> None:
        self.steps = 0
        """Those noted."""
        self._staleness = RecentMean(RECENT_UPDATES)
        self._last: deque[int] = deque(maxlen=RECENT_UPDATES)
        self._by_rank = defaultdict[int, RecentMean](partial(RecentMean, RECENT_OF_RANK))
        self._last_of_rank = defaultdict[int, deque[int]](partial(deque, maxlen=LATENESS_UPDATES))
        self._staleness_counts = Histogram()
        self.own_updates = 0
        """Of this worker, those whose staleness is known."""
        self._own = RecentMean(RECENT_OF_RANK)
        self._own_counts = Histogram()
        self._sent = RecentMean(RECENT_STEPS)
        self._residual = RecentMean(RECENT_STEPS)
        self._sampled_at = 0
        self._age = 0.0
        self._age_counts = Histogram()

    # What happens.

    def note_update(self, rank: int, staleness: int) -> None:
        """Note that an update of a peer was applied.

        Parameters
        ----------
        rank : int
            Its origin.
        staleness : int
            Updates of others than its origin that are applied and that it did not know.
        """
        self._by_rank[rank].add(staleness)
        self._last_of_rank[rank].append(staleness)
        self._staleness.add(staleness)
        self._last.append(staleness)
        self._staleness_counts.add(staleness)

    def note_sum(self, ranks: Collection[int], updates: int) -> None:
        """Note that a sum of updates of peers was applied: some of them waited for the others.

        Parameters
        ----------
        ranks : collection of int
            Their origins.
        updates : int
            How many are in it.
        """
        for rank in ranks:
            self._last_of_rank[rank].append(updates)

    def note_own(self, staleness: int) -> None:
        """Note that the master has an update of this worker.

        Parameters
        ----------
        staleness : int
            Updates of others that have come since the parameters were read that it was computed
            with.
        """
        self.own_updates += 1
        self._own.add(staleness)
        self._own_counts.add(staleness)

    @property
    def wants_residual(self) -> bool:
        """Whether the step that is noted next should say how large the residual is."""
        return self.steps < SAMPLE_ALL_UNTIL or self.steps % SAMPLE_EVERY == 0

    def note_step(self, sent: float, residual: float | None = None) -> None:
        """Note a step in which something was trained, and perhaps nothing sent.

        Parameters
        ----------
        sent : float
            Sum of the absolute values of what it sent, in units of the parameters.
        residual : float, optional
            Sum of the absolute values of what is left after it, where `wants_residual` says so.
        """
        self.steps += 1
        self._sent.add(sent)
        if residual is not None and math.isfinite(residual):
            steps = self.steps - self._sampled_at
            self._sampled_at = self.steps
            self._residual.add(residual, steps)
            self._age = self._age_now()
            self._age_counts.add(self._age, steps)

    # What comes of it.

    @property
    def staleness(self) -> float:
        """Mean staleness of the last updates of peers, in updates."""
        return self._staleness.value

    @property
    def staleness_max(self) -> int:
        """The largest one of the last 256."""
        return max(self._last, default=0)

    @property
    def staleness_by_rank(self) -> dict[int, float]:
        """Mean staleness of the last updates of each origin."""
        known = list(self._by_rank.items())  # another thread may ask for the numbers
        return {rank: mean.value for rank, mean in known}

    @property
    def own_staleness(self) -> float:
        """Mean staleness of this worker's own last updates."""
        return self._own.value

    @property
    def residual_age_steps(self) -> float:
        """How many steps a change waits in the residual, on average."""
        return self._age

    @property
    def unsettled(self) -> float:
        """How much the residual still says about the training, from 1 down to 0.

        It is 1 in a run as short as the residual is old, and 0 after `SETTLED_AGES` times that.
        """
        if not self.steps:
            return 1.0
        age = self._age_now()
        ages = self.steps / age if age else SETTLED_AGES
        return min(max((SETTLED_AGES - ages) / (SETTLED_AGES - 1.0), 0.0), 1.0)

    def network_delay_steps(self, world_size: int) -> float:
        """Return how many steps later than in lockstep updates of peers come."""
        return excess_steps(self.staleness, world_size)

    def lateness(self, ranks: Collection[int], world_size: int) -> float | None:
        """Return how many steps later than in lockstep the last updates of some peers came.

        Parameters
        ----------
        ranks : collection of int
            Which peers.
        world_size : int
            How many workers take part.

        Returns
        -------
        float or None
            A mean over these peers; None while of one of them too few have come.
        """
        found = [self._last_of_rank.get(rank, ()) for rank in ranks]
        if not found or min(map(len, found)) < LATENESS_UPDATES_MIN:
            return None
        means = [(sum(last) - max(last)) / (len(last) - 1) for last in found]
        return sum(excess_steps(mean, world_size) for mean in means) / len(means)

    def staleness_distribution(self) -> Distribution:
        """Return how staleness of peers' updates is distributed."""
        return self._staleness_counts.distribution()

    def own_staleness_distribution(self) -> Distribution:
        """Return how staleness of own updates is distributed."""
        return self._own_counts.distribution()

    def residual_age_distribution(self) -> Distribution:
        """Return how the residual's age is distributed over the steps."""
        return self._age_counts.distribution()

    def _age_now(self) -> float:
        residual, sent = self._residual.value, self._sent.value
        if residual <= 0.0:
            return 0.0
        # Nothing waits for longer than there were steps.
        return min(residual / sent, self.steps) if sent > 0.0 else float(self.steps)


def excess_steps(staleness: float, world_size: int) -> float:
    """Return by how many steps updates of this mean staleness come later than in lockstep.

    Parameters
    ----------
    staleness : float
        In updates.
    world_size : int
        How many workers take part; of one alone nothing is late.
    """
    if world_size <= 1:
        return 0.0
    return max(0.0, staleness / world_size - 0.5)
