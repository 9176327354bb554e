"""`Rounds`: what the workers of one run have contributed to its rounds.

A contribution is an update that is not relayed: it goes into a sum. When the round closes, the mean
is added to the replica and relayed, as updates of a rank that no worker has. So the versions of a
replica say two things here: by that rank, which results it contains, and by the ranks of workers,
which of their updates are in these results.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from gradwire_codecs import Replica, Update
from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.replica.optimizer_sum import OptimizerSum
from gradwire_codecs.replica.outer_step import OuterSum
from gradwire_codecs.replica.round_sum import RoundSum, ranges_of
from gradwire_codecs.replica.sparse_sum import SparseSum
from gradwire_codecs.replica.state_sum import StateSum, ranges_with_state
from gradwire_codecs.warm_up import warm_up_optimizers, warm_up_rest
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.delivery.shaped_message import fragment_bytes_of
from gradwire_protocol.limits import DATAGRAM_BYTES
from gradwire_protocol.messages.kinds import RANK_END, WORKERS_MAX
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import STEP
from gradwire_protocol.messages.modes.mode import INVERSE, Mode, model_of
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.updates.optimizer import rule_of
from gradwire_server.updates.paces import Paces

CLOCK_SECONDS: Final = 1e-6
"""Resolution of the clock that a rank is drawn by."""

GRACE_PORTION: Final = 0.25
GRACE_PORTION_IN_STREAMS: Final = 0.75
"""Of the time from one round to the next: so long half of the workers wait at most for one that
should come soon. One that is slower is waited for by nobody. In streams they train meanwhile."""

GRACE_SECONDS_MIN: Final = 0.1
"""So long they wait in any case: a process that had to wait for a processor is not slow."""


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
        warm_up_rest()
        self.mode = mode
        model = model_of(layout)
        self._elements = model.elements if mode.optimizer_state is None else layout.elements
        """Of a contribution."""
        self._parameters = model.elements
        self._tensors = len(model.tensors)
        if mode.bits or mode.sparse:
            self._ranges = ranges_of([tensor.elements for tensor in model.tensors])
        else:
            self._ranges = [(0, model.elements)]
        self.restart(versions)

    def restart(self, versions: Mapping[int, int]) -> None:
        """Begin without contributions, with a replica of these versions.

        Raises `MemoryError` if there is no room for a sum.
        """
        self._sum = self._new_sum()
        self.rank: int | None = None
        """Rank of the results, from the first one on."""
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
        """How many contributed to the last round."""
        self._paces = Paces()
        self._late: set[int] = set()
        """Ranks that rounds were closed without, until they contribute."""
        self._half_at: float | None = None
        """When half of those that the round waits for had contributed; None before."""
        self._half_before: float | None = None
        """When they had to the round before."""
        self.closed = 0
        """How many rounds this master has closed."""
        self.fragment_bytes = fragment_bytes_of(DATAGRAM_BYTES)
        """How the last contribution was cut into packets: results are cut like it."""

    def _new_sum(self) -> RoundSum:
        mode, elements, ranges = self.mode, self._elements, self._ranges
        if mode.optimizer is not None:
            warm_up_optimizers()
            return OptimizerSum(
                elements,
                ranges,
                rule_of(mode.optimizer),
                mode.optimizer.rate_at,
                mode.optimizer.gradient_exponent,
            )
        if mode.sparse:
            return SparseSum(elements, ranges, density=mode.sparse, rate=mode.outer_lr)
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
        # A late contribution is of a round before. If it counted for half of the workers, it would
        # close the round of the others.
        self.opened_at, self.awaited = now, set(awaited) - self._late

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
        if encoded.closes:
            self._note_complete(rank, now)

    def _note_complete(self, rank: int, now: float) -> None:
        self.complete.add(rank)
        self.waits_since = now if self.waits_since is None else self.waits_since
        self._paces.finish(rank, now)
        if self.mode.streams > 1:  # it trains on
            self._paces.begin(rank, now)
        self._late.discard(rank)
        here = len(self.awaited & self.complete)
        if self._half_at is None and here and 2 * here >= len(self.awaited):
            self._half_at = now

    def forget(self, rank: int) -> None:
        """Wait no more for a worker that was removed."""
        self.awaited.discard(rank)
        self._late.discard(rank)
        self._paces.forget(rank)

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

    def due(self, missing: Collection[int]) -> float | None:
        """Return when the round closes without those that are missing; None while nobody waits.

        After half of the workers, the others have a grace. Who should come within it is waited for
        until it should have come nearly always; who takes longer is not, and counts in a later
        round.
        """
        if self.waits_since is None:
            return None
        timeout = self.waits_since + self.mode.round_timeout_seconds
        if self.mode.waits_for_all or self._half_at is None or self._half_before is None:
            return timeout
        half_at = self._half_at
        portion = GRACE_PORTION if self.mode.streams == 1 else GRACE_PORTION_IN_STREAMS
        grace = max(portion * (half_at - self._half_before), GRACE_SECONDS_MIN)
        due = half_at
        for rank in missing:
            usual, latest = self._paces.expected(rank) or (half_at, half_at + grace)
            if usual <= half_at + grace:
                due = max(due, min(max(latest, half_at + GRACE_SECONDS_MIN), half_at + grace))
        return min(due, timeout)

    def close(self, now: float, missing: Collection[int], *, is_last: bool) -> list[Update]:
        """Close the round; return its mean, or what earlier ones have left if none was open.

        Parameters
        ----------
        missing : collection of int
            Ranks that were waited for in vain.
        is_last : bool
            Whether nobody trains any more, so that nothing may be left for another round.
        """
        self._divisor = len(self.contributors) or self._divisor
        mean = self._sum.take_mean(self._divisor, self.mode.magnitude_max, is_last=is_last)
        self.has_rest = not is_last
        self.contained = dict(self._added)
        self._late |= set(missing)
        if self.mode.streams == 1:
            for rank in self.complete:
                self._paces.begin(rank, now)
        self._half_before, self._half_at = self._half_at or now, None
        self.complete.clear()
        self.awaited.clear()
        self.opened_at = self.waits_since = None
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
