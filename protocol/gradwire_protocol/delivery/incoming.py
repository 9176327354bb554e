"""Incoming messages: fragments put together, each message delivered once, memory bounded.

The peer may have as many message bytes under way as it was given credit for, counted from the
first fragment of a message to its release by the application. So the bound holds by
construction, and a peer that exceeds it is at fault.
"""

import numpy as np
from numpy.typing import NDArray

from gradwire_protocol.delivery.parity import restore_fragment
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.errors import ViolationError
from gradwire_protocol.limits import (
    FINISHED_RANGES_MAX,
    STREAMS_MAX,
    WINDOW_BYTES_MIN,
    charge_of,
)
from gradwire_protocol.wire.close_codes import CloseCode
from gradwire_protocol.wire.frames import Data, parity_groups
from gradwire_protocol.wire.ranges import RangeSet


class IncomingMessage:
    """A message of which fragments have come."""

    __slots__ = ("_missing", "_parity", "_received", "shaped")

    def __init__(self, data: Data) -> None:
        self._begin(data)

    def _begin(self, data: Data) -> None:
        self.shaped = ShapedMessage(
            data.stream, data.number, data.kind, data.total, data.fragment_bytes, data.shape
        )
        self._received = bytearray(self.shaped.count)
        self._missing = self.shaped.count
        self._parity: dict[int, NDArray[np.uint8]] = {}

    @property
    def charge(self) -> int:
        """What it costs of the credit we gave."""
        return charge_of(self.shaped.total)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    def accept_shape(self, data: Data) -> bool:
        """Return whether a fragment belongs to the shape that counts; a newer one begins anew."""
        shaped = self.shaped
        if data.total != shaped.total or data.kind != shaped.kind:
            raise ViolationError(
                CloseCode.VIOLATION,
                f"message {data.number} of stream {data.stream} has changed from {shaped.total} "
                f"bytes of kind {shaped.kind} to {data.total} of {data.kind}",
            )
        if data.shape > shaped.shape:
            self._begin(data)
        elif data.shape < shaped.shape:
            return False
        elif data.fragment_bytes != shaped.fragment_bytes:
            raise ViolationError(
                CloseCode.VIOLATION,
                f"fragments of {shaped.fragment_bytes} and {data.fragment_bytes} bytes in message "
                f"{data.number} of stream {data.stream}",
            )
        return True

    def place_fragment(self, data: Data) -> None:
        """Put a fragment in its place."""
        if data.parity:
            if data.index not in self._parity:
                self._parity[data.index] = np.frombuffer(bytes(data.payload), np.uint8)
                self._restore(data.index)
        elif not self._received[data.index]:
            self.shaped.place(data)
            self._mark_received(data.index)

    def place_run(self, first: int, packets: NDArray[np.uint8]) -> None:
        """Put packets of consecutive fragments, a row each and none shorter, in place."""
        stop = first + len(packets)
        if self._parity or self._received.count(1, first, stop):
            # What came first counts, also where parity makes it up in between.
            for index in range(first, stop):
                if not self._received[index]:
                    self.shaped.place_rows(index, packets[index - first : index - first + 1])
                    self._mark_received(index)
            return
        self.shaped.place_rows(first, packets)
        self._received[first:stop] = b"\1" * len(packets)
        self._missing -= len(packets)

    def _mark_received(self, index: int) -> None:
        self._received[index] = 1
        self._missing -= 1
        if self._parity:
            self._restore(index % parity_groups(self.shaped.count))

    def _restore(self, group: int) -> None:
        """Make up the one fragment that is missing of a group, if it is only one."""
        if group not in self._parity:
            return
        shaped = self.shaped
        groups = parity_groups(shaped.count)
        missing = [i for i in range(group, shaped.count, groups) if not self._received[i]]
        if len(missing) == 1:
            payload = restore_fragment(shaped, group, self._parity[group], missing[0])
            shaped.payload_of(missing[0])[:] = payload
            self._received[missing[0]] = 1
            self._missing -= 1


class Reassembly:
    """Messages of one connection on their way in.

    Parameters
    ----------
    window_bytes : int
        What the peer may have under way, by `limits.charge_of`.
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
        message = self._message_of(data)
        if message is None:
            return None
        message.place_fragment(data)
        return self._if_complete(message, data)

    def can_receive_run(self, data: Data) -> bool:
        """Return whether `receive_run` breaks no rule when it completes the message."""
        finished = self._finished.get(data.stream)
        if finished is None:
            return len(self._finished) < STREAMS_MAX
        return len(finished) < FINISHED_RANGES_MAX

    def receive_run(self, data: Data, packets: NDArray[np.uint8]) -> IncomingMessage | None:
        """Take consecutive fragments, none of them shorter than the others, as `receive` does.

        To be called only where `can_receive_run` says so.

        Parameters
        ----------
        data : Data
            The first one; its payload is not looked at.
        packets : array of uint8, shape (fragments, bytes of a packet)

        Raises
        ------
        ViolationError
            If the first fragment does so in `receive`; nothing has changed then.
        """
        message = self._message_of(data)
        if message is None:
            return None
        message.place_run(data.index, packets)
        return self._if_complete(message, data)

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

    def pass_over(self, stream: int, number: int) -> None:
        """Note that no message of a stream comes any more whose number is below this one.

        Where the numbers that never come were not said, each of them would be a gap for ever.
        """
        finished = self._finished.get(stream)
        if finished is not None:
            finished.add_range(0, number)

    def _message_of(self, data: Data) -> IncomingMessage | None:
        """Return the message that a fragment belongs to; None where it is of no use."""
        finished = self._finished.get(data.stream)
        if finished is not None and data.number in finished:
            return None
        message = self._open.get((data.stream, data.number))
        if message is not None:
            return message if message.accept_shape(data) else None
        declared = self.declared + charge_of(data.total)
        if declared > self.credit:
            raise ViolationError(
                CloseCode.FLOW_CONTROL,
                f"{declared} message bytes declared; the credit is {self.credit}",
            )
        self.declared = declared
        message = self._open[data.stream, data.number] = IncomingMessage(data)
        return message

    def _if_complete(self, message: IncomingMessage, data: Data) -> IncomingMessage | None:
        if not message.complete:
            return None
        del self._open[data.stream, data.number]
        self._finish(data.stream, data.number)
        return message

    def _finish(self, stream: int, number: int) -> None:
        finished = self._finished.get(stream)
        if finished is None:
            if len(self._finished) >= STREAMS_MAX:
                raise ViolationError(CloseCode.VIOLATION, f"more than {STREAMS_MAX} streams")
            finished = self._finished[stream] = RangeSet()
        finished.add_range(number, number + 1)
        if len(finished) > FINISHED_RANGES_MAX:
            raise ViolationError(
                CloseCode.VIOLATION,
                f"more than {FINISHED_RANGES_MAX} gaps among the messages of stream {stream}",
            )
