"""Packets as 32-bit little-endian words: what numpy reads and writes many of at a time."""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, TAG_BYTES

WORD_BYTES: Final = 4
MASK: Final = 2**32 - 1

assert DATAGRAM_BYTES_MAX % WORD_BYTES == 0
assert TAG_BYTES % WORD_BYTES == 0

Words: TypeAlias = NDArray[np.uint32]
"""Words of one packet, or one row for each of several."""
