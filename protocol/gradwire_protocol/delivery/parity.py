"""Parity: one more fragment for some, so that one lost of them need not be asked for.

Fragment i of a message belongs to group ``i mod groups``; the parity fragment of a group is the sum
(exclusive or) of its payloads, the last one filled up with zeros. Neighbours are in different
groups, so a burst of losses does not hit one group twice. The price is a sixteenth of the bytes,
which matters where the congestion window is what holds the sender up, and not where it has nothing
else to send: there, what a loss costs is a round trip.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.delivery.shaped_message import HEADERS_BYTES, ShapedMessage
from gradwire_protocol.wire.frames import Data, parity_groups

LOSS_MIN: Final = 0.003
LOSS_MAX: Final = 0.05
"""Below, hardly a message is hit; above, too many groups are hit twice."""

FRAGMENTS_MIN: Final = 4
"""Of fewer, a parity fragment is too large a part."""

EXPECTED_LOSSES_MIN: Final = 0.02
"""Fragments that have to be expected lost of a message, for parity to be worth its bytes."""


def parity_pays(loss: float, fragments: int) -> bool:
    """Return whether a message should have parity on a path that loses this part of its packets."""
    return (
        LOSS_MIN <= loss <= LOSS_MAX
        and fragments >= FRAGMENTS_MIN
        and fragments * loss >= EXPECTED_LOSSES_MIN
    )


def parity_of(message: ShapedMessage, group: int) -> Data:
    """Return the parity fragment of one group."""
    groups = parity_groups(message.count)
    size = min(message.fragment_bytes, message.total)
    sums = _sum_of_whole(message, range(group, message.count - 1, groups), size)
    if (message.count - 1) % groups == group:
        last = message.payload_of(message.count - 1)
        sums[: len(last)] ^= last
    return Data(
        message.stream,
        message.number,
        message.kind,
        message.total,
        message.fragment_bytes,
        group,
        sums.data,
        message.shape,
        parity=True,
    )


def restore_fragment(
    message: ShapedMessage, group: int, parity: NDArray[np.uint8], missing: int
) -> NDArray[np.uint8]:
    """Return the payload of the one fragment of a group that is missing."""
    groups = parity_groups(message.count)
    sums = parity.copy()
    for index in range(group, message.count, groups):
        if index != missing:
            payload = message.payload_of(index)
            sums[: len(payload)] ^= payload
    return sums[: len(message.payload_of(missing))]


def _sum_of_whole(message: ShapedMessage, indexes: range, size: int) -> NDArray[np.uint8]:
    rows = message.rows[indexes.start : indexes.stop : indexes.step]
    payloads = rows[:, HEADERS_BYTES : HEADERS_BYTES + size]
    sums: NDArray[np.uint8] = np.bitwise_xor.reduce(payloads, axis=0)
    return sums
