"""Packets as 32-bit little-endian words, so that numpy can read and write many at a time."""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, TAG_BYTES

WORD_BYTES: Final = 4
MASK: Final = 2**32 - 1

assert DATAGRAM_BYTES_MAX % WORD_BYTES == 0
assert TAG_BYTES % WORD_BYTES == 0

Words: TypeAlias = NDArray[np.uint32]
"""The words of one packet, or a row of words for each packet."""
