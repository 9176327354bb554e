"""`LoggedScalars`: what a script logs of its training, until the master has it.

The training half adds to it and waits for nothing. The network half sends a message about once a
second, or less often where there are many workers, when nothing else waits, and the next one when
that has arrived. The master forgets a worker that has left, so a worker leaves when the master has
the last of them, or after a while.

Where scalars come faster than that, or the master is away for long, only every second one of a
series is kept until all that waits is sent, or every fourth, and so on; the others are counted.

Histograms go the same way. Only the newest wait, and they take turns with scalars.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.logged.histograms import Histograms
from gradwire_protocol.messages.logged.scalars import AGE_MAX, POINT, POINTS_MAX, SERIES_MAX, Logged

logger = logging.getLogger("gradwire.session")

EVERY_SECONDS: Final = 1.0
"""Between two messages, at least."""

MESSAGES_PER_SECOND: Final = 50
"""Most messages of all workers of a run together: each costs the master time that updates need."""

WAITING_MAX: Final = 2 * POINTS_MAX
"""Most scalars that wait."""

LAST_SECONDS_MAX: Final = 2.0
"""How long a worker that leaves waits for the master to have what it has logged."""


class Point(NamedTuple):
    """A scalar that waits."""

    name: str
    step: int
    at: float
    """When it was logged."""
    value: float
    place: int
    """How many of its series came before it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one message has."""

    number: int
    points: list[Point]
    dropped: int

    def message(self, now: float) -> Logged:
        """Return the message, if it is sent now."""
        places = {name: at for at, name in enumerate(dict.fromkeys(p.name for p in self.points))}
        rows = [
            (places[p.name], p.step, min(max(round(1e3 * (now - p.at)), 0), AGE_MAX), p.value)
            for p in self.points
        ]
        return Logged(self.number, tuple(places), np.array(rows, POINT).tobytes(), self.dropped)


class LoggedScalars:
    """The scalars of one worker.

    Parameters
    ----------
    link : callable
        Returns the link to the master; None while the worker is not live.
    workers : callable
        Returns how many workers take part.
    """

    def __init__(self, link: Callable[[], Link | None], workers: Callable[[], int]) -> None:
        self._link = link
        self._workers = workers
        self.dropped = 0
        """How many were dropped in all."""
        self._lock = Lock()
        """Held for moments by either half."""
        self._places: dict[str, int] = {}
        """By name: how many scalars have come."""
        self._waiting: list[Point] = []
        self._stride = 1
        """Of each series, every so many scalars are kept."""
        self._unsaid = 0
        """How many were dropped since the last message."""
        self._histograms: Histograms | None = None
        """What waits; their number, and how many were dropped, follow when they are sent."""
        self.histograms_dropped = 0
        """How many times histograms were dropped in all, for newer ones."""
        self._is_awake = False
        """Whether the network half knows that something waits."""
        # The network half alone has the rest.
        self._number = 0
        """Of the last message."""
        self._batch: Batch | Histograms | None = None
        """What of it the master may lack."""
        self._must_be_scalars = False
        """Whether it is the turn of scalars, if any wait."""
        self._is_under_way = False
        self._due: float | None = None
        self._sent_at = float("-inf")
        self._leaves_at: float | None = None
        """When the worker leaves at the latest; None while it does not want to."""

    # The training half.

    def add(self, step: int, values: Mapping[str, float], now: float) -> bool:
        """Add scalars of a step; return whether the network half has to be woken."""
        with self._lock:
            for name, value in values.items():
                place = self._places.get(name, 0)
                if not place and len(self._places) == SERIES_MAX:
                    self._drop(1)
                    continue
                self._places[name] = place + 1
                if place % self._stride:
                    self._drop(1)
                else:
                    self._waiting.append(Point(name, step, now, value, place))
            if len(self._waiting) > WAITING_MAX:
                self._stride *= 2
                kept = [point for point in self._waiting if point.place % self._stride == 0]
                self._drop(len(self._waiting) - len(kept))
                self._waiting = kept
            return self._must_wake()

    def put_histograms(self, step: int, names: tuple[str, ...], histograms: bytes) -> bool:
        """Have histograms sent; return whether the network half has to be woken."""
        with self._lock:
            dropped = 0 if self._histograms is None else self._histograms.dropped + 1
            self.histograms_dropped += dropped > 0
            self._histograms = Histograms(1, step, names, histograms, dropped)
            return self._must_wake()

    # The network half.

    def wake(self, now: float) -> None:
        """Note that something waits."""
        self._due = max(now, self._sent_at + self._interval)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        is_held_up = self._is_under_way or self._link() is None
        return earliest((None if is_held_up else self._due, self._leaves_at))

    def handle_timer(self, now: float) -> None:
        """Send a message, if it is time to."""
        link = self._link()
        if link is None or self._is_under_way or self._due is None or now < self._due:
            return
        self._due = None
        batch = self._batch = self._batch or self._take_next()
        link.send_logged(batch.message(now) if isinstance(batch, Batch) else batch)
        self._is_under_way, self._sent_at = True, now

    def on_delivered(self, now: float) -> None:
        """Note that the master has the last message."""
        self._batch, self._is_under_way = None, False
        with self._lock:
            self._is_awake = bool(self._waiting or self._histograms)
        if self._is_awake:
            self._due = self._sent_at + self._interval

    def start_over(self) -> None:
        """Note that the connection is lost: what was under way is sent again with the next one.

        The message has the same number then, by which the master knows whether it has it.
        """
        if self._is_under_way:
            self._is_under_way, self._due = False, self._sent_at

    def holds_up(self, now: float) -> bool:
        """Return whether a worker that wants to leave has to wait; send what it has logged."""
        waits = self._waiting or self._histograms or self._batch
        if self._link() is not None and waits:
            self._leaves_at = self._leaves_at or now + LAST_SECONDS_MAX
            if now < self._leaves_at:
                self._due = now
                self.handle_timer(now)
                return True
            logger.warning(
                "the master may lack what was logged last: it has not confirmed that within %g s",
                LAST_SECONDS_MAX,
            )
        self._leaves_at = None
        return False

    # Private.

    @property
    def _interval(self) -> float:
        """Seconds between two messages."""
        return max(EVERY_SECONDS, self._workers() / MESSAGES_PER_SECOND)

    def _must_wake(self) -> bool:
        must_wake, self._is_awake = not self._is_awake, True
        return must_wake

    def _take_next(self) -> Batch | Histograms:
        """Return what the next message has."""
        self._number += 1
        with self._lock:
            histograms = self._histograms
            if histograms is not None and not (self._must_be_scalars and self._waiting):
                self._histograms, self._must_be_scalars = None, True
                return replace(histograms, number=self._number)
            self._must_be_scalars = False
            points, self._waiting = self._waiting[:POINTS_MAX], self._waiting[POINTS_MAX:]
            self._stride = self._stride if self._waiting else 1
            dropped, self._unsaid = self._unsaid, 0
        return Batch(self._number, points, dropped)

    def _drop(self, count: int) -> None:
        self._unsaid += count
        self.dropped += count
