"""Contributions to rounds: what a worker has changed since it contributed last, as updates.

A sparse one carries what has reached the threshold; a dense one all elements, with a threshold for
each range, such that the largest one just has room. Either leaves the rest in the residual. Until
the round closes, the replica contains neither.
"""

from collections.abc import Sequence

import numpy as np

from gradwire_codecs.errors import CodecError
from gradwire_codecs.feedback.feedback import Feedback
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.update import NOTHING, DenseUpdate, Update, decode, split_update


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


def _give_back(feedback: Feedback, taken: Sequence[DenseUpdate]) -> None:
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
