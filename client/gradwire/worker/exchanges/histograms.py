"""`LoggedHistograms`: histograms of what a worker trains, until the master has them.

The training half makes them where there is room. A few messages wait, and one is under way.
Histograms that are due while there is no room are not made, and counted.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Final

from gradwire.worker.exchanges.logged_messages import LoggedMessages, age_of
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.histograms import Histograms

WAITING_MAX: Final = 2
"""Most messages that wait: one more than the network thread has not looked at yet."""


class LoggedHistograms(LoggedMessages[Histograms]):
    """The histograms of one worker; what is dropped are times at which they were due."""

    IN_FLIGHT_MAX: ClassVar[int] = 1

    def __init__(self, link: Callable[[], Link | None], workers: Callable[[], int]) -> None:
        super().__init__(link, workers)
        self._waiting: list[tuple[Histograms, float]] = []
        """What waits, and when it was made."""

    # The training half.

    def has_room(self) -> bool:
        """Return whether a message can wait."""
        return len(self._waiting) < WAITING_MAX

    def leave_out(self) -> None:
        """Note that histograms were due, and not made."""
        with self._lock:
            self._unsaid += 1
            self.dropped += 1

    def put(
        self, step: int, tensors: int, names: tuple[str, ...], histograms: bytes, now: float
    ) -> None:
        """Have histograms sent, for which there is room; the network half has to be woken then."""
        with self._lock:
            self._messages += 1
            left_out, self._unsaid = self._unsaid, 0
            message = Histograms(self._messages, step, 0, tensors, names, histograms, left_out)
            self._waiting.append((message, now))

    # The network half.

    def _next(self, now: float) -> tuple[Histograms, float] | None:
        with self._lock:
            return self._waiting.pop(0) if self._waiting else None

    def _aged(self, message: Histograms, seconds: float) -> Histograms:
        return replace(message, age=age_of(seconds))

    def _waits(self) -> bool:
        return bool(self._waiting)
