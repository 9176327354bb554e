"""`LoggedMessages`: messages with what a worker logs, until the master has them.

The training half adds to it and waits for nothing. The network half sends a message about once a
second, or less often where there are many workers, when nothing else waits.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Lock
from typing import ClassVar, Final, Generic, TypeVar

from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.histograms import Histograms
from gradwire_protocol.messages.operating.scalars import AGE_MAX, Logged

EVERY_SECONDS: Final = 1.0
"""Between two messages, at least."""

MESSAGES_PER_SECOND: Final = 50
"""Most messages of all workers of a run together: each costs the master time that updates need."""

LoggedT = TypeVar("LoggedT", Logged, Histograms)


class LoggedMessages(ABC, Generic[LoggedT]):
    """What of one kind one worker logs.

    Parameters
    ----------
    link : callable
        Returns the link to the master; None while the worker is not live.
    workers : callable
        Returns how many workers take part.
    """

    IN_FLIGHT_MAX: ClassVar[int]
    """Most messages that are not delivered: what else there is waits."""

    def __init__(self, link: Callable[[], Link | None], workers: Callable[[], int]) -> None:
        self._link = link
        self._workers = workers
        self._lock = Lock()
        """Held for moments by either half."""
        self._messages = 0
        """How many were made."""
        self._unsaid = 0
        """How much was dropped since the last message."""
        self.dropped = 0
        """How much was dropped in all."""
        self._in_flight: dict[int, tuple[LoggedT, float]] = {}
        """By number in its stream: what was sent and not delivered, and when it was made."""
        self._unsent: list[tuple[LoggedT, float]] = []
        """What a lost connection may not have delivered."""
        self._due: float | None = None
        self._sent_at = float("-inf")

    # What of each kind is different.

    @abstractmethod
    def _next(self, now: float) -> tuple[LoggedT, float] | None:
        """Return the next message, and when it was made; None if nothing waits."""

    @abstractmethod
    def _aged(self, message: LoggedT, seconds: float) -> LoggedT:
        """Return a message that is sent so much later than it was made."""

    @abstractmethod
    def _waits(self) -> bool:
        """Return whether more waits, of which the network half knows now."""

    # The network half.

    @property
    def under_way(self) -> int:
        """How many messages are sent and not delivered."""
        return len(self._in_flight)

    def wake(self, now: float) -> None:
        """Note that something waits."""
        if self._due is None:
            self._due = max(now, self._sent_at + self._interval)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        if self._due is None or self.under_way >= self.IN_FLIGHT_MAX or self._link() is None:
            return None
        return self._due

    def handle_timer(self, now: float) -> None:
        """Send a message, if it is time to."""
        due = self.next_timer()
        if due is not None and now >= due:
            self._send(now, everything=False)

    def flush(self, now: float) -> None:
        """Send all that waits, if the worker is live: there will be no more."""
        self._send(now, everything=True)

    def on_delivered(self, number: int) -> None:
        """Note that the master has a message of the stream."""
        self._in_flight.pop(number, None)

    def start_over(self) -> None:
        """Note that the connection is lost: what was under way is sent again with the next one.

        It keeps its numbers, by which the master knows what it has.
        """
        self._unsent += self._in_flight.values()
        self._in_flight.clear()
        if self._unsent and self._due is None:
            self._due = self._sent_at

    # Private.

    @property
    def _interval(self) -> float:
        """Seconds between two messages."""
        return max(EVERY_SECONDS, self._workers() / MESSAGES_PER_SECOND)

    def _send(self, now: float, *, everything: bool) -> None:
        link = self._link()
        if link is None:
            return
        messages, self._unsent = self._unsent, []
        while fresh := self._next(now):
            messages.append(fresh)
            if not everything:
                break
        for message, made_at in messages:
            number = link.send_logged(self._aged(message, now - made_at))
            self._in_flight[number] = message, made_at
        self._sent_at = now
        self._due = now + self._interval if self._waits() else None


def age_of(seconds: float) -> int:
    """Return how long ago something was, as messages have it."""
    return min(max(round(1e3 * seconds), 0), AGE_MAX)
