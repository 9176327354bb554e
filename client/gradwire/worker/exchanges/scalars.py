"""`LoggedScalars`: what a script logs of its training, until the master has it.

Where scalars come faster than messages with them may be sent, or the master is away for long, only
every second one of a series is kept until all that waits is sent, or every fourth, and so on; the
others are counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Final, NamedTuple

import numpy as np

from gradwire.worker.exchanges.logged_messages import LoggedMessages, age_of
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.operating.scalars import (
    AGE_MAX,
    POINTS_MAX,
    SERIES_MAX,
    Logged,
    pack_points,
)

WAITING_MAX: Final = 2 * POINTS_MAX
"""Most scalars that wait."""


class Point(NamedTuple):
    """A scalar that waits."""

    series: int
    step: int
    at: float
    """When it was logged."""
    value: float
    place: int
    """How many of its series came before it."""


class LoggedScalars(LoggedMessages[Logged]):
    """The scalars of one worker."""

    IN_FLIGHT_MAX: ClassVar[int] = 2

    def __init__(self, link: Callable[[], Link | None], workers: Callable[[], int]) -> None:
        super().__init__(link, workers)
        self._series: dict[str, int] = {}
        """The index of each name."""
        self._places: list[int] = []
        """By index: how many scalars have come."""
        self._waiting: list[Point] = []
        self._stride = 1
        """Of each series, every so many scalars are kept."""
        self._is_awake = False
        """Whether the network half knows that something waits."""

    # The training half.

    def add(self, step: int, values: Mapping[str, float], now: float) -> bool:
        """Add scalars of a step; return whether the network half has to be woken."""
        with self._lock:
            for name, value in values.items():
                self._add(name, step, now, value)
            must_wake, self._is_awake = not self._is_awake, True
            return must_wake

    # The network half.

    def _next(self, now: float) -> tuple[Logged, float] | None:
        with self._lock:
            points, self._waiting = self._waiting[:POINTS_MAX], self._waiting[POINTS_MAX:]
            self._stride = self._stride if self._waiting else 1
            dropped, self._unsaid = self._unsaid, 0
            names = list(self._series)
        if not points and not dropped:
            return None
        self._messages += 1
        used = sorted({point.series for point in points})
        position = {index: at for at, index in enumerate(used)}
        packed = [(position[p.series], p.step, age_of(now - p.at), p.value) for p in points]
        found = tuple(names[index] for index in used)
        return Logged(self._messages, found, pack_points(packed), dropped), now

    def _aged(self, message: Logged, seconds: float) -> Logged:
        points = message.array.copy()
        ages = points["age"].astype(np.int64) + age_of(seconds)
        points["age"] = np.minimum(ages, AGE_MAX)
        return replace(message, points=points.tobytes())

    def _waits(self) -> bool:
        with self._lock:
            self._is_awake = bool(self._waiting)
            return self._is_awake

    # Private.

    def _add(self, name: str, step: int, now: float, value: float) -> None:
        index = self._series.get(name)
        if index is None:
            if len(self._series) == SERIES_MAX:
                self._drop(1)
                return
            index = self._series[name] = len(self._series)
            self._places.append(0)
        place = self._places[index]
        self._places[index] += 1
        if place % self._stride:
            self._drop(1)
            return
        self._waiting.append(Point(index, step, now, value, place))
        if len(self._waiting) > WAITING_MAX:
            self._stride *= 2
            kept = [point for point in self._waiting if point.place % self._stride == 0]
            self._drop(len(self._waiting) - len(kept))
            self._waiting = kept

    def _drop(self, count: int) -> None:
        self._unsaid += count
        self.dropped += count
