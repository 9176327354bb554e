"""`BufferFeed`: the module buffers of other ranks that one member is still to be sent.

Only the latest buffers of each rank matter. So the feed holds the ranks that have changed, and the
content is looked up when it is sent: for a slow member the feed holds at most one entry a rank.
"""

from dataclasses import dataclass
from typing import Final

from gradwire_protocol.limits import (
    BUFFERS_BURST_BYTES,
    BUFFERS_BYTES_PER_SECOND_MAX,
    BUFFERS_UNDER_WAY_BYTES_MAX,
    charge_of,
)
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.link import Control, Link
from gradwire_protocol.security.unproved import TokenBucket

ALLOWANCE: Final = (BUFFERS_BYTES_PER_SECOND_MAX, BUFFERS_BURST_BYTES)


@dataclass(frozen=True, slots=True)
class RankBuffers:
    """The buffers of one rank's module."""

    packed: bytes
    """The message that is sent to all other members."""
    final: bool
    """Whether the worker sends no more buffers after these."""
    is_orphan: bool = False
    """Whether their worker is gone, or they are from a checkpoint: they stay the run's until
    another worker has sent its own."""


class BufferFeed:
    """The buffers that a member has to be sent, and limits on those that it sends."""

    def __init__(self) -> None:
        self.unsent: dict[int, None] = {}
        """Ranks whose buffers have changed, as an ordered set."""
        self.nbytes = 0
        """Charges of the messages under way."""
        self.allowance = TokenBucket(*ALLOWANCE)
        """Limits the bytes of buffers that are accepted from the member."""
        self.has_final = False
        """Whether the member has sent its final buffers over this connection."""
        self.quarantined: Buffers | None = None
        """The latest buffers that the member has sent in quarantine."""
        self._under_way: dict[int, int] = {}
        """Leadership by number in the control stream."""
        self._last: tuple[Control, bytes] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all buffers were delivered to the member."""
        return not self.unsent and not self._under_way

    @property
    def has_room(self) -> bool:
        """Whether more may be sent."""
        return self.nbytes < BUFFERS_UNDER_WAY_BYTES_MAX

    def send(self, link: Link, record: Buffers, packed: bytes) -> None:
        """Send the buffers of one rank."""
        charge = charge_of(len(packed))
        self._under_way[link.send(record, packed)] = charge
        self.nbytes += charge

    def send_after_buffers(self, link: Link, record: Control, packed: bytes) -> None:
        """Send a message as soon as all buffers were delivered to the member."""
        if self.is_complete:
            link.send(record, packed)
        else:
            self._last = record, packed

    @property
    def has_last(self) -> bool:
        """Whether a message of `send_after_buffers` waits."""
        return self._last is not None

    def on_delivered(self, number: int) -> bool:
        """Note that a control message was delivered; return whether it had buffers."""
        charge = self._under_way.pop(number, 0)
        self.nbytes -= charge
        return charge > 0

    def end(self, link: Link) -> None:
        """Send the message of `send_after_buffers`, if one waits."""
        if self._last is not None:
            link.send(*self._last)
            self._last = None
