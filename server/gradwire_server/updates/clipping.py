"""Clipping: an update that is too large is scaled down, and its origin is sent the difference.

All replicas have to stay equal, and that of the origin contains the update as it was sent. So the
other members get the clipped update under its name, and the origin gets the *correction*, which is
the clipped update minus the original, in the stream of its own rank, where nothing else ever comes.
The origin adds it like an update of a peer. The clipped part is lost; the master counts such
updates.

To scale an update down, its multiple is lowered and all counts stay, which keeps the direction.
Only where the multiple would fall below one quantum, the counts are lowered instead.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_codecs import MalformedUpdateError, Update
from gradwire_codecs.arrays import Int32Array, UInt32Array
from gradwire_codecs.format.update import pack_update
from gradwire_protocol.messages.updates import UPDATE_BYTES_MAX

SHARE_MAX: Final = 1 - 1e-6
"""Nearer to 1, rounding could leave an update unchanged, and the correction would be empty."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """A clipped update and its correction."""

    update: Update
    body: bytes
    """The same update, encoded."""
    correction: bytes
    """The update that the origin has to add, encoded."""


def clip(update: Update, share: float) -> Clipped:
    """Scale an update down, to at most this share of its norm.

    Parameters
    ----------
    update : Update
        Must change more than one quantum in all.
    share : float
        Above 0 and below 1. Where it rounds all changes to zero, one element still changes by one
        quantum, because an empty update has no encoding.

    Raises
    ------
    MalformedUpdateError
        If the correction is larger than a message may be; no update that our encoder makes leads
        there.
    """
    share = min(share, SHARE_MAX)
    left, correction = _scaled(update, share)
    encoded = pack_update(correction)
    if len(encoded) > UPDATE_BYTES_MAX:
        raise MalformedUpdateError(
            f"the update is too large, and its correction takes {len(encoded)} bytes; the limit is "
            f"{UPDATE_BYTES_MAX}"
        )
    return Clipped(left, pack_update(left), encoded)


def _scaled(update: Update, share: float) -> tuple[Update, Update]:
    """Return the clipped update and the correction."""
    smaller = int(update.multiple * share)
    if smaller:
        left = _with(update, smaller, update.index, update.count)
        return left, _with(update, update.multiple - smaller, update.index, -update.count)
    whole = update.change
    count = np.trunc(whole * share).astype(np.int32)
    if not count.any():
        largest = int(np.argmax(np.abs(whole)))
        count[largest] = np.sign(whole[largest])
    return _in_quanta(update, count), _in_quanta(update, count - whole)


def _in_quanta(update: Update, change: Int32Array) -> Update:
    """Return an update of the same elements with a threshold of one quantum."""
    hit = np.flatnonzero(change)
    return _with(update, 1, update.index[hit], change[hit])


def _with(update: Update, multiple: int, index: UInt32Array, count: Int32Array) -> Update:
    """Return an update of the same range."""
    return Update(update.start, update.stop, multiple, index, count)
