"""`StateSum`: contributions added up that have an optimizer's state behind the parameters.

::

    [ parameters | slot 1 | slot 2 | … | number 1 | number 2 | … ]

A slot is averaged as the parameters are, with 8 bits for each element. Numbers are exact: their
mean, or for the number of steps the largest of all.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.update import Update
from gradwire_codecs.replica.round_sum import RoundSum

STATE_MAGNITUDE_MAX: Final = COUNT_MAX
"""Largest count of an element of a slot, whatever the mode has for parameters. With 4 bits, squares
of gradients would be wrong by several binary digits in the first round."""


def ranges_with_state(
    ranges: Sequence[tuple[int, int]], slots: int, numbers: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the ranges of parameters, then those of slots, then one for each number.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Of the parameters, from 0 on, in order and without gaps.
    slots : int
    numbers : sequence of int
        Elements of each number.
    """
    n = ranges[-1][1]
    found = [(start + n * at, stop + n * at) for at in range(1 + slots) for start, stop in ranges]
    for elements in numbers:
        start = found[-1][1]
        found.append((start, start + elements))
    return found


class StateSum(RoundSum):
    """A `RoundSum` of parameters and state.

    Parameters
    ----------
    ranges : sequence of (int, int)
        As `ranges_with_state` returns them.
    parameters : int
        How many of the ranges are parameters.
    numbers : int
        How many of the last ranges are numbers.
    largest : int, optional
        Which of them is the largest of all, and no mean.
    """

    def __init__(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        parameters: int,
        numbers: int,
        largest: int | None,
    ) -> None:
        elements = ranges[-1][1]
        super().__init__(elements, ranges)
        self._parameters = parameters
        self._numbers = len(ranges) - numbers
        self._place = None if largest is None else self._numbers + largest
        self._start, self._stop = (
            (elements, elements) if self._place is None else ranges[self._place]
        )

    def add(self, update: Update) -> None:
        """Add an update that was contributed, and fits the vector."""
        if update.stop <= self._start or update.start >= self._stop:
            super().add(update)
            return
        index, change = update.index, update.change
        is_number = (index >= self._start) & (index < self._stop)
        at = index[is_number].astype(np.int64)
        self._total[at] = np.maximum(self._total[at], change[is_number])
        rest = ~is_number
        if rest.any():
            super().add(
                Update(update.start, update.stop, update.multiple, index[rest], update.count[rest])
            )

    def _take_range(
        self, place: int, divisor: int, magnitude_max: int | None, *, is_last: bool
    ) -> Update | None:
        if place >= self._numbers:
            magnitude_max = None
            self._finest[place] = 1
            divisor = 1 if place == self._place else divisor
        elif place >= self._parameters:
            magnitude_max = STATE_MAGNITUDE_MAX
        return super()._take_range(place, divisor, magnitude_max, is_last=is_last)
