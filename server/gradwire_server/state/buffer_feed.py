"""`BufferFeed`: what one member is still to be told of what others' buffers hold.

Of each rank only the latest matters, so what waits are the ranks of which there is news; what they
hold is looked up when it is sent. So little waits for who is slow, and nothing grows.
"""

from dataclasses import dataclass
from typing import Final

from gradwire_protocol.limits import (
    BUFFERS_BURST_BYTES,
    BUFFERS_BYTES_PER_SECOND_MAX,
    BUFFERS_UNDER_WAY_BYTES_MAX,
    charge_of,
)
from gradwire_protocol.messages.link import Control, Link
from gradwire_protocol.messages.states import Buffers
from gradwire_protocol.security.rate_limits import TokenBucket

ALLOWANCE: Final = (BUFFERS_BYTES_PER_SECOND_MAX, BUFFERS_BURST_BYTES)


@dataclass(frozen=True, slots=True)
class KeptBuffers:
    """What the buffers of one rank hold."""

    packed: bytes
    """As they are sent to everyone."""
    final: bool
    """Whether they are the last of their worker."""


class BufferFeed:
    """What a member does not know yet, in one order or another."""

    def __init__(self) -> None:
        self.unsent: dict[int, None] = {}
        """Ranks of which there is news."""
        self.nbytes = 0
        """What is under way."""
        self.allowance = TokenBucket(*ALLOWANCE)
        """How many bytes are taken of its own."""
        self.has_final = False
        """Whether it has sent its last, over this connection."""
        self.aside: Buffers | None = None
        """Its own latest since it is in quarantine."""
        self._under_way: dict[int, int] = {}
        """What it costs, by number in the control stream."""
        self._last: tuple[Control, bytes] | None = None

    @property
    def is_told(self) -> bool:
        """Whether the member has everything."""
        return not self.unsent and not self._under_way

    @property
    def has_room(self) -> bool:
        """Whether more may be sent."""
        return self.nbytes < BUFFERS_UNDER_WAY_BYTES_MAX

    def send(self, link: Link, record: Buffers, packed: bytes) -> None:
        """Send what somebody's buffers hold."""
        charge = charge_of(len(packed))
        self._under_way[link.send(record, packed)] = charge
        self.nbytes += charge

    def say_last(self, link: Link, record: Control, packed: bytes) -> None:
        """Send a message when the member has everything else that there is now."""
        if self.is_told:
            link.send(record, packed)
        else:
            self._last = record, packed

    @property
    def has_last(self) -> bool:
        """Whether such a message waits."""
        return self._last is not None

    def on_delivered(self, number: int) -> bool:
        """Note that a control message has arrived; return whether it was of this."""
        charge = self._under_way.pop(number, 0)
        self.nbytes -= charge
        return charge > 0

    def end(self, link: Link) -> None:
        """Send the message that waits for everything else."""
        if self._last is not None:
            link.send(*self._last)
            self._last = None
