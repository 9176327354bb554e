"""Clipping: an update that is too large is passed on smaller, and its origin told the difference.

All replicas have to stay the same, and that of the origin contains its update as it was sent. So
the others get what is left of it, under its name, and the origin gets the *correction*: what is
left less what it sent, in the stream of its own rank, where nothing else ever comes. The origin
adds it like an update of a peer. What is clipped is lost; the master counts it.

Scaling down is a matter of the threshold: all counts stay and the multiple becomes smaller, so the
direction is kept. Only in sections where it would have to be less than one quantum, counts become
smaller too.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_codecs import MalformedUpdateError, Sections, Update
from gradwire_codecs.arrays import UInt32Array
from gradwire_codecs.format.update import pack_update
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX

SHARE_MAX: Final = 1 - 1e-6
"""Nearer to 1, rounding could leave an update as it is, and a correction of nothing."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """What becomes of an update that is too large."""

    update: Update
    """What is left of it."""
    body: bytes
    """The same, encoded."""
    correction: bytes
    """What its origin has to add to have no more than that, encoded."""


def clip(update: Update, share: float) -> Clipped:
    """Scale an update down; its norm becomes at most this share of what it was.

    Parameters
    ----------
    update : Update
        It changes more than one quantum in all.
    share : float
        Above 0 and below 1. Where that leaves nothing, one element changes by one quantum: an
        update that changes nothing has no encoding.

    Raises
    ------
    MalformedUpdateError
        If the correction fits no message; no update that a worker makes leads there.
    """
    share = min(share, SHARE_MAX)
    left, correction = _scaled(update, share)
    encoded = pack_update(correction)
    if len(encoded) > UPDATE_BYTES_MAX:
        raise MalformedUpdateError(
            f"the correction of an update that is too large takes {len(encoded)} bytes; "
            f"the limit is {UPDATE_BYTES_MAX}"
        )
    return Clipped(left, pack_update(left), encoded)


def _scaled(update: Update, share: float) -> tuple[Update, Update]:
    """Return what is left and the correction."""
    sections = update.sections
    smaller = (sections.multiples * share).astype(np.int64)
    # In these the threshold becomes one quantum, and counts become smaller instead.
    finest = smaller == 0
    section = np.searchsorted(sections.bounds, update.index, "right") - 1
    whole = update.change.astype(np.int64)
    left = np.where(finest[section], np.trunc(whole * share).astype(np.int64), update.count)
    taken = np.where(finest[section], left - whole, -update.count)
    if not left.any():
        largest = int(np.argmax(np.abs(whole)))
        left[largest] = np.sign(whole[largest])
        taken[largest] = left[largest] - whole[largest]
    return (
        _without_zeros(Sections(sections.bounds, np.maximum(smaller, 1)), update.index, left),
        _without_zeros(
            Sections(sections.bounds, np.where(finest, 1, sections.multiples - smaller)),
            update.index,
            taken,
        ),
    )


def _without_zeros(sections: Sections, index: UInt32Array, count: npt.NDArray[np.int64]) -> Update:
    hit = np.flatnonzero(count)
    return Update(sections, index[hit], count[hit].astype(np.int32))
