"""What all workers use of the buffers that each has sent.

Running statistics are averaged: of floats every worker uses the mean, of integers, such as counts
of batches, the largest. All others are those of one worker, the one that leads: the lowest rank
that still trains. Whatever rounding does, a mean lies between the least and the largest averaged
value: so no variance becomes negative, and values that are equal everywhere stay as they are.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from gradwire_protocol.messages.buffers.layout import BufferLayout, Buffers, BufferValues, Floats


class Standing(NamedTuple):
    """What one worker has said of its buffers; the least standing leads."""

    leaves: bool
    """Whether it was about to leave while others train."""
    final: bool
    """Whether it trains no more."""
    rank: int

    @classmethod
    def of(cls, buffers: Buffers) -> "Standing":
        """Return that of a message."""
        return cls(buffers.leaves, buffers.final, buffers.rank)


def agreed(by_standing: Mapping[Standing, BufferValues]) -> BufferValues:
    """Return what all use: the mean of what is averaged, and the others of the one that leads."""
    in_order = sorted(by_standing, key=lambda each: each.rank)
    mean = mean_of([by_standing[each] for each in in_order])
    return mean._replace(others=by_standing[min(by_standing)].others)


def agreed_of(messages: Sequence[Buffers]) -> tuple[BufferLayout, BufferValues] | None:
    """Return the layout of the worker that leads, and what all with that layout use.

    None where nobody has sent values that can be used.

    Raises
    ------
    InvalidMessageError
        If the layout of the one that leads is no description.
    """
    with_values = [each for each in messages if each.nbytes]
    if not with_values:
        return None
    lead = min(with_values, key=Standing.of)
    layout = BufferLayout.parse(lead.layout)
    alike = {Standing.of(each): layout.unpack(each) for each in with_values}
    usable = {standing: values for standing, values in alike.items() if values is not None}
    return (layout, agreed(usable)) if usable else None


def mean_of(values: Sequence[BufferValues]) -> BufferValues:
    """Return the mean of the floats, computed in float64, and the largest of the integers.

    Parameters
    ----------
    values : sequence of BufferValues
        At least one. Their order decides how the sum is rounded: every worker needs the same.

    Returns
    -------
    BufferValues
        Each float is between the least and the largest at its place, both included. The others are
        those of the first.
    """
    first = values[0].floats
    total = first.astype(np.float64)
    low, high = total.copy(), total.copy()
    with np.errstate(over="ignore"):  # an infinite sum is clipped to `high`
        for each in values[1:]:
            total += each.floats
            np.minimum(low, each.floats, out=low)
            np.maximum(high, each.floats, out=high)
    mean = np.clip(total / len(values), low, high)
    integers = reduce(np.maximum, (each.integers for each in values))
    floats: Floats = mean if first.dtype == np.float64 else mean.astype(np.float32)
    return BufferValues(floats, integers, values[0].others)
