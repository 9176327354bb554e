"""Clipping: an update that is too large is passed on smaller, and its origin told the difference.

All replicas have to stay the same, and that of the origin contains its update as it was sent. So
the others get what is left of it, under its name, and the origin gets the *correction*: what is
left less what it sent, in the stream of its own rank, where nothing else ever comes. The origin
adds it like an update of a peer. What is clipped is lost; the master counts it.

Scaling down is a matter of the threshold: all counts stay and the multiple becomes smaller, so the
direction is kept. Only where it would have to be less than one quantum, counts become smaller
instead.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_codecs.arrays import Int32Array
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
    smaller = int(update.multiple * share)
    if smaller:
        left = replace(update, multiple=smaller)
        return left, replace(update, multiple=update.multiple - smaller, count=-update.count)
    whole = update.change
    count = np.trunc(whole * share).astype(np.int32)
    if not count.any():
        largest = int(np.argmax(np.abs(whole)))
        count[largest] = np.sign(whole[largest])
    return _in_quanta(update, count), _in_quanta(update, count - whole)


def _in_quanta(update: Update, change: Int32Array) -> Update:
    """Return an update of the same elements with a threshold of one quantum."""
    hit = np.flatnonzero(change)
    return replace(update, multiple=1, index=update.index[hit], count=change[hit])
