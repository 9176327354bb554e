"""Bytes of an update, in memory and on a link.

Hits at random places have gaps with a geometric distribution. Gaps are written in Rice codes with
the best parameter (see `gradwire_codecs.format.bits`), whose expected length is known exactly.
Updates of a real training are a few per cent smaller, because changed elements lie together.
"""

from math import expm1, inf, log1p
from typing import Final

from gradwire_protocol.limits import (
    ACK_EVERY,
    DATA_HEADER_BYTES,
    DATAGRAM_BYTES,
    PACKET_HEADER_BYTES,
    TAG_BYTES,
)

BLOCK: Final = 64
PARAMETER_BITS: Final = 2.0
"""At the head of each block of `BLOCK` hits: the difference of its Rice parameter from the last
block's. 0 takes one bit and 1 two; `tests/unit/client/cli/estimate/test_sizes.py` compares with the
encoder."""

DENSE_BITS: Final = 64 / 40
"""Per element, hit or not, of an update in the dense format with magnitudes of 1."""

SUM_COUNT_BITS: Final = 16.0
"""Bits of an element of a sum besides its position. Thresholds that adapt differ between workers,
so a sum has no threshold, and its elements are in quanta."""

UPDATE_HEADER_BYTES: Final = 32
"""For an encoded update and its message."""

LINK_HEADER_BYTES: Final = 20 + 8 + 14
"""IPv4, UDP and Ethernet. A cable's preamble and gap between frames are 24 more, 1.7 % of a full
datagram; `tc` and providers do not count them."""

FRAGMENT_BYTES: Final = DATAGRAM_BYTES - PACKET_HEADER_BYTES - DATA_HEADER_BYTES - TAG_BYTES

ACK_BYTES: Final = LINK_HEADER_BYTES + PACKET_HEADER_BYTES + TAG_BYTES + 16
"""A packet that only acknowledges a range or two."""


def bits_per_hit(density: float) -> float:
    """Return the expected bits per hit of the sparse format: sign, gap, and its part of a head.

    A gap is at least g with probability ``(1 - density) ** g``, so its Rice code with parameter k
    takes k + 1 bits and, in the mean, ``x / (1 - x)`` zeros with ``x = (1 - density) ** (2 ** k)``.
    """
    if density >= 1:
        return 2.0 + PARAMETER_BITS / BLOCK
    decay = log1p(-density)
    shortest = inf
    for k in range(32):
        exponent = decay * 2.0**k
        zeros = -1 / expm1(exponent) - 1 if exponent > -700 else 0.0
        shortest = min(shortest, k + 1 + zeros)
    return 1 + shortest + PARAMETER_BITS / BLOCK


def update_bytes(parameters: float, density: float) -> float:
    """Return the expected bytes of an update."""
    bits = min(parameters * density * bits_per_hit(density), parameters * DENSE_BITS)
    return UPDATE_HEADER_BYTES + bits / 8


def sum_bytes(parameters: float, density: float, updates: float) -> float:
    """Return the expected bytes of the sum of several updates with hits at random places.

    Updates of workers with similar data overlap more, and their sum is smaller.
    """
    changed = -expm1(updates * log1p(-min(density, 1 - 1e-12)))
    bits = min(bits_per_hit(changed), 1 + DENSE_BITS / changed) + SUM_COUNT_BITS
    return UPDATE_HEADER_BYTES + parameters * changed * bits / 8


def packets_of(size: float) -> float:
    """Return the number of datagrams of a message."""
    return float(-(-size // FRAGMENT_BYTES))


def link_bytes(size: float) -> float:
    """Return the bytes of a message on a link, with all headers.

    They do not include parity, which is sent only where the link is otherwise idle.
    """
    overhead = PACKET_HEADER_BYTES + DATA_HEADER_BYTES + TAG_BYTES + LINK_HEADER_BYTES
    return size + packets_of(size) * overhead


def ack_link_bytes(size: float) -> float:
    """Return the bytes of a message's acknowledgements on the link in the other direction."""
    return ACK_BYTES * (1 + packets_of(size) // ACK_EVERY)
