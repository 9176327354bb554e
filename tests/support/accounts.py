"""`Account`: what one end of a connection was seen to send and receive, to say and to hear."""

from collections import Counter
from typing import Final
from zlib import crc32

import numpy as np

from gradwire_protocol import Address, Connection, Priority, ShapedMessage, State
from gradwire_protocol.connection.sender import Sender
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.limits import BURST_PROBE_PACKETS_MAX
from gradwire_protocol.security.handshake import Agreement
from gradwire_protocol.wire.frames import Ack, Data, parse_frames
from gradwire_protocol.wire.packets import SINGLE, TRANSPORT_HEADER
from support.unsealing import Unsealing

ARRIVED_MIN: Final = 256
"""Packet numbers that an account has room for at first."""


class Account:
    """One end of a connection, and what is known of it.

    Parameters
    ----------
    connection : Connection
    used : set of (bytes, int)
        Keys and packet numbers that packets of any connection were sealed with.
    """

    def __init__(self, connection: Connection, used: set[tuple[bytes, int]]) -> None:
        self.connection = connection
        self._used = used
        self._unsealing = Unsealing(self.sender._sealing) if self.was_open else None
        self.said: dict[tuple[int, int], bytes] = {}
        """Messages handed over, by stream and number."""
        self.heard = set[tuple[int, int]]()
        """Messages that came in."""
        self.told_of = set[tuple[int, int]]()
        """Messages of which it knows that they arrived."""
        self.sent: dict[int, int] = {}
        """Checksums of the packets sent, by number."""
        self.last_number = -1
        """Of the packets sent."""
        self.bytes_from: Counter[Address] = Counter()
        self.bytes_to: Counter[Address] = Counter()
        """What came from every address, and what went to those that were not the peer's."""
        self.overdue = 0
        """Turns in a row after which something was due."""
        self._arrived = np.zeros(ARRIVED_MIN, np.bool_)
        self._timeouts = 0
        self._probes_left = 0
        self._listen()

    def _listen(self) -> None:
        """Be told of everything that the application says."""
        connection = self.connection
        send, relay, establish = connection.send, connection.relay, connection.establish

        def heard_establish(agreement: Agreement, now: float) -> None:
            self._unsealing = Unsealing(agreement.sealing)
            establish(agreement, now)

        def heard_send(
            stream: int, number: int, kind: int, payload: Payload, priority: Priority
        ) -> None:
            send(stream, number, kind, payload, priority)
            if connection.state is State.OPEN:
                assert self.said[stream, number] == memoryview(payload).tobytes()

        def heard_relay(message: ShapedMessage, priority: Priority) -> None:
            if connection.state is State.OPEN:
                name = message.stream, message.number
                assert name not in self.said, f"the test says {name} twice"
                self.said[name] = bytes(message.payload)
            relay(message, priority)

        connection.establish = heard_establish  # type: ignore[method-assign]
        connection.send = heard_send  # type: ignore[method-assign]
        connection.relay = heard_relay  # type: ignore[method-assign]

    @property
    def was_open(self) -> bool:
        """Whether the handshake was completed."""
        return self.connection.was_open

    @property
    def sender(self) -> Sender:
        """The sending half."""
        return self.connection.sender

    @property
    def peer_session_id(self) -> int:
        """What it addresses its packets to; 0 before it knows."""
        return self.sender.peer_session_id if self.was_open else 0

    # What came in.

    def note_arrival(self, number: int) -> None:
        """Note a packet that arrived undamaged."""
        if number >= len(self._arrived):
            self._arrived = np.pad(self._arrived, (0, number + 1))
        self._arrived[number] = True

    def has_arrived(self, first: int, last: int) -> bool:
        """Return whether consecutive packets arrived undamaged."""
        arrived = self._arrived[first : last + 1]
        return len(arrived) == last + 1 - first and bool(arrived.all())

    # What went out.

    def note_datagram(self, datagram: bytes) -> bool:
        """Note a packet, and check what it says; return whether it has a fragment."""
        _, flags, _, _, number = TRANSPORT_HEADER.unpack_from(datagram)
        assert number > self.last_number, f"I5: packet {number} after {self.last_number}"
        self.last_number = number
        self.sent[number] = crc32(datagram)
        assert self._unsealing is not None
        self._note_key(self._unsealing.key(datagram), number)
        content = self._unsealing.frames(datagram)
        if flags & SINGLE:
            return True
        frames = parse_frames(content)
        for ack in frames:
            if isinstance(ack, Ack):
                for first, last in ack.ranges:
                    assert self.has_arrived(first, last), (
                        f"I9: not all packets from {first} to {last} have arrived"
                    )
        return any(isinstance(frame, Data) for frame in frames)

    def _note_key(self, key: bytes | None, number: int) -> None:
        """Note that a packet was sealed; its number is the nonce."""
        if key is not None:
            assert (key, number) not in self._used, f"I5: packet {number} with the same key"
            self._used.add((key, number))

    def note_timeouts(self) -> None:
        """Look whether there was a probe timeout: then a few packets may leave at any rate."""
        timeouts = self.sender.recovery.timeouts
        if timeouts > self._timeouts:
            self._probes_left = BURST_PROBE_PACKETS_MAX
        elif not timeouts:
            self._probes_left = 0
        self._timeouts = timeouts

    def check_window(self, packets: int, size: int) -> None:
        """Check that packets with fragments, at most of this size, may have left just now."""
        self.note_timeouts()
        recovery = self.sender.recovery
        in_flight, window = recovery.sent.bytes_in_flight, recovery.controller.window_bytes
        # One packet may be over it: the last that small messages fill, or the only one there is.
        if in_flight > window + max(self.sender.sizes.current, size):
            self._probes_left -= packets
            assert self._probes_left >= 0, (
                f"I7: {in_flight} bytes are in flight; the window is {window}"
            )
