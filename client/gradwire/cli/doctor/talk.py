"""Messages between the two ends of ``gradwire doctor``, over connections of the protocol.

::

    kind  from    content
    1     server  HELLO: a JSON object with its release and its time of day, sent at once
    2     both    FILL: bytes without a meaning
    3     client  ASK: send FILLs
    4     server  DONE: all its FILLs have arrived; a JSON object with their bytes and seconds

A master sends nothing before a worker asks to join, and so no HELLO.
"""

from collections import deque
from enum import IntEnum
from itertools import count
from typing import Final

from gradwire_protocol import Connection, Priority
from gradwire_protocol.limits import MIB

CONTROL_STREAM: Final = 1
FILL_STREAM: Final = 2

FILL: Final = bytes(2**15)
UNDER_WAY_BYTES: Final = 4 * MIB

RATE_SECONDS: Final = 2.0
RATE_BYTES: Final = 64 * MIB
"""Limits of the measurement of one direction; it ends at the first of both."""


class TimerlessApplication:
    """Base of an `Application` that has no deadlines of its own."""

    def handle_timer(self, now: float) -> None:
        """Do nothing."""

    def next_timer(self) -> float | None:
        """Return None."""
        return None


class TalkKind(IntEnum):
    """Kinds of messages."""

    HELLO = 1
    FILL = 2
    ASK = 3
    DONE = 4


class Filler:
    """Sends FILLs over a connection, up to `RATE_SECONDS` and `RATE_BYTES`."""

    def __init__(self, connection: Connection, now: float) -> None:
        self.began = self.last_at = now
        self.delivered_bytes = 0
        """Bytes that had arrived at `last_at`."""
        self._connection = connection
        self._numbers = count()
        self._under_way: deque[int] = deque()
        self._sent_bytes = 0

    @property
    def over(self) -> bool:
        """Whether all sent FILLs have arrived."""
        return not self._under_way

    @property
    def seconds(self) -> float:
        """Seconds from the beginning to the last arrival."""
        return self.last_at - self.began

    def fill(self, now: float) -> None:
        """Send FILLs up to `UNDER_WAY_BYTES` in flight, within the limits."""
        while (
            now < self.began + RATE_SECONDS
            and self._sent_bytes < RATE_BYTES
            and len(self._under_way) * len(FILL) < UNDER_WAY_BYTES
        ):
            number = next(self._numbers)
            self._connection.send(FILL_STREAM, number, TalkKind.FILL, FILL, Priority.UPDATE)
            self._under_way.append(number)
            self._sent_bytes += len(FILL)

    def on_delivered(self, number: int, now: float) -> None:
        """Note that a FILL has arrived, and send more."""
        if number in self._under_way:
            self._under_way.remove(number)
            self.delivered_bytes += len(FILL)
            self.last_at = now
        self.fill(now)
