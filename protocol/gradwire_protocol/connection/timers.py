"""`Timers`: which connection's deadline is the next.

Most deadlines move with every packet, to a later time. So one that has moved to later keeps its
place, fires in vain, and is armed anew then; only an earlier one takes its place.
"""

import heapq
from collections.abc import Hashable, Iterator
from itertools import count
from typing import Final, Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)

TIMERS_SPARE: Final = 64
"""Overtaken timers kept before they are thrown out."""


class Timers(Generic[Owner]):
    """Deadlines of connections, or of whatever has one each."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Owner]] = []
        """Those that were overtaken by an earlier one are there, too."""
        self._armed: dict[Owner, float] = {}
        self._tiebreak = count()

    def __len__(self) -> int:
        """Return how many are kept, overtaken ones included."""
        return len(self._heap)

    def deadline_of(self, owner: Owner) -> float | None:
        """Return when one has its turn; None where it has none."""
        return self._armed.get(owner)

    def arm(self, owner: Owner, deadline: float | None) -> None:
        """See to it that one has its turn by its deadline, if it has any."""
        if deadline is None or deadline >= self._armed.get(owner, float("inf")):
            return
        self._armed[owner] = deadline
        heapq.heappush(self._heap, (deadline, next(self._tiebreak), owner))
        if len(self._heap) > 2 * len(self._armed) + TIMERS_SPARE:
            self._heap = [(when, next(self._tiebreak), each) for each, when in self._armed.items()]
            heapq.heapify(self._heap)

    def forget(self, owner: Owner) -> None:
        """Give one no turn any more."""
        self._armed.pop(owner, None)

    def pop_due(self, now: float) -> Iterator[Owner]:
        """Iterate over those whose turn it is; each has to be armed anew."""
        while self._heap and self._heap[0][0] <= now:
            deadline, _, owner = heapq.heappop(self._heap)
            if self._armed.get(owner) == deadline:  # else it was overtaken by an earlier one
                del self._armed[owner]
                yield owner

    @property
    def next_deadline(self) -> float | None:
        """When the first one has its turn."""
        while self._heap and self._armed.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
