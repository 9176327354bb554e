"""`InOrder`: puts numbered items that come in any order, more than once, into sequence.

The transport delivers every message of a connection exactly once, in the order they happen to
complete. Where order matters, as for the control messages of a connection and for the updates of
one origin, this restores it, and keeps out what came before over another connection.
"""

from typing import Generic, TypeVar

Item = TypeVar("Item")


class InOrder(Generic[Item]):
    """Items waiting for their predecessors.

    Parameters
    ----------
    expected : int
        The number of the first item.

    Examples
    --------
    >>> letters = InOrder(1)
    >>> letters.push(2, "b"), letters.push(1, "a"), letters.push(2, "b")
    ([], ['a', 'b'], [])
    """

    __slots__ = ("_waiting", "expected")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        """The number of the item that is due."""
        self._waiting: dict[int, Item] = {}

    def __len__(self) -> int:
        """Return how many items wait. Flow control bounds them: each holds its credit."""
        return len(self._waiting)

    def is_duplicate(self, number: int) -> bool:
        """Return whether an item with this number came before."""
        return number < self.expected or number in self._waiting

    def insert(self, number: int, item: Item) -> list[Item]:
        """Take an item; return those whose turn it is, in order."""
        if self.is_duplicate(number):
            return []
        self._waiting[number] = item
        return self._ready()

    @property
    def lowest_waiting(self) -> int | None:
        """The lowest number of an item that waits; None where none does."""
        return min(self._waiting, default=None)

    def pass_over(self, expected: int) -> list[Item]:
        """Wait for no item before this number; return those whose turn it is now, in order.

        None of the items that wait may come before it.
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
