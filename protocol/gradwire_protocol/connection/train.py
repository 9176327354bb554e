"""`Train`: datagrams of one size to one address, sent by one system call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradwire_protocol.delivery.events import Address

ECN_NOT: Final = 0
ECN_CAPABLE: Final = 2
"""ECT(0), RFC 3168, section 5: this sender reacts to marks."""
ECN_MARKED: Final = 3
"""CE: a router on the path had a queue."""


@dataclass(frozen=True, slots=True)
class Train:
    """The arguments of one `sendmsg`.

    The buffers stay unchanged until the endpoint is asked for its next train. A packet for several
    receivers is sent from one place in memory, and only its headers are rewritten in between.
    """

    buffers: Sequence[memoryview]
    """Joined and cut every `segment` bytes they are the datagrams; only the last may be shorter."""

    segment: int
    """Bytes of every datagram but the last."""

    size: int
    """Bytes of all datagrams together."""

    address: Address
    ecn: int = ECN_CAPABLE
    """The two ECN bits of the IP header."""

    @property
    def count(self) -> int:
        """Number of datagrams."""
        return -(-self.size // self.segment)

    def datagrams(self) -> list[bytes]:
        """Return copies of the datagrams, as the kernel would cut them; for tests."""
        joined = b"".join(self.buffers)
        return [joined[at : at + self.segment] for at in range(0, self.size, self.segment)]
