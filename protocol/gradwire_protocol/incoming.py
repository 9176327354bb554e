"""Incoming messages: fragments put together, each message delivered once, memory bounded.

The peer may have as many message bytes under way as it was given credit for, counted from the
first fragment of a message to its release by the application. So the bound holds by
construction, and a peer that exceeds it is at fault.
"""

from gradwire_protocol.errors import ViolationError
from gradwire_protocol.frames import CloseCode, Data
from gradwire_protocol.limits import (
    FINISHED_RANGES_MAX,
    FRAGMENT_BYTES_MIN,
    MESSAGE_OVERHEAD_BYTES,
    STREAMS_MAX,
    WINDOW_BYTES_MIN,
)
from gradwire_protocol.ranges import RangeSet


class IncomingMessage:
    """A message of which fragments have come."""

    __slots__ = ("_received", "buffer", "kind")

    def __init__(self, kind: int, total: int) -> None:
        self.kind = kind
        self.buffer = bytearray(total)
        self._received = RangeSet()

    @property
    def charge(self) -> int:
        """What it costs of the credit we gave."""
        return len(self.buffer) + MESSAGE_OVERHEAD_BYTES

    def add(self, data: Data) -> bool:
        """Put a fragment in its place; return whether the message is now complete."""
        if data.total != len(self.buffer) or data.kind != self.kind:
            raise ViolationError(
                CloseCode.VIOLATION,
                f"message {data.number} of stream {data.stream} has changed from "
                f"{len(self.buffer)} bytes of kind {self.kind} to {data.total} of {data.kind}",
            )
        end = data.offset + len(data.payload)
        if end != data.total and len(data.payload) < FRAGMENT_BYTES_MIN:
            raise ViolationError(
                CloseCode.VIOLATION,
                f"fragment of {len(data.payload)} bytes in the middle of a message; "
                f"the least is {FRAGMENT_BYTES_MIN}",
            )
        if self._received.add(data.offset, end):
            self.buffer[data.offset : end] = data.payload
        return len(self._received) == 1 and next(iter(self._received)) == (0, data.total)


class Reassembly:
    """Messages of one connection on their way in.

    Parameters
    ----------
    window_bytes : int
        What the peer may have under way, lengths and `MESSAGE_OVERHEAD_BYTES` together.
    """

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.credit = window_bytes
        """What the peer may declare in all; every ACK tells it."""
        self.announced = window_bytes
        """What the peer is sure to be told: by the handshake, or by a CREDIT frame, which is
        sent again when it is lost. An ACK is not."""
        self.declared = 0
        """What the peer has declared."""
        self.released = 0
        self._open: dict[tuple[int, int], IncomingMessage] = {}
        self._finished: dict[int, RangeSet] = {}

    @property
    def bytes_held(self) -> int:
        """What is under way or waits for its release; at most the window."""
        return self.declared - self.released

    def receive(self, data: Data) -> IncomingMessage | None:
        """Take a fragment; return its message if that is now complete, once.

        Raises
        ------
        ViolationError
            If the fragment contradicts an earlier one or exceeds the credit.
        """
        finished = self._finished.get(data.stream)
        if finished is not None and data.number in finished:
            return None
        key = (data.stream, data.number)
        message = self._open.get(key)
        if message is None:
            declared = self.declared + data.total + MESSAGE_OVERHEAD_BYTES
            if declared > self.credit:
                raise ViolationError(
                    CloseCode.FLOW_CONTROL,
                    f"{declared} message bytes declared; the credit is {self.credit}",
                )
            self.declared = declared
            message = self._open[key] = IncomingMessage(data.kind, data.total)
        if not message.add(data):
            return None
        del self._open[key]
        self._finish(data.stream, data.number)
        return message

    @property
    def announcement_due(self) -> bool:
        """Whether the peer may run out of credit unless a CREDIT frame is sent."""
        low = max(self.window_bytes // 2, WINDOW_BYTES_MIN)
        return self.credit > self.announced and self.announced - self.declared < low

    def release(self, charge: int) -> None:
        """Note that the application is done with a message."""
        self.released += charge
        assert self.released <= self.declared, "released more than was received"
        self.credit = self.released + self.window_bytes

    def _finish(self, stream: int, number: int) -> None:
        finished = self._finished.get(stream)
        if finished is None:
            if len(self._finished) >= STREAMS_MAX:
                raise ViolationError(CloseCode.VIOLATION, f"more than {STREAMS_MAX} streams")
            finished = self._finished[stream] = RangeSet()
        finished.add(number, number + 1)
        if len(finished) > FINISHED_RANGES_MAX:
            raise ViolationError(
                CloseCode.VIOLATION,
                f"more than {FINISHED_RANGES_MAX} gaps among the messages of stream {stream}",
            )
