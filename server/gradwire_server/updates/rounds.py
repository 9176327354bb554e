"""`Rounds`: what the workers of one run have contributed to its rounds.

A contribution is an update that is not relayed: it goes into a sum. When the round closes, the mean
is added to the replica and relayed, as updates of a rank that no worker has. Where updates are
merged, it is their sum, and a round closes as soon as it may. So the versions of a
replica say two things here: by that rank, which results it contains, and by the ranks of workers,
which of their updates are in these results.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gradwire_codecs import Replica, Update
from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.replica.merged_sum import MergedSum
from gradwire_codecs.replica.optimizer_sum import OptimizerSum
from gradwire_codecs.replica.outer_step import OuterSum
from gradwire_codecs.replica.round_sum import RoundSum, ranges_of
from gradwire_codecs.replica.state_sum import StateSum, ranges_with_state
from gradwire_codecs.warm_up import warm_up_optimizers
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.delivery.shaped_message import fragment_bytes_of
from gradwire_protocol.limits import DATAGRAM_BYTES
from gradwire_protocol.messages.kinds import RANK_END, WORKERS_MAX
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.masters.relaying import Merged
from gradwire_protocol.messages.modes.kept_state import STEP
from gradwire_protocol.messages.modes.mode import INVERSE, Mode, model_of
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.updates.optimizer import rule_of

CLOCK_SECONDS: Final = 1e-6
"""Resolution of the clock that a rank is drawn by."""


class Rounds:
    """The round in progress, and which updates earlier ones contain.

    Parameters
    ----------
    mode : Mode
        One with rounds.
    versions : mapping
        Those of the replica.
    """

    def __init__(self, mode: Mode, layout: Layout, versions: Mapping[int, int]) -> None:
        self.mode = mode
        self.merge_seconds = 0.0
        """Where updates are merged: how long after a round the next one closes at the earliest."""
        self.closed_at = float("-inf")
        """When the last round closed."""
        model = model_of(layout)
        self._elements = model.elements if mode.optimizer_state is None else layout.elements
        """Of a contribution."""
        self._parameters = model.elements
        self._tensors = len(model.tensors)
        if mode.bits:
            self._ranges = ranges_of([tensor.elements for tensor in model.tensors])
        else:
            self._ranges = [(0, model.elements)]
        self.restart(versions)

    def restart(self, versions: Mapping[int, int]) -> None:
        """Begin without contributions, with a replica of these versions.

        Raises `MemoryError` if there is no room for a sum.
        """
        self._sum = self._new_sum()
        self._rank: int | None = None
        self.contained = {r: s for r, s in versions.items() if r < WORKERS_MAX}
        """By rank: the last update in a closed round."""
        self.accepted = dict(self.contained)
        """By rank: the last update that was accepted."""
        self._added = dict(self.contained)
        """By rank: the last update that is in the sum."""
        self._parts: dict[int, list[Update]] = {}
        """By rank: the updates of a gradient of which more come."""
        self.complete: set[int] = set()
        """Ranks whose contribution to this round is complete."""
        self.awaited: set[int] = set()
        """Ranks that the round waits for: those that took part when it was opened."""
        self.opened_at: float | None = None
        """When the first update came; None before."""
        self.waits_since: float | None = None
        """When the first contribution was complete; None before. For what somebody has left who is
        gone, or has finished, nobody waits."""
        self.has_rest = False
        """Whether a mean has left something for the next round."""
        self._divisor = 1
        """How many contributed to the last round, or had something left since."""
        self.closed = 0
        """How many rounds this master has closed."""
        self.fragment_bytes = fragment_bytes_of(DATAGRAM_BYTES)
        """How the last contribution was cut into packets: results are cut like it."""
        self.clocks: dict[int, int] = {}
        """By rank: the clock in what was added to this round, where that is told."""
        self._based_on = 0
        self._count = 0

    def _new_sum(self) -> RoundSum | MergedSum:
        mode, elements, ranges = self.mode, self._elements, self._ranges
        if mode.merged:
            return MergedSum(elements)
        if mode.optimizer is not None:
            warm_up_optimizers()
            return OptimizerSum(
                elements,
                ranges,
                rule_of(mode.optimizer),
                mode.optimizer.rate_at,
                mode.optimizer.gradient_exponent,
            )
        if mode.has_outer_step:
            return OuterSum(
                elements,
                ranges,
                rate=mode.outer_lr,
                momentum=mode.outer_momentum,
                streams=mode.streams,
            )
        if mode.optimizer_state is not None:
            slots, numbers = mode.optimizer_state.slots, mode.optimizer_state.numbers
            return StateSum(
                ranges_with_state(ranges, len(slots), [self._tensors] * len(numbers)),
                parameters=len(ranges),
                numbers=len(numbers),
                largest=numbers.index(STEP) if STEP in numbers else None,
            )
        return RoundSum(elements, ranges)

    def remember(self, results: Sequence[Sequence[Update]], replica: Replica) -> None:
        """Go on after another master, with the replica and the last results.

        The momentum follows from these; an optimizer's state is in the replica.
        """
        if isinstance(self._sum, OptimizerSum):
            self._sum.begin_with(replica)
        if isinstance(self._sum, OuterSum):
            takes_turns = self.mode.streams > 1
            self._sum.remember(results, int(replica.values[-1]) if takes_turns else 0)
            self.has_rest = self.has_rest or any(results)

    @property
    def contributors(self) -> list[int]:
        """Ranks with updates in this round."""
        return [
            rank for rank, sequence in self._added.items() if sequence > self.contained.get(rank, 0)
        ]

    @property
    def steps(self) -> int | None:
        """How many steps the master's optimizer has made; None where it has none."""
        return self._sum.steps if isinstance(self._sum, OptimizerSum) else None

    @property
    def last_step(self) -> Int32Array | None:
        """The last step of DiLoCo's outer optimizer, of which the next follows, else None."""
        return self._sum.last_step if isinstance(self._sum, OuterSum) else None

    @property
    def has_enough(self) -> bool:
        """Whether the round closes, even where workers are missing."""
        mode = self.mode
        return mode.optimizer is not None and len(self.complete) >= mode.gradients_per_update

    def check(self, rank: int, update: EncodedUpdate) -> None:
        """Raise `InvalidMessageError` for an update that does not say what it contributes to."""
        if update.closes and update.closes != {rank: update.sequence}:
            raise InvalidMessageError(
                f"update {update.sequence} of rank {rank} closes {dict(update.closes)}; a "
                "contribution ends with an update of its own"
            )

    def is_state(self, update: Update) -> bool:
        """Return whether an update is of what a worker's optimizer keeps."""
        return update.start >= self._parameters

    def open(self, awaited: Collection[int], now: float) -> None:
        """Open a round: its first update has come."""
        self.opened_at, self.awaited = now, set(awaited)

    def add(self, rank: int, encoded: EncodedUpdate, update: Update, now: float) -> None:
        """Add the next update of a rank.

        A gradient is added when all of it is here: others may close the round meanwhile.
        Raises `InvalidMessageError` for one of what is no parameter, or of more than there are.
        """
        if update.hits and update.stop > self._elements:
            raise InvalidMessageError(
                f"update {encoded.sequence} of rank {rank} is of elements up to {update.stop}; "
                f"contributions are of {self._elements}"
            )
        if not isinstance(self._sum, OptimizerSum):
            self._sum.add(update)
            self._added[rank] = encoded.sequence
        else:
            self._keep_part(rank, encoded.sequence, update)
            if encoded.closes:
                self._add_gradient(self._sum, rank, encoded)
        self.accepted[rank] = encoded.sequence
        self.clocks.update(encoded.clocks_of(rank))
        self._based_on += encoded.based_on
        self._count += 1
        if encoded.closes:
            self.complete.add(rank)
            self.waits_since = now if self.waits_since is None else self.waits_since

    def rank_of_results(self, versions: Mapping[int, int], now: float) -> int:
        """Return the rank of the results, which is drawn when it is first asked for."""
        if self._rank is None:
            self._rank = new_rank(versions, now)
        return self._rank

    def add_sum(self, merged: Merged, updates: Sequence[Update]) -> None:
        """Add what a relay has merged: updates of several ranks, which are next of each."""
        assert isinstance(self._sum, MergedSum)
        for update in updates:
            self._sum.add(update)
        for span in merged.spans:
            self._added[span.rank] = self.accepted[span.rank] = span.sequence
        self.clocks.update(merged.clocks)
        self._based_on += merged.based_on
        self._count += merged.updates

    @property
    def based_on(self) -> int:
        """How many updates of others the parameters contained that this round is of, on average."""
        return round(self._based_on / self._count) if self._count else 0

    def forget_parts(self, rank: int) -> None:
        """Drop what has come of a gradient: its worker was lost, and another one has the rank."""
        self._parts.pop(rank, None)

    def retain_parts(self, ranks: Collection[int]) -> None:
        """Drop parts of gradients, except those of ranks that may still send the rest."""
        self._parts = {rank: parts for rank, parts in self._parts.items() if rank in ranks}

    def _keep_part(self, rank: int, sequence: int, update: Update) -> None:
        """Keep a part of a gradient. Each has an element, and no element comes twice."""
        parts = self._parts.setdefault(rank, [])
        here = sum(part.hits or 1 for part in parts) + update.hits
        if here > self._elements:
            raise InvalidMessageError(
                f"with update {sequence} of rank {rank} its gradient has {here} elements; there "
                f"are {self._elements} parameters"
            )
        parts.append(update)

    def _add_gradient(self, total: OptimizerSum, rank: int, encoded: EncodedUpdate) -> None:
        staleness = 1
        if self.mode.staleness == INVERSE:
            staleness = max(self.staleness(encoded), 1)
        for part in self._parts.pop(rank):
            total.add(part, staleness)
        self._added[rank] = encoded.sequence

    def staleness(self, encoded: EncodedUpdate) -> int:
        """Return how many steps the optimizer has made since the parameters of a gradient."""
        return max((self.steps or 0) - encoded.based_on, 0)

    def missing(self, trains: Collection[int]) -> list[int]:
        """Return the ranks that the round waits for, of those that train."""
        return sorted((self.awaited & set(trains)) - self.complete)

    def is_due(self, now: float) -> bool:
        """Return whether the round closes without those that are missing."""
        due = self.due
        return due is not None and now >= due

    @property
    def due(self) -> float | None:
        """When that is."""
        if self.mode.merged:
            return None if self.opened_at is None else self.closed_at + self.merge_seconds
        since = self.waits_since
        return None if since is None else since + self.mode.round_timeout_seconds

    def close(self, now: float, *, is_last: bool) -> list[Update]:
        """Close the round; return its mean, or what earlier ones have left if none was open.

        Where updates are merged, return their sum.

        Parameters
        ----------
        is_last : bool
            Whether nobody trains any more, so that nothing may be left for another round.
        """
        if isinstance(self._sum, MergedSum):
            mean = self._sum.take()
        else:
            contributors = len(self.contributors)
            # What only some have left is still a part of what all have changed.
            self._divisor = contributors if self.complete else max(self._divisor, contributors)
            mean = self._sum.take_mean(self._divisor, self.mode.magnitude_max, is_last=is_last)
            self.has_rest = not is_last
        self.closed_at = now
        self.contained = dict(self._added)
        self.complete.clear()
        self.awaited.clear()
        self.opened_at = self.waits_since = None
        self._based_on = self._count = 0
        self.clocks = {}
        self.closed += 1
        return mean


def new_rank(versions: Mapping[int, int], now: float) -> int:
    """Return a rank for the results of a master, which no earlier one of the run has had.

    One that was killed may have relayed results that only a worker has which is away. So it is not
    the next rank of those that are known, but a random one: by the clock.
    """
    first = round(now / CLOCK_SECONDS)
    count = RANK_END - WORKERS_MAX
    ranks = (WORKERS_MAX + (first + each) % count for each in range(count))
    return next(rank for rank in ranks if rank not in versions)
