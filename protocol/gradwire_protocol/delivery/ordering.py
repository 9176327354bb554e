"""`InOrder`: puts numbered items that arrive in any order, with repeats, into sequence.

The transport delivers every message of a connection exactly once, in the order in which messages
complete. `InOrder` restores their order for the control messages of a connection and the updates of
one origin. It also drops items that already came over another connection.
"""

from typing import Generic, TypeVar

Item = TypeVar("Item")


class InOrder(Generic[Item]):
    """Items waiting for their predecessors; the first item has the number `expected`.

    Examples
    --------
    >>> letters = InOrder(1)
    >>> letters.insert(2, "b"), letters.insert(1, "a"), letters.insert(2, "b")
    ([], ['a', 'b'], [])
    """

    __slots__ = ("_waiting", "expected")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        """The number of the next item."""
        self._waiting: dict[int, Item] = {}

    def __len__(self) -> int:
        """Return how many items wait. Flow control bounds them: each holds its credit."""
        return len(self._waiting)

    def is_duplicate(self, number: int) -> bool:
        """Return whether an item with this number already came."""
        return number < self.expected or number in self._waiting

    def insert(self, number: int, item: Item) -> list[Item]:
        """Add an item; return the items that are now next, in order."""
        if self.is_duplicate(number):
            return []
        self._waiting[number] = item
        return self._ready()

    def take_waiting(self) -> list[Item]:
        """Return the items that wait, by number, which are not expected any more."""
        waiting, self._waiting = self._waiting, {}
        return [waiting[number] for number in sorted(waiting)]

    @property
    def lowest_waiting(self) -> int | None:
        """The lowest number of a waiting item; None if no item waits."""
        return min(self._waiting, default=None)

    def skip_to(self, expected: int) -> list[Item]:
        """Skip the items before this number; return those that are now next, in order.

        No waiting item may have a number below `expected`.
        """
        lowest = self.lowest_waiting
        assert lowest is None or lowest >= expected >= self.expected
        self.expected = expected
        return self._ready()

    def _ready(self) -> list[Item]:
        ready = []
        while self.expected in self._waiting:
            ready.append(self._waiting.pop(self.expected))
            self.expected += 1
        return ready
