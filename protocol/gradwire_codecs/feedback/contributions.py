"""Contributions to rounds: what a worker has changed since it contributed last, as updates.

A sparse one carries what has reached the threshold; a dense one all elements, with a threshold for
each range, such that the largest one just has room. Either leaves the rest in the residual.
"""

from collections.abc import Sequence

import numpy as np

from gradwire_codecs.feedback.feedback import Feedback
from gradwire_codecs.format.header import MULTIPLE_MAX
from gradwire_codecs.format.update import NOTHING, Update, decode


def encode_dense(
    feedback: Feedback, ranges: Sequence[tuple[int, int]], magnitude_max: int, *, bytes_max: int
) -> list[bytes]:
    """Encode all elements, and move them from the residual to the replica.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Parts of the vector with a threshold each, in order and without gaps.
    magnitude_max : int
        Thresholds that the largest element of each range sends, such as 127 for 8 bits.
    bytes_max : int
        Largest size of one encoded update.

    Returns
    -------
    list of bytes
        Encoded updates of the ranges, without those that do not change.

    Raises
    ------
    NonFiniteError, OutOfRangeError
        As `Feedback.encode`; ranges before the one with the parameter are encoded then.
    """
    quantum = float(feedback.replica.quantum)
    feedback.check()
    bodies: list[bytes] = []
    for start, stop in ranges:
        peak = float(np.abs(feedback.residual(slice(start, stop))).max(initial=0.0))
        multiple = min(max(int(np.ceil(peak / quantum / magnitude_max)), 1), MULTIPLE_MAX)
        bodies += feedback.encode(
            multiple, magnitude_max=magnitude_max, bytes_max=bytes_max, start=start, stop=stop
        )
    return bodies


def take_back(feedback: Feedback, bodies: Sequence[bytes]) -> None:
    """Take updates out of replica and parameters again; the residual stays as it is."""
    for body in bodies:
        if body != NOTHING:
            update = decode(body, len(feedback.replica))
            feedback.apply(
                Update(update.start, update.stop, update.multiple, update.index, -update.count)
            )
