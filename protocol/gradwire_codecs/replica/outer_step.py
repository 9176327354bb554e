"""`OuterSum`: contributions added up, of which the mean makes a step of an outer optimizer.

That of DiLoCo (Douillard et al., 2023, arXiv 2311.08105, algorithm 1): Nesterov's momentum as torch
has it, where a gradient is what the workers have changed, with its sign turned::

    v = momentum * v + mean
    p = p + rate * (mean + momentum * v)

The replica is not p, but p without the look ahead, ``p - rate * momentum * v``. It moves by
``rate * v``, so a step follows from the last one alone::

    step = momentum * last step + rate * mean

and p is the replica plus ``momentum * step``. Whoever has the last step can go on with it.

With several streams, each round is of one fragment of the parameters, in turn (Douillard et al.,
2025, arXiv 2501.18512). Behind the parameters the replica then has the number of rounds, which says
whose turn it is.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int8Array, Int32Array, Int64Array
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import DenseUpdate, Update
from gradwire_codecs.kernels.compiled import compiled, dividing, inlined
from gradwire_codecs.replica.fragments import fragments_of
from gradwire_codecs.replica.round_sum import UNTOUCHED, RoundSum, found


@inlined
def _step_of(
    total: np.int64, last: np.int32, rest: np.float32, rate: float, momentum: float
) -> float:
    return np.float64(total) * rate + np.float64(rest) + momentum * np.float64(last)


@dividing
def _step_peak(
    total: Int64Array, last: Int32Array, rest: Float32Array, rate: float, momentum: float
) -> float:
    """Return the largest magnitude of a range's step."""
    peak = 0.0
    for i in range(total.size):
        peak = max(peak, abs(_step_of(total[i], last[i], rest[i], rate, momentum)))
    return peak


@dividing
def _take_step(
    total: Int64Array,
    last: Int32Array,
    rest: Float32Array,
    rate: float,
    momentum: float,
    multiple: float,
    counts: Int8Array,
) -> None:
    """Make a range's step in counts of at most 127, and begin the next sum."""
    most = np.float64(COUNT_MAX)
    for i in range(total.size):
        step = _step_of(total[i], last[i], rest[i], rate, momentum)
        count = max(min(np.rint(step / multiple), most), -most)
        rest[i] = np.float32(step - count * multiple)
        last[i] = np.int32(count * multiple)
        counts[i] = np.int8(count)
        total[i] = 0


@compiled
def _look_ahead(counts: Int8Array, multiple: int, momentum: float, ahead: Int32Array) -> None:
    for i in range(counts.size):
        ahead[i] = np.int32(np.rint(momentum * (np.float64(counts[i]) * multiple)))


class OuterSum(RoundSum):
    """A `RoundSum` whose means are steps; it takes 16 bytes for each element.

    Parameters
    ----------
    elements, ranges
        As for `RoundSum`.
    rate, momentum : float
        Of the outer optimizer.
    streams : int
        How many fragments take turns.
    """

    def __init__(
        self,
        elements: int,
        ranges: Sequence[tuple[int, int]],
        *,
        rate: float,
        momentum: float,
        streams: int = 1,
    ) -> None:
        fragments = fragments_of(ranges, streams)
        super().__init__(elements, [each for fragment in fragments for each in fragment])
        stops = list(accumulate(map(len, fragments)))
        self._turns = [range(a, b) for a, b in zip([0, *stops], stops, strict=False)]
        """By turn: the places of the ranges of a fragment."""
        self._rounds = 0
        """How many rounds the replica contains; counted where fragments take turns."""
        self._rate = rate
        self._momentum = momentum
        self._last: Int32Array = np.zeros(elements, np.int32)
        """The last step, as it was relayed."""
        self._rest: Float32Array = np.zeros(elements, np.float32)
        """What rounding has left of steps."""

    @property
    def last_step(self) -> Int32Array:
        """The last step, as it was relayed: shape (elements,), int32, in quanta."""
        return self._last

    def remember(self, results: Sequence[Sequence[Update]], rounds: int = 0) -> None:
        """Go on after another master.

        Parameters
        ----------
        results : sequence of sequence of Update
            The last results, one for each fragment, in order.
        rounds : int
            How many rounds the replica contains, where fragments take turns.
        """
        self._rounds = rounds
        self._last[:] = 0
        for result in results:
            for update in result:
                if update.stop <= len(self._last):  # else it is the number of rounds
                    self._last[update.start : update.stop] = update.change_of_range()

    def take_mean(
        self, divisor: int, magnitude_max: int | None, *, is_last: bool = False
    ) -> list[Update]:
        """Take the step of the fragment whose turn it is; see `RoundSum.take_mean`.

        Of what else was contributed, too: late workers contribute a fragment before that one. With
        `is_last`, of all.
        """
        step = super().take_mean(divisor, magnitude_max, is_last=is_last)
        if len(self._turns) > 1:
            self._rounds += 1
            last = len(self._total)
            one = np.ones(1, np.int32)
            step.append(Update(last, last + 1, 1, np.array([last], np.uint32), one))
        return step

    def _places(self, *, is_last: bool) -> Iterable[int]:
        if is_last:
            return super()._places(is_last=True)
        contributed = np.flatnonzero(self._finest < UNTOUCHED).tolist()
        return sorted({*self._turns[self._rounds % len(self._turns)], *contributed})

    def _take_range(
        self, place: int, divisor: int, magnitude_max: int | None, *, is_last: bool
    ) -> Update | None:
        """Take the step of a range.

        With `is_last` the momentum makes no step of its own, and the look ahead is in the result:
        the replica becomes the optimizer's parameters.
        """
        start, stop = self._ranges[place]
        total, last, rest = (v[start:stop] for v in (self._total, self._last, self._rest))
        if magnitude_max is not None and magnitude_max <= COUNT_MAX and not is_last:
            return self._take_dense(place, divisor, magnitude_max)
        step = total * (self._rate / divisor) + rest
        if not is_last:
            step += self._momentum * last
        multiple = max(int(self._finest[place] * self._rate) // divisor, 1)
        if magnitude_max is not None:
            multiple = max(multiple, int(-(-np.abs(step).max() // magnitude_max)))
        multiple = min(multiple, MULTIPLE_MAX)
        most = INT32_MAX // multiple
        count = np.clip(np.rint(step / multiple), -most, most)
        rest[:] = step - count * multiple
        total[:] = 0
        if is_last:
            count = np.clip(count + np.rint(self._momentum * last), -most, most)
            last[:] = 0
        else:
            last[:] = count * multiple
        index = np.flatnonzero(count)
        if not index.size:
            return None
        counts = count[index].astype(np.int32)
        return Update(start, stop, multiple, (index + start).astype(np.uint32), counts)

    def _take_dense(self, place: int, divisor: int, magnitude_max: int) -> DenseUpdate | None:
        """Take the step of a range, with a count for each element."""
        start, stop = self._ranges[place]
        parts = self._total[start:stop], self._last[start:stop], self._rest[start:stop]
        factors = self._rate / divisor, self._momentum
        multiple = max(int(self._finest[place] * self._rate) // divisor, 1)
        multiple = max(multiple, math.ceil(_step_peak(*parts, *factors) / magnitude_max))
        multiple = min(multiple, MULTIPLE_MAX)
        counts = np.empty(stop - start, np.int8)
        _take_step(*parts, *factors, float(multiple), counts)
        return found(DenseUpdate(start, stop, multiple, counts))


def look_ahead(updates: Sequence[Update], momentum: float, ahead: Int32Array) -> None:
    """Note how far the optimizer's parameters are ahead of the replica after a step.

    Parameters
    ----------
    updates : sequence of Update
        The step; of what they do not cover, nothing is noted.
    momentum : float
    ahead : ndarray of shape (elements,), dtype int32
        In quanta; the same on every machine.
    """
    for update in updates:
        if update.stop > len(ahead):
            continue  # the number of rounds
        part = ahead[update.start : update.stop]
        if isinstance(update, DenseUpdate):
            _look_ahead(update.counts, update.multiple, momentum, part)
        else:
            part[:] = 0
            ahead[update.index] = np.rint(momentum * update.change).astype(np.int32)
