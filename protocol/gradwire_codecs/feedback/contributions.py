"""Contributions to rounds: what a worker has changed since it contributed last, as updates.

A dense one carries all elements, with a threshold for each range, such that the largest one just
has room. A sparse one carries the largest elements of each range, or what has reached a threshold.
All leave the rest in the residual. Until the round closes, the replica contains none of them.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gradwire_codecs.errors import CodecError
from gradwire_codecs.feedback.feedback import SAMPLE, Feedback
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.update import NOTHING, DenseUpdate, Update, decode, split_update
from gradwire_codecs.replica.sparse_sum import largest_multiple

DECAY: Final = 0.95
"""What a round leaves of the residual of a sparse contribution: beta of SparseLoCo (Sarfi et al.,
2025, arXiv 2508.15706). What waits for long is of parameters that nobody has any more."""


def encode_dense(
    feedback: Feedback, ranges: Sequence[tuple[int, int]], magnitude_max: int, *, bytes_max: int
) -> list[bytes]:
    """Encode all elements to the nearest threshold, and take that out of the residual.

    Replica and parameters stay as they are, apart from a residual in the parameters.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Parts of the vector with a threshold each, in order and without gaps.
    magnitude_max : int
        Thresholds that the largest element of each range sends, 1 to 127: 127 for 8 bits.
    bytes_max : int
        Largest size of one encoded update.

    Returns
    -------
    list of bytes
        Encoded updates of the ranges, without those that do not change.

    Raises
    ------
    NonFiniteError, OutOfRangeError
        As `Feedback.encode`. After any error, nothing is encoded.
    """
    if not 1 <= magnitude_max <= COUNT_MAX:
        raise CodecError(f"magnitude_max={magnitude_max}; it has to be 1 to {COUNT_MAX}")
    feedback.check()
    bodies: list[bytes] = []
    taken: list[DenseUpdate] = []
    try:
        for start, stop in ranges:
            update = feedback.take(start, stop, magnitude_max)
            if update is not None:
                taken.append(update)
                bodies += split_update(update, bytes_max)
    except BaseException:
        _give_back(feedback, taken)  # nobody will receive it
        raise
    return bodies


def encode_largest(
    feedback: Feedback, ranges: Sequence[tuple[int, int]], density: float, *, bytes_max: int
) -> list[bytes]:
    """Encode the largest elements of each range, and take them out of the residual.

    What is left of earlier contributions counts `DECAY` times. Replica and parameters stay as they
    are, apart from a residual in the parameters.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Parts of the vector with a threshold each, in order and without gaps.
    density : float
        Part of the elements of each range, above 0 and at most 1.
    bytes_max : int
        Largest size of one encoded update.

    Returns
    -------
    list of bytes
        Encoded updates of the ranges, without those that do not change.

    Raises
    ------
    NonFiniteError, OutOfRangeError
        As `Feedback.encode`. After any error, nothing is encoded.
    """
    feedback.check()
    feedback.decay(DECAY)
    bodies: list[bytes] = []
    quantum = float(feedback.replica.quantum)
    try:
        for start, stop in ranges:
            step = -(-(stop - start) // SAMPLE)
            quanta = feedback.residual(slice(start, stop, step)) / np.float32(quantum)
            bodies += feedback.encode(
                largest_multiple(quanta, density),
                magnitude_max=COUNT_MAX,
                bytes_max=bytes_max,
                start=start,
                stop=stop,
            )
    except BaseException:
        take_back(feedback, bodies)
        _give_back(feedback, [decode(body, len(feedback.replica)) for body in bodies])
        raise
    take_back(feedback, bodies)
    return bodies


def _give_back(feedback: Feedback, taken: Sequence[Update]) -> None:
    change = np.zeros(len(feedback.replica), np.float32)
    for update in taken:
        quanta = update.change_of_range()
        change[update.start : update.stop] = quanta.astype(np.float32) * feedback.replica.quantum
    feedback.add_change(change)


def take_back(feedback: Feedback, bodies: Sequence[bytes]) -> None:
    """Take updates out of replica and parameters again; the residual stays as it is."""
    for body in bodies:
        if body != NOTHING:
            update = decode(body, len(feedback.replica))
            feedback.apply(
                Update(update.start, update.stop, update.multiple, update.index, -update.count)
            )
