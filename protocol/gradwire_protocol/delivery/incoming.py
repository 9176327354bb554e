"""Incoming messages: reassembled from fragments, delivered once each, within bounded memory.

The peer may have as many message bytes under way as its credit allows, counted from the first
fragment of a message until the application releases it. So the bound holds by construction, and a
peer that exceeds it breaks the protocol.
"""

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.errors import ViolationError
from gradwire_protocol.limits import (
    FINISHED_RANGES_MAX,
    STREAMS_MAX,
    WINDOW_BYTES_MIN,
    charge_of,
)
from gradwire_protocol.wire.frames import CloseCode, Data
from gradwire_protocol.wire.ranges import RangeSet


class IncomingMessage:
    """A message with at least one fragment received."""

    __slots__ = ("_missing", "_missing_before", "_received", "_stalled_checks", "shaped")

    def __init__(self, data: Data) -> None:
        self._missing_before = 0
        self._stalled_checks = 0
        self._begin(data)

    def _begin(self, data: Data) -> None:
        self.shaped = ShapedMessage(
            data.stream, data.number, data.kind, data.total, data.fragment_bytes, data.shape
        )
        self._received = bytearray(self.shaped.count)
        self._missing = self.shaped.count

    @property
    def charge(self) -> int:
        """Its share of the credit we gave."""
        return charge_of(self.shaped.total)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    @property
    def received(self) -> int:
        """Fragments that are here."""
        return self.shaped.count - self._missing

    def check_progress(self) -> int:
        """Return how many checks in a row, this one included, found no new fragment."""
        stalled = self._missing == self._missing_before
        self._stalled_checks = self._stalled_checks + 1 if stalled else 0
        self._missing_before = self._missing
        return self._stalled_checks

    def accept_shape(self, data: Data) -> bool:
        """Return whether a fragment has the current shape; a newer one starts the message over."""
        shaped = self.shaped
        if data.total != shaped.total or data.kind != shaped.kind:
            raise ViolationError(
                f"message {data.number} of stream {data.stream} has changed from {shaped.total} "
                f"bytes of kind {shaped.kind} to {data.total} bytes of kind {data.kind}"
            )
        if data.shape > shaped.shape:
            self._begin(data)
        elif data.shape < shaped.shape:
            return False
        elif data.fragment_bytes != shaped.fragment_bytes:
            raise ViolationError(
                f"message {data.number} of stream {data.stream} has fragments of "
                f"{shaped.fragment_bytes} and of {data.fragment_bytes} bytes"
            )
        return True

    def place_fragment(self, data: Data) -> None:
        """Store a fragment."""
        if not self._received[data.index]:
            self.shaped.place_fragment(data)
            self._received[data.index] = 1
            self._missing -= 1

    def place_run(self, first: int, packets: NDArray[np.uint8]) -> None:
        """Store consecutive fragments, one packet a row, none shorter than the others."""
        stop = first + len(packets)
        here = self._received.count(1, first, stop)
        if here:
            for index in range(first, stop):
                if not self._received[index]:  # the first copy of a fragment counts
                    self.shaped.place_rows(index, packets[index - first : index - first + 1])
        else:
            self.shaped.place_rows(first, packets)
        self._received[first:stop] = b"\1" * len(packets)
        self._missing -= len(packets) - here


class Reassembly:
    """Incoming messages of one connection.

    Parameters
    ----------
    window_bytes : int
        Message bytes that the peer may have under way, counted by `limits.charge_of`.
    """

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.credit = window_bytes
        """Total bytes that the peer may declare; every ACK reports it."""
        self.announced = window_bytes
        """The credit that is certain to reach the peer: from the handshake or a CREDIT frame, which
        is sent again when lost. ACKs report the credit, too, but are not sent again."""
        self.declared = 0
        """Total bytes that the peer has declared."""
        self.released = 0
        self._open: dict[tuple[int, int], IncomingMessage] = {}
        self._finished: dict[int, RangeSet] = {}

    @property
    def bytes_held(self) -> int:
        """Bytes under way or waiting for release; at most the window."""
        return self.declared - self.released

    def receive(self, data: Data) -> IncomingMessage | None:
        """Store a fragment; return its message when this completes it.

        Raises
        ------
        ViolationError
            If the fragment contradicts an earlier one or exceeds the credit.
        """
        message = self._message_of(data)
        if message is None:
            return None
        message.place_fragment(data)
        return self._finish_if_complete(message, data)

    def can_receive_run(self, data: Data) -> bool:
        """Return whether `receive_run` stays within the limits even if it completes the message."""
        finished = self._finished.get(data.stream)
        if finished is None:
            return len(self._finished) < STREAMS_MAX
        return len(finished) < FINISHED_RANGES_MAX

    def receive_run(self, data: Data, packets: NDArray[np.uint8]) -> IncomingMessage | None:
        """Store consecutive fragments, none shorter than the others, as `receive` does.

        The caller has to check `can_receive_run` first.

        Parameters
        ----------
        data : Data
            The first fragment; its payload is ignored.
        packets : array of uint8, shape (fragments, bytes of a packet)

        Raises
        ------
        ViolationError
            If `receive` would raise it for the first fragment. The state is then unchanged.
        """
        message = self._message_of(data)
        if message is None:
            return None
        message.place_run(data.index, packets)
        return self._finish_if_complete(message, data)

    @property
    def announcement_due(self) -> bool:
        """Whether the peer may run out of credit unless a CREDIT frame is sent."""
        low = max(self.window_bytes // 2, WINDOW_BYTES_MIN)
        return self.credit > self.announced and self.announced - self.declared < low

    def release(self, charge: int) -> None:
        """Give back the credit of a message that the application has finished with."""
        self.released += charge
        assert self.released <= self.declared, "released more than was received"
        self.credit = self.released + self.window_bytes

    @property
    def has_begun(self) -> bool:
        """Whether a message has begun and is not complete."""
        return bool(self._open)

    def check_progress(self, checks_max: int) -> IncomingMessage | None:
        """Return a message without a new fragment in this many checks in a row, if there is one."""
        checks = [(message.check_progress(), message) for message in self._open.values()]
        return next((message for stalled, message in checks if stalled >= checks_max), None)

    def skip_to(self, stream: int, number: int) -> None:
        """Expect no further message of a stream with a number below this one.

        Otherwise each number that is never sent would remain a gap for ever.
        """
        finished = self._finished.get(stream)
        if finished is not None:
            finished.add_range(0, number)

    def _message_of(self, data: Data) -> IncomingMessage | None:
        """Return the message of a fragment; None if the fragment is not needed."""
        finished = self._finished.get(data.stream)
        if finished is not None and data.number in finished:
            return None
        message = self._open.get((data.stream, data.number))
        if message is not None:
            return message if message.accept_shape(data) else None
        declared = self.declared + charge_of(data.total)
        if declared > self.credit:
            raise ViolationError(
                f"the peer declared {declared} message bytes; its credit is {self.credit}",
                CloseCode.FLOW_CONTROL,
            )
        self.declared = declared
        message = self._open[data.stream, data.number] = IncomingMessage(data)
        return message

    def _finish_if_complete(self, message: IncomingMessage, data: Data) -> IncomingMessage | None:
        if not message.complete:
            return None
        del self._open[data.stream, data.number]
        self._finish(data.stream, data.number)
        return message

    def _finish(self, stream: int, number: int) -> None:
        finished = self._finished.get(stream)
        if finished is None:
            if len(self._finished) >= STREAMS_MAX:
                raise ViolationError(f"the peer uses more than {STREAMS_MAX} streams")
            finished = self._finished[stream] = RangeSet()
        finished.add_range(number, number + 1)
        if len(finished) > FINISHED_RANGES_MAX:
            raise ViolationError(
                f"stream {stream} has more than {FINISHED_RANGES_MAX} gaps among its messages"
            )
