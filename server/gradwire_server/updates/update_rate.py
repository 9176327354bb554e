"""`UpdateRate`: how many updates a second are taken from one worker; the others wait, none is lost.

A worker that floods the master with tiny updates costs every other worker time: each is decoded,
added and passed on to all. What is beyond the rate waits in order and holds its sender's credit, so
flow control slows the worker down, and what waits is bounded by its window.
"""

import math
from collections import deque
from typing import Final, Generic, TypeVar

UPDATE_RATE_MAX: Final = 2_000.0
"""Updates per second of one worker: a training step of half a millisecond, each sent. A master
takes some 3,000 of 4 KB in all."""

BURST_SECONDS: Final = 1.0
BURST_UPDATES_MIN: Final = 64
"""What may come at once: what a second allows, and at least as many as a worker has under way when
the network was away for a moment and it hands over what it has."""

Item = TypeVar("Item")


class UpdateRate(Generic[Item]):
    """What one worker has sent, let through at a rate.

    Parameters
    ----------
    per_second : float
        What may go through in the long run; infinite for no limit.
    """

    __slots__ = ("_interval", "_paid_until", "_slack", "_waiting")

    def __init__(self, per_second: float = math.inf) -> None:
        # The generic cell rate algorithm: every item moves a date on by an interval, and may pass
        # while that date is no farther ahead than the burst allows. Unlike a count of tokens, it
        # needs no division by time, so an item can pass at exactly the time that `next_at` says.
        self._interval = 1.0 / per_second
        burst = max(BURST_UPDATES_MIN, per_second * BURST_SECONDS)
        # Half an interval more than it takes for the last one of a burst, for rounding.
        self._slack = (burst - 0.5) * self._interval if self._interval else 0.0
        self._paid_until = -math.inf
        self._waiting: deque[Item] = deque()

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @property
    def next_at(self) -> float | None:
        """When the next one may pass; None where none waits."""
        return self._paid_until - self._slack if self._waiting else None

    def push(self, item: Item) -> None:
        """Take one in, behind those that wait."""
        self._waiting.append(item)

    def push_front(self, items: list[Item]) -> None:
        """Take some in before those that wait."""
        self._waiting.extendleft(reversed(items))

    def pop(self, now: float) -> Item | None:
        """Return the next one, if there is one and it may pass."""
        if not self._waiting or now < self._paid_until - self._slack:
            return None
        self._paid_until = max(self._paid_until, now) + self._interval
        return self._waiting.popleft()

    def pop_all(self) -> list[Item]:
        """Return everything that waits, whether it may pass or not."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def clear(self) -> int:
        """Drop what waits; return how many that were."""
        dropped = len(self._waiting)
        self._waiting.clear()
        return dropped
