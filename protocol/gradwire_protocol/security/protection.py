"""Protection: sealing and opening of packets, in one direction of a connection.

Every suite has a `Sealing` and an `Opening`: suite 0 in `checksum`, the others in `sealed`. In all
of them a packet is a whole number of 32-bit words whose last 16 bytes are the tag, so no other code
depends on the suite.
"""

from collections.abc import Sequence
from typing import Protocol

from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.delivery.shaped_message import ShapedMessage


class Sealing(Protocol):
    """Seals outgoing packets. No packet number may be used twice."""

    def seal(self, packet: bytearray) -> memoryview:
        """Return the datagram for a header and its frames."""

    def seal_run(
        self, message: ShapedMessage, first: int, stop: int, session_id: int, number: int
    ) -> memoryview:
        """Return consecutive rows of a message as datagrams, one behind the other.

        They are valid until the next packet is sealed in the same endpoint.

        Parameters
        ----------
        session_id : int
            The receiver's.
        number : int
            Packet number of the first row; the others follow.
        """

    def seal_rows(
        self, message: ShapedMessage, indexes: Sequence[int], session_id: int, number: int
    ) -> list[memoryview]:
        """Return any rows of a message as datagrams, which joined look as from `seal_run`."""


class Opening(Protocol):
    """Opens incoming packets."""

    @property
    def epoch(self) -> int:
        """Epoch of the newest key used."""

    @property
    def too_many_forgeries(self) -> bool:
        """Whether the limit of forged packets was reached: trust no further packet."""

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return the frames of a datagram; None if it is not authentic."""

    def open_rows(self, packets: PacketRows) -> PacketRows | None:
        """Return several packets with readable frames; None if any is not authentic.

        They are valid until the next packet is opened in the same endpoint.
        """

    def forget_previous_key(self) -> None:
        """Erase the key before the newest one."""
