"""`RangeSet`: a set of integers, stored as sorted ranges that do not touch.

Received packet numbers and finished messages are nearly contiguous, so they need only a few ranges.
Adding to the last range is the common case.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class RangeSet:
    """Integers as half-open ranges, ascending.

    >>> numbers = RangeSet()
    >>> numbers.add_range(1, 3), numbers.add_range(5, 6), numbers.add_range(3, 4)
    (True, True, True)
    >>> numbers.add_range(1, 2)
    False
    >>> list(numbers)
    [(1, 4), (5, 6)]
    """

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over (start, stop), ascending."""
        return iter(zip(self._starts, self._stops, strict=True))

    def __contains__(self, number: int) -> bool:
        """Return whether `number` is in one of the ranges."""
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._stops[at]

    def isdisjoint(self, start: int, stop: int) -> bool:
        """Return whether the set has none of the numbers ``start <= i < stop``."""
        at = bisect_left(self._starts, stop) - 1
        return at < 0 or self._stops[at] <= start

    @property
    def last_stop(self) -> int:
        """One more than the largest number; 0 for an empty set."""
        return self._stops[-1] if self._stops else 0

    def descending(self) -> Iterator[tuple[int, int]]:
        """Iterate over (start, stop), largest first."""
        return iter(zip(reversed(self._starts), reversed(self._stops), strict=True))

    def add_range(self, start: int, stop: int) -> bool:
        """Add the numbers ``start <= i < stop``; return whether any of them was new."""
        starts, stops = self._starts, self._stops
        if stops and starts[-1] <= start <= stops[-1]:
            if stop <= stops[-1]:
                return False
            stops[-1] = stop
            return True
        # Ranges `first` to `last` (exclusive) overlap or touch the new one and are merged with it.
        first = bisect_left(stops, start)
        last = bisect_right(starts, stop)
        if first < last:
            if starts[first] <= start and stop <= stops[first]:
                return False
            start = min(start, starts[first])
            stop = max(stop, stops[last - 1])
        starts[first:last] = [start]
        stops[first:last] = [stop]
        return True

    def drop_lowest(self) -> None:
        """Remove the lowest range."""
        del self._starts[0], self._stops[0]
