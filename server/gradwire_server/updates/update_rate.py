"""`UpdateRate`: limits the updates a second of one worker; further ones wait, and none is lost.

A worker that floods the master with tiny updates costs every other worker time: each update is
decoded, added and relayed to all. Updates beyond the rate wait in order and hold their sender's
credit. So flow control slows the worker down, and its window bounds the queue.
"""

import math
from collections import deque
from typing import Final, Generic, TypeVar

UPDATE_RATE_MAX: Final = 2_000.0
"""Updates per second of one worker, as from a training step of half a millisecond. A master handles
some 3,000 a second of 4 KB in all."""

BURST_SECONDS: Final = 1.0
BURST_UPDATES_MIN: Final = 64
"""A burst is the updates of `BURST_SECONDS`, and at least as many as a worker sends at once after a
short interruption of the network."""

Item = TypeVar("Item")


class UpdateRate(Generic[Item]):
    """A queue that releases items at a limited rate; `per_second` may be infinite."""

    __slots__ = ("_interval", "_paid_until", "_slack", "_waiting")

    def __init__(self, per_second: float = math.inf) -> None:
        # The generic cell rate algorithm: every item moves a date forward by an interval, and may
        # pass while that date is no farther ahead than the burst allows. Unlike a token bucket, it
        # does not divide by time, so an item can pass at exactly the time that `next_at` says.
        self._interval = 1.0 / per_second
        burst = max(BURST_UPDATES_MIN, per_second * BURST_SECONDS)
        # The last item of a burst needs one interval less; half of it stays for rounding.
        self._slack = (burst - 0.5) * self._interval if self._interval else 0.0
        self._paid_until = -math.inf
        self._waiting: deque[Item] = deque()

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return len(self._waiting)

    @property
    def next_at(self) -> float | None:
        """When the next item may pass; None where none waits."""
        return self._paid_until - self._slack if self._waiting else None

    def push(self, item: Item) -> None:
        """Add an item at the end."""
        self._waiting.append(item)

    def push_front(self, items: list[Item]) -> None:
        """Add items, in their order, before all that wait."""
        self._waiting.extendleft(reversed(items))

    def pop(self, now: float) -> Item | None:
        """Remove and return the next item; None if none may pass yet."""
        if not self._waiting or now < self._paid_until - self._slack:
            return None
        self._paid_until = max(self._paid_until, now) + self._interval
        return self._waiting.popleft()

    def pop_all(self) -> list[Item]:
        """Remove and return all items, without regard to the rate."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def clear(self) -> int:
        """Drop all items; return their number."""
        return len(self.pop_all())
