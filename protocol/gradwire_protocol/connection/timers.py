"""`Timers`: finds the connection with the next deadline.

Most deadlines move to a later time with every packet. A timer is therefore not moved: it fires
early and is armed again then. Only an earlier deadline replaces it.
"""

import heapq
from collections.abc import Hashable, Iterable, Iterator
from itertools import count
from typing import Final, Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)

TIMERS_SPARE: Final = 64
"""Replaced timers kept before they are removed."""


def earliest(deadlines: Iterable[float | None]) -> float | None:
    """Return the first of some deadlines; None if there is none."""
    # A loop takes half the time of `min` with a generator, and this is called for every packet.
    first = None
    for deadline in deadlines:
        if deadline is not None and (first is None or deadline < first):
            first = deadline
    return first


class Timers(Generic[Owner]):
    """Deadlines of connections, or of any other owners with one each."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Owner]] = []
        """Also holds timers that were replaced by earlier ones."""
        self._armed: dict[Owner, float] = {}
        self._tiebreak = count()

    def __len__(self) -> int:
        """Return the number of timers, replaced ones included."""
        return len(self._heap)

    def deadline_of(self, owner: Owner) -> float | None:
        """Return when an owner's timer fires; None if it has none."""
        return self._armed.get(owner)

    def arm(self, owner: Owner, deadline: float | None) -> None:
        """Make an owner's timer fire no later than its deadline, if it has one."""
        if deadline is None or deadline >= self._armed.get(owner, float("inf")):
            return
        self._armed[owner] = deadline
        heapq.heappush(self._heap, (deadline, next(self._tiebreak), owner))
        if len(self._heap) > 2 * len(self._armed) + TIMERS_SPARE:
            self._heap = [(when, next(self._tiebreak), each) for each, when in self._armed.items()]
            heapq.heapify(self._heap)

    def cancel(self, owner: Owner) -> None:
        """Cancel an owner's timer."""
        self._armed.pop(owner, None)

    def pop_due(self, now: float) -> Iterator[Owner]:
        """Yield the owners whose timers fire; each has to be armed again."""
        while self._heap and self._heap[0][0] <= now:
            deadline, _, owner = heapq.heappop(self._heap)
            if self._armed.get(owner) == deadline:  # else it was replaced
                del self._armed[owner]
                yield owner

    @property
    def next_deadline(self) -> float | None:
        """When the first timer fires."""
        while self._heap and self._armed.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
