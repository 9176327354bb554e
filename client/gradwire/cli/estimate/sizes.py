"""Bytes of an update, in memory and on a link.

Hits at random places have gaps with a geometric distribution. Gaps are written in Rice codes with
the best parameter (see `gradwire_codecs.format.bits`), whose expected length is known exactly.
Updates of a real training are a few per cent smaller, because changed elements lie together.
"""

from dataclasses import dataclass
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

FLOAT_BYTES: Final = 4
"""Of each parameter's gradient in an all-reduce."""

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


def union_density(density: float, updates: float) -> float:
    """Return the fraction of the parameters that at least one of several updates changes.

    Updates of workers with similar data overlap more than these, whose hits are at random places.
    """
    return -expm1(updates * log1p(-min(density, 1 - 1e-12)))


def sum_bytes(parameters: float, density: float, updates: float) -> float:
    """Return the expected bytes of the sum of several updates with hits at random places."""
    changed = union_density(density, updates)
    bits = min(bits_per_hit(changed), 1 + DENSE_BITS / changed) + SUM_COUNT_BITS
    return UPDATE_HEADER_BYTES + parameters * changed * bits / 8


def packets_of(size: float) -> float:
    """Return the number of datagrams of a message."""
    return float(-(-size // FRAGMENT_BYTES))


def link_bytes(size: float) -> float:
    """Return the bytes of a message on a link, with all headers."""
    overhead = PACKET_HEADER_BYTES + DATA_HEADER_BYTES + TAG_BYTES + LINK_HEADER_BYTES
    return size + packets_of(size) * overhead


def ack_link_bytes(size: float) -> float:
    """Return the bytes of a message's acknowledgements on the link in the other direction."""
    return ACK_BYTES * (1 + packets_of(size) // ACK_EVERY)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes on the link of one worker, with all headers and acknowledgements."""

    up: float
    down: float


def traffic_of(sent: float, received: float, count: float) -> Traffic:
    """Return the traffic of a worker that sends one message and receives `count` others.

    `sent` and `received` are the bytes of one message in each direction.
    """
    return Traffic(
        up=link_bytes(sent) + count * ack_link_bytes(received),
        down=count * link_bytes(received) + ack_link_bytes(sent),
    )


def ring_bytes(parameters: int, workers: int) -> float:
    """Return what each worker sends for one ring all-reduce of a gradient, as DDP does it.

    It receives as much. Headers are left out; with those of TCP it is a twentieth more.
    """
    return 2 * (workers - 1) / workers * FLOAT_BYTES * parameters
