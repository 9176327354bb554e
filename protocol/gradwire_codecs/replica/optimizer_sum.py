"""`OptimizerSum`: gradients added up, of which the mean makes a step of an optimizer at the master.

The replica has the parameters, then the optimizer's state, slot by slot, then one element with the
number of steps. A result changes the parameters by the step; of the state it carries a part, in
turn: no element of it is more than `STATE_ROUNDS` results old. So a master that has the replica can
go on with the optimizer, from a state that is a little older.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int8Array, Int64Array, UInt32Array
from gradwire_codecs.arrays import Int32Array as Counts
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import DenseUpdate, Update
from gradwire_codecs.kernels.compiled import compiled, dividing, inlined
from gradwire_codecs.replica.optimizer_rules import Rule
from gradwire_codecs.replica.replica import Replica
from gradwire_codecs.replica.round_sum import RoundSum, found

STATE_ROUNDS: Final = 8
"""After so many results all of the optimizer's state was sent."""


@inlined
def _divided(value: np.int64, divisor: int) -> np.int64:
    """Return the nearest whole number, half away from zero."""
    half = divisor // 2
    return (value + half) // divisor if value >= 0 else -((half - value) // divisor)


@compiled
def _add_part(
    total: Int64Array, index: UInt32Array, count: Counts, multiple: int, divisor: int
) -> None:
    for j in range(index.size):
        total[index[j]] += _divided(np.int64(count[j]) * multiple, divisor)


@compiled
def _add_dense_part(total: Int64Array, counts: Int8Array, multiple: int, divisor: int) -> None:
    for i in range(counts.size):
        total[i] += _divided(np.int64(counts[i]) * multiple, divisor)


@compiled
def _take_gradient(total: Int64Array, unit: float, gradient: Float32Array) -> None:
    for i in range(total.size):
        gradient[i] = np.float32(total[i] * unit)
        total[i] = 0


@compiled
def _parameters_of(
    values: Counts, rest: Float32Array, quantum: float, parameters: Float32Array
) -> None:
    for i in range(values.size):
        parameters[i] = np.float32((values[i] + np.float64(rest[i])) * quantum)


@compiled
def _largest(rest: Float32Array, step: Float32Array, per_quantum: float) -> float:
    """Return the largest magnitude of what is wanted, in quanta."""
    largest = 0.0
    for i in range(rest.size):
        largest = max(largest, abs(rest[i] + step[i] * per_quantum))
    return largest


@compiled
def _round(
    rest: Float32Array,
    step: Float32Array,
    per_quantum: float,
    multiple: int,
    index: UInt32Array,
    count: Counts,
    start: int,
) -> int:
    """Round what is wanted to multiples, and leave the rest; return how many are not zero."""
    hits = 0
    for i in range(rest.size):
        wanted = rest[i] + step[i] * per_quantum
        rounded = np.rint(wanted / multiple)
        rest[i] = np.float32(wanted - rounded * multiple)
        if rounded != 0:
            index[hits] = np.uint32(start + i)
            count[hits] = np.int32(rounded)
            hits += 1
    return hits


@dividing
def _round_densely(
    rest: Float32Array,
    step: Float32Array,
    per_quantum: float,
    multiple: float,
    counts: Int8Array,
) -> None:
    """Do what `_round` does, with a count of at most 127 for each element."""
    most = np.float64(COUNT_MAX)
    for i in range(rest.size):
        wanted = rest[i] + step[i] * per_quantum
        count = max(min(np.rint(wanted / multiple), most), -most)
        rest[i] = np.float32(wanted - count * multiple)
        counts[i] = np.int8(count)


class OptimizerSum(RoundSum):
    """A `RoundSum` whose means are steps of an optimizer.

    It takes 12 bytes for each parameter, and 4 for each slot of it.

    Parameters
    ----------
    parameters : int
        Elements of the replica that are no state.
    ranges : sequence of (int, int)
        Parts of the parameters that each step is an update of, in order and without gaps.
    rule : Rule
    rate : callable
        Returns the learning rate of a step, by its number from 1 on.
    gradient_exponent : int
        Gradients are multiples of two to this power.
    """

    def __init__(
        self,
        parameters: int,
        ranges: Sequence[tuple[int, int]],
        rule: Rule,
        rate: Callable[[int], float],
        gradient_exponent: int,
    ) -> None:
        super().__init__(parameters, ranges)
        self.steps = 0
        """How many steps the optimizer has made."""
        self._parameters = parameters
        self._rule = rule
        self._rate = rate
        self._unit = 2.0**gradient_exponent
        self._state = [np.zeros(parameters, np.float32) for _ in rule.slots]
        self._rest: Float32Array = np.zeros(parameters, np.float32)
        """What rounding has left of steps, in quanta."""
        self._replica: Replica | None = None
        self._has_gradients = False
        self._turn = 0
        """The part of the state that the next result begins with: a slot's range."""

    @property
    def length(self) -> int:
        """How many elements the replica has."""
        return length_with_state(self._parameters, self._rule)

    def begin_with(self, replica: Replica) -> None:
        """Go on with the state that a replica has; steps are made from its values."""
        n = self._parameters
        assert len(replica) == self.length
        self._replica = replica
        self.steps = max(int(replica.values[-1]), 0)
        slots = [replica.values[n * (1 + at) : n * (2 + at)] for at in range(len(self._state))]
        self._state = self._rule.to_state(slots)

    def add(self, update: Update, staleness: int = 1) -> None:
        """Add a gradient, divided by a whole number."""
        self._has_gradients = True
        if isinstance(update, DenseUpdate):
            part = self._total[update.start : update.stop]
            _add_dense_part(part, update.counts, update.multiple, staleness)
        else:
            _add_part(self._total, update.index, update.count, update.multiple, staleness)

    def take_mean(
        self, divisor: int, magnitude_max: int | None, *, is_last: bool = False
    ) -> list[Update]:
        """Make a step by the mean, if there are gradients; return what it changes of the replica.

        Parameters as those of `RoundSum.take_mean`; without a `magnitude_max`, and with `is_last`,
        the change is exact to half a quantum.
        """
        if is_last:
            magnitude_max = None
        makes_step, self._has_gradients = self._has_gradients, False
        self.steps += makes_step
        changes = [
            self._change(place, divisor if makes_step else None, magnitude_max)
            for place in range(len(self._ranges))
        ]
        changes += self._state_changes(magnitude_max, all_of_it=is_last)
        return [each for each in changes if each is not None]

    def _change(self, place: int, divisor: int | None, magnitude_max: int | None) -> Update | None:
        """Make the step of a range, unless there is no divisor; return what of it is sent."""
        assert self._replica is not None
        start, stop = self._ranges[place]
        rest, quantum = self._rest[start:stop], float(self._replica.quantum)
        step: Float32Array = np.zeros(stop - start, np.float32)
        if divisor is not None:
            gradient, parameters = np.empty_like(step), np.empty_like(step)
            _take_gradient(self._total[start:stop], self._unit / divisor, gradient)
            _parameters_of(self._replica.values[start:stop], rest, quantum, parameters)
            state = [slot[start:stop] for slot in self._state]
            rate = self._rate(self.steps)
            step = self._rule.step(self.steps, rate, gradient, parameters, state)
        largest = _largest(rest, step, 1 / quantum)
        if not largest <= INT32_MAX:
            np.clip(step, -quantum * INT32_MAX / 2, quantum * INT32_MAX / 2, out=step)
            largest = _largest(rest, step, 1 / quantum)
        multiple = _multiple_of(largest, magnitude_max)
        if magnitude_max is not None and magnitude_max <= COUNT_MAX:
            counts = np.empty(len(step), np.int8)
            _round_densely(rest, step, 1 / quantum, multiple, counts)
            return found(DenseUpdate(start, stop, multiple, counts))
        index, count = np.empty(len(step), np.uint32), np.empty(len(step), np.int32)
        hits = _round(rest, step, 1 / quantum, multiple, index, count, start)
        if not hits:
            return None
        return Update(start, stop, multiple, index[:hits].copy(), count[:hits].copy())

    def _state_changes(self, magnitude_max: int | None, *, all_of_it: bool) -> list[Update | None]:
        """Return what has changed of the state, or of the part of it whose turn it is."""
        assert self._replica is not None
        values, slots = self._replica.values, len(self._state)
        places = len(self._ranges) * slots
        share = places if all_of_it else -(-places // STATE_ROUNDS)
        changes: list[Update | None] = []
        for _ in range(share):
            slot, place = divmod(self._turn, len(self._ranges))
            self._turn = (self._turn + 1) % places
            start, stop = self._ranges[place]
            coded = self._rule.to_integers(slot, [each[start:stop] for each in self._state])
            at = self._parameters * (1 + slot) + start
            difference = coded.astype(np.int64) - values[at : at + stop - start]
            changes.append(_rounded(at, difference, magnitude_max))
        last = len(values) - 1
        more = self.steps - int(values[-1])
        index, count = np.array([last], np.uint32), np.array([more], np.int32)
        return [*changes, Update(last, last + 1, 1, index, count) if more else None]


def length_with_state(parameters: int, rule: Rule) -> int:
    """Return how many elements a replica has whose parameters an optimizer changes."""
    return parameters * (1 + len(rule.slots)) + 1


def _multiple_of(largest: float, magnitude_max: int | None) -> int:
    """Return how many quanta are rounded to, so that the largest element just has room."""
    if magnitude_max is None:
        return 1
    return max(1, min(int(-(-largest // magnitude_max)), MULTIPLE_MAX))


def _rounded(start: int, difference: Int64Array, magnitude_max: int | None) -> Update | None:
    """Return a difference of elements as an update, or as much of it as there is room for."""
    multiple = _multiple_of(float(np.abs(difference).max()), magnitude_max)
    most = min(INT32_MAX // multiple, magnitude_max or INT32_MAX)
    count = np.clip(np.rint(difference / multiple), -most, most).astype(np.int32)
    index = np.flatnonzero(count)
    if not index.size:
        return None
    at = (index + start).astype(np.uint32)
    return Update(start, start + len(difference), multiple, at, count[index])
