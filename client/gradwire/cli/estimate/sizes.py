"""How many bytes an update takes, in memory and on a link.

The positions of hits at random places have gaps with a geometric distribution, and gaps are coded
in Rice codes with the parameter that suits them (see `gradwire_codecs.format.bits`); the expected
length of such a code is known exactly. Updates of a model that is trained are a few per cent
smaller, because what changes lies together.
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
"""At the head of each block of so many hits: the difference of its Rice parameter from the last
one's. 0 takes one bit and 1 two; `tests/unit/client/cli/estimate/test_sizes.py` compares with the
encoder."""

DENSE_BITS: Final = 64 / 40
"""Per element, hit or not, of an update in the dense format with magnitudes of 1."""

SUM_COUNT_BITS: Final = 16.0
"""What an element of a sum takes besides its position. Thresholds that adapt differ between
workers, so a sum has no threshold, and its elements are counted in quanta."""

UPDATE_HEADER_BYTES: Final = 32
"""Of an encoded update, and of the message that it travels in."""

LINK_HEADER_BYTES: Final = 20 + 8 + 14
"""IPv4, UDP and Ethernet. A cable's preamble and gap between frames are 24 more, 1.7 % of a full
datagram; `tc` and providers do not count them."""

FRAGMENT_BYTES: Final = DATAGRAM_BYTES - PACKET_HEADER_BYTES - DATA_HEADER_BYTES - TAG_BYTES

ACK_BYTES: Final = LINK_HEADER_BYTES + PACKET_HEADER_BYTES + TAG_BYTES + 16
"""A packet with nothing but an acknowledgement of a range or two."""


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
    """Return the expected size of an update that changes a part of the parameters."""
    bits = min(parameters * density * bits_per_hit(density), parameters * DENSE_BITS)
    return UPDATE_HEADER_BYTES + bits / 8


def sum_bytes(parameters: float, density: float, updates: float) -> float:
    """Return the expected size of the sum of several updates, their hits at random places.

    Where updates overlap, and those of workers that see similar data do, it is smaller.
    """
    changed = -expm1(updates * log1p(-min(density, 1 - 1e-12)))
    bits = min(bits_per_hit(changed), 1 + DENSE_BITS / changed) + SUM_COUNT_BITS
    return UPDATE_HEADER_BYTES + parameters * changed * bits / 8


def packets_of(size: float) -> float:
    """Return how many datagrams a message takes, a part of one counting as one."""
    return float(-(-size // FRAGMENT_BYTES))


def link_bytes(size: float) -> float:
    """Return what a message takes of a link, all headers included.

    Parity is not: it is sent only where the link has nothing else to do.
    """
    overhead = PACKET_HEADER_BYTES + DATA_HEADER_BYTES + TAG_BYTES + LINK_HEADER_BYTES
    return size + packets_of(size) * overhead


def ack_link_bytes(size: float) -> float:
    """Return what the acknowledgements of a message take of the link in the other direction."""
    return ACK_BYTES * (1 + packets_of(size) // ACK_EVERY)
