"""Parity: one extra fragment per group, from which one lost fragment can be restored.

Fragment i of a message belongs to group ``i mod groups``. The parity fragment of a group is the
exclusive or of its payloads, with the last one padded with zeros. Neighbours are in different
groups, so a burst of losses does not hit one group twice. Parity costs a sixteenth of the bytes.
That matters while the congestion window limits the sender. It does not when the sender has nothing
else to send, where a loss costs a round trip.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.delivery.shaped_message import HEADERS_BYTES, ShapedMessage
from gradwire_protocol.wire.frames import Data, parity_groups

LOSS_MIN: Final = 0.003
LOSS_MAX: Final = 0.05
"""Below the first limit few messages lose a fragment; above the second, too many groups lose
two."""

FRAGMENTS_MIN: Final = 4
"""In a message with fewer fragments, parity is too large a share."""

EXPECTED_LOSSES_MIN: Final = 0.02
"""Expected losses per message above which parity is worth its bytes."""


def parity_pays(loss: float, fragments: int) -> bool:
    """Return whether parity is worth its bytes on a path with this loss rate."""
    return (
        LOSS_MIN <= loss <= LOSS_MAX
        and fragments >= FRAGMENTS_MIN
        and fragments * loss >= EXPECTED_LOSSES_MIN
    )


def parity_of(message: ShapedMessage, group: int) -> Data:
    """Return the parity fragment of one group."""
    groups = parity_groups(message.count)
    size = min(message.fragment_bytes, message.total)
    rows = message.rows[group : message.count - 1 : groups]
    payloads = rows[:, HEADERS_BYTES : HEADERS_BYTES + size]
    sums: NDArray[np.uint8] = np.bitwise_xor.reduce(payloads, axis=0)
    if (message.count - 1) % groups == group:
        last = message.payload_of(message.count - 1)
        sums[: len(last)] ^= last
    return message.fragment(group, sums.data, parity=True)


def restore_fragment(
    message: ShapedMessage, group: int, parity: NDArray[np.uint8], missing: int
) -> NDArray[np.uint8]:
    """Return the payload of the only missing fragment of a group."""
    groups = parity_groups(message.count)
    sums = parity.copy()
    for index in range(group, message.count, groups):
        if index != missing:
            payload = message.payload_of(index)
            sums[: len(payload)] ^= payload
    return sums[: len(message.payload_of(missing))]
