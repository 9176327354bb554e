"""What both ends of ``gradwire doctor`` say to each other, over connections of the protocol.

::

    kind  from    says
    1     server  HELLO: a JSON object with its release and its time of day, as soon as it can
    2     both    FILL: bytes of no meaning
    3     client  ASK: send FILLs
    4     server  DONE: all of them have arrived; how much in how long, a JSON object

A master says nothing before it is asked to let a worker in, which tells it from this server.
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
"""Of one direction. It ends with whichever comes first."""


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
    """Sends FILLs over a connection, for so long and so much.

    Parameters
    ----------
    connection : Connection
    now : float
    """

    def __init__(self, connection: Connection, now: float) -> None:
        self.began = self.last_at = now
        self.delivered_bytes = 0
        """What has arrived, by `last_at`."""
        self._connection = connection
        self._numbers = count()
        self._under_way: deque[int] = deque()
        self._sent_bytes = 0

    @property
    def over(self) -> bool:
        """Whether all that it has sent has arrived."""
        return not self._under_way

    @property
    def seconds(self) -> float:
        """How long what has arrived took."""
        return self.last_at - self.began

    def fill(self, now: float) -> None:
        """Send as much as may be under way, while there is time."""
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
