"""Protection: what makes the bytes of a packet trustworthy, in one direction of a connection.

Every suite has a `Sealing` for what leaves and an `Opening` for what comes: suite 0 those of
`checksum`, the others those of `sealed`. A packet is a whole number of 32-bit words in all of them,
and its last 16 bytes are the tag, so nothing else has to know which suite it is.
"""

from collections.abc import Sequence
from typing import Protocol

from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.delivery.shaped_message import ShapedMessage


class Sealing(Protocol):
    """Packets on their way out. No packet number is given twice."""

    def seal(self, packet: bytearray) -> memoryview:
        """Return the datagram for a header and its frames."""

    def seal_run(
        self, message: ShapedMessage, first: int, stop: int, session_id: int, number: int
    ) -> memoryview:
        """Return consecutive rows of a message as datagrams, one behind the other.

        They are valid until anything is sealed in the same endpoint again.

        Parameters
        ----------
        message : ShapedMessage
        first, stop : int
        session_id : int
            The receiver's.
        number : int
            Packet number of the first one; the others follow.
        """

    def seal_rows(
        self, message: ShapedMessage, indexes: Sequence[int], session_id: int, number: int
    ) -> list[memoryview]:
        """Return any rows of a message as datagrams; joined they are as from `seal_run`."""


class Opening(Protocol):
    """Packets on their way in."""

    @property
    def epoch(self) -> int:
        """Of the newest key that was used."""

    @property
    def too_many_forgeries(self) -> bool:
        """Whether so many packets were forged that no further one should be believed."""

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return the frames of a datagram, or None where it is not authentic."""

    def open_rows(self, packets: PacketRows) -> PacketRows | None:
        """Return several packets with their frames to be read; None where one is not authentic.

        They are valid until anything is opened in the same endpoint again.
        """

    def forget_previous_key(self) -> None:
        """Erase the key before the newest one."""
