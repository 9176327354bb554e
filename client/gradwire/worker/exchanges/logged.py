"""`LoggedExchange`: scalars and histograms of a worker, until the master has the last of them."""

import logging
from collections.abc import Callable
from typing import Final

from gradwire.worker.exchanges.histograms import LoggedHistograms
from gradwire.worker.exchanges.scalars import LoggedScalars
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.link import Link

logger = logging.getLogger("gradwire.session")

LAST_SECONDS_MAX: Final = 2.0
"""How long a worker that leaves waits for the master to have what it has logged."""


class LoggedExchange:
    """What one worker logs.

    The master forgets a worker that has left, and no update waits for what is logged. So a worker
    first sends what it has logged, and leaves when that has arrived, or after a while.

    Parameters
    ----------
    link : callable
        Returns the link to the master; None while the worker is not live.
    workers : callable
        Returns how many workers take part.
    """

    def __init__(self, link: Callable[[], Link | None], workers: Callable[[], int]) -> None:
        self._link = link
        self.scalars = LoggedScalars(link, workers)
        self.histograms = LoggedHistograms(link, workers)
        self._leaves_at: float | None = None
        """When the worker leaves at the latest; None while it does not want to."""

    def flush(self, now: float) -> None:
        """Send all that waits, if the worker is live: there will be no more."""
        self.scalars.flush(now)
        self.histograms.flush(now)

    def must_wait(self, now: float) -> bool:
        """Return whether a worker that wants to leave has to wait for what it has logged."""
        leaves_at = now + LAST_SECONDS_MAX if self._leaves_at is None else self._leaves_at
        under_way = self.scalars.under_way + self.histograms.under_way
        if self._link() is not None and under_way and now < leaves_at:
            self._leaves_at = leaves_at
            return True
        self._leaves_at = None
        if self._link() is not None and under_way:
            logger.warning(
                "the master may lack what was logged last: it has not confirmed that within %g s",
                LAST_SECONDS_MAX,
            )
        return False

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        return earliest((self.scalars.next_timer(), self.histograms.next_timer(), self._leaves_at))

    def handle_timer(self, now: float) -> None:
        """Send the messages that wait, if it is time to."""
        self.scalars.handle_timer(now)
        self.histograms.handle_timer(now)

    def on_delivered(self, number: int) -> None:
        """Note that the master has a message of the stream."""
        self.scalars.on_delivered(number)
        self.histograms.on_delivered(number)

    def start_over(self) -> None:
        """Note that the connection is lost: what was under way is sent again with the next one."""
        self.scalars.start_over()
        self.histograms.start_over()
