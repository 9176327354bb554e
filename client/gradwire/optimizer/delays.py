"""`Delays`: how late changes come, measured as training goes.

There are two delays. *On the network*: when an update is applied, updates that its origin did not
know are already applied. Their number is its staleness. The receiver counts it for the updates of
each peer; the origin counts it for its own updates, until the master has them. *In the residual*: a
change that has not reached the threshold waits. How long, on average, follows from Little's law (J.
Little, "A Proof for the Queuing Formula L = λW", 1961): the residual divided by what leaves it per
step, both as sums of absolute values. No single change has to be tracked.

**Staleness in steps.** In lockstep, all updates of step t are applied before step t + 1. Among W
workers, an update is then applied after the receiver's own update of that step, and after half of
those of the W - 2 others, which come in any order. So its mean staleness is ``1 + (W - 2)/2 = W/2``
though nothing is late. Where all updates come one step later, it is W more: one update of each of
the W - 2 others, and two of the receiver's own, because it has made one more since, and one more
had not reached the origin when that read its parameters. Hence
``excess = max(0, (staleness - W/2) / W)``.
"""

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

BUCKETS: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Upper limits of a distribution's buckets: staleness in updates, ages in steps."""

RECENT_UPDATES: Final = 256
"""Updates of peers over which their staleness is averaged."""

RECENT_OF_RANK: Final = 64
"""Updates of one origin over which their staleness is averaged."""

RECENT_STEPS: Final = 64
"""Steps over which the sent changes and the residual are averaged."""

LATENESS_UPDATES: Final = 16
"""Updates of one origin over which lateness is judged, without the stalest of them: that one may
have waited for a checkpoint to be written."""

LATENESS_UPDATES_MIN: Final = 8
"""Updates of one origin without which its lateness is not judged."""

LATE_STEPS: Final = 0.75
"""Updates that come this many steps later than in lockstep are late. Workers that begin their steps
at any time, and whose updates take no time, measure a quarter to a half of a step."""

SETTLED_AGES: Final = 6.0
"""In a run this many times as long as the residual is old, the residual is a small part of what was
trained, and mostly noise: docs/decisions/residual.md has the figures."""

SAMPLE_EVERY: Final = 7
SAMPLE_ALL_UNTIL: Final = 32
"""The residual is sampled in the first steps, and in every seventh step after them: a sample reads
up to 65,536 elements that are far apart in memory. Seven, because a worker may send in every fourth
or eighth step only, and samples have to fall on each step of such a cycle in turn."""


class RecentMean:
    """A moving average with exponential weights.

    Parameters
    ----------
    span : float
        Values in which weights fall to ``1/e``.
    """

    __slots__ = ("_keep", "_sum", "_weight")

    def __init__(self, span: float) -> None:
        self._keep = 1.0 - 1.0 / span
        self._sum = 0.0
        self._weight = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Add a value `count` times."""
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
    """Number of values."""
    sum: float
    """Sum of the values."""
    at_most: tuple[int, ...]
    """For each limit in `BUCKETS`, the number of values not above it."""

    @property
    def mean(self) -> float:
        """Mean of the values; 0 without any."""
        return self.sum / self.count if self.count else 0.0


class Histogram:
    """Counts values by bucket."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value `count` times."""
        self._counts[bisect_left(BUCKETS, value)] += count
        self._sum += value * count

    def distribution(self) -> Distribution:
        """Return the distribution of the values so far."""
        return Distribution(
            sum(self._counts), self._sum, tuple(accumulate(self._counts[: len(BUCKETS)]))
        )


class Delays:
    """The delays of one worker, from every update and every step; without a clock."""

    def __init__(self) -> None:
        self.steps = 0
        self._staleness = RecentMean(RECENT_UPDATES)
        self._last: deque[float] = deque(maxlen=RECENT_UPDATES)
        self._by_rank = defaultdict[int, RecentMean](partial(RecentMean, RECENT_OF_RANK))
        self._last_of_rank = defaultdict[int, deque[float]](partial(deque, maxlen=LATENESS_UPDATES))
        self._staleness_counts = Histogram()
        self.own_updates = 0
        """Number of own updates whose staleness is known."""
        self._own = RecentMean(RECENT_OF_RANK)
        self._own_counts = Histogram()
        self._sent = RecentMean(RECENT_STEPS)
        self._residual = RecentMean(RECENT_STEPS)
        self._sampled_at = 0
        self._age = 0.0
        self._age_counts = Histogram()

    # Inputs.

    def note_update(self, rank: int, staleness: float) -> None:
        """Note that an update of a peer was applied.

        Parameters
        ----------
        rank : int
            Its origin.
        staleness : float
            Applied updates of other workers that the origin did not know.
        """
        self._by_rank[rank].add(staleness)
        self._last_of_rank[rank].append(staleness)
        self._staleness.add(staleness)
        self._last.append(staleness)
        self._staleness_counts.add(staleness)

    def note_summed(self, staleness: Mapping[int, tuple[float, int]]) -> None:
        """Note by rank the staleness of updates that came as one sum, and how many these are."""
        for rank, (each, count) in staleness.items():
            for _ in range(count):
                self.note_update(rank, each)

    def note_sum(self, ranks: Collection[int], updates: int) -> None:
        """Note that the sum of a number of updates of these ranks was applied.

        It counts for lateness: some of the updates waited for the others.
        """
        for rank in ranks:
            self._last_of_rank[rank].append(updates)

    def note_own(self, staleness: int) -> None:
        """Note that the master has an update of this worker.

        Its staleness are the updates of others that have arrived since this worker read the
        parameters from which it computed the update.
        """
        self.own_updates += 1
        self._own.add(staleness)
        self._own_counts.add(staleness)

    @property
    def wants_residual(self) -> bool:
        """Whether `note_step` should be given the size of the residual the next time."""
        return self.steps < SAMPLE_ALL_UNTIL or self.steps % SAMPLE_EVERY == 0

    def note_step(self, sent: float, residual: float | None = None) -> None:
        """Note a step that has trained something, whether it has sent an update or not.

        Parameters
        ----------
        sent : float
            Sum of the absolute values that the step sent, in units of the parameters.
        residual : float, optional
            Sum of the residual's absolute values after the step, where `wants_residual` is true.
        """
        self.steps += 1
        self._sent.add(sent)
        if residual is not None and math.isfinite(residual):
            steps = self.steps - self._sampled_at
            self._sampled_at = self.steps
            self._residual.add(residual, steps)
            self._age = self._age_now()
            self._age_counts.add(self._age, steps)

    # Outputs.

    @property
    def staleness(self) -> float:
        """Mean staleness of the last `RECENT_UPDATES` updates of peers, in updates."""
        return self._staleness.value

    @property
    def staleness_max(self) -> int:
        """Largest staleness of the last `RECENT_UPDATES` updates of peers."""
        return math.ceil(max(self._last, default=0))

    @property
    def staleness_by_rank(self) -> dict[int, float]:
        """Mean staleness of the last updates of each origin."""
        known = list(self._by_rank.items())  # a copy: another thread may be reading
        return {rank: mean.value for rank, mean in known}

    @property
    def own_staleness(self) -> float:
        """Mean staleness of this worker's own last updates, in updates of others."""
        return self._own.value

    @property
    def residual_age_steps(self) -> float:
        """Steps that a change waits in the residual, on average."""
        return self._age

    @property
    def residual_weight(self) -> float:
        """Weight of the residual at the end of a run: how far it is training and not noise, 1 to 0.

        It is 1 in a run as long as the residual is old, and 0 after `SETTLED_AGES` times that.
        """
        if not self.steps:
            return 1.0
        age = self._age_now()
        ages = self.steps / age if age else SETTLED_AGES
        return min(max((SETTLED_AGES - ages) / (SETTLED_AGES - 1.0), 0.0), 1.0)

    def final_residual_portion(self, world_size: int) -> float:
        """Return how much of its residual a worker sends when it has finished.

        After a short run it is 1/W for W workers, so that all end with the mean of the workers' own
        parameters. After a longer run it is less, because the residual is noise then. A worker
        alone sends all: its own parameters are the run's.
        """
        return self.residual_weight / world_size if world_size > 1 else 1.0

    def network_delay_steps(self, world_size: int) -> float:
        """Return how many steps later than in lockstep updates of peers arrive."""
        return excess_steps(self.staleness, world_size)

    def lateness(self, ranks: Collection[int], world_size: int) -> float | None:
        """Return how many steps later than in lockstep the last updates of some peers arrived.

        Returns
        -------
        float or None
            Mean over the peers that have sent `LATENESS_UPDATES_MIN` updates; None while these are
            fewer than half of them.
        """
        last_of = [self._last_of_rank.get(rank, ()) for rank in ranks]
        found = [last for last in last_of if len(last) >= LATENESS_UPDATES_MIN]
        if not found or 2 * len(found) < len(last_of):
            return None
        means = [(sum(last) - max(last)) / (len(last) - 1) for last in found]
        return sum(excess_steps(mean, world_size) for mean in means) / len(means)

    def forget_lateness(self) -> None:
        """Judge lateness by the updates that come from now on."""
        self._last_of_rank.clear()

    def staleness_distribution(self) -> Distribution:
        """Return the distribution of the staleness of peers' updates."""
        return self._staleness_counts.distribution()

    def own_staleness_distribution(self) -> Distribution:
        """Return the distribution of the staleness of own updates."""
        return self._own_counts.distribution()

    def residual_age_distribution(self) -> Distribution:
        """Return the distribution of the residual's age over the steps."""
        return self._age_counts.distribution()

    def _age_now(self) -> float:
        residual, sent = self._residual.value, self._sent.value
        if residual <= 0.0:
            return 0.0
        # No change waits for longer than the session has trained.
        return min(residual / sent, self.steps) if sent > 0.0 else float(self.steps)


def excess_steps(staleness: float, world_size: int) -> float:
    """Return how many steps later than in lockstep updates of this mean staleness arrive.

    Staleness is in updates. With one worker, nothing is late.
    """
    if world_size <= 1:
        return 0.0
    return max(0.0, staleness / world_size - 0.5)
