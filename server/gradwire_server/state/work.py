"""`WorkLedger`: which items of a work are done, which worker holds which, and which go out next."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from gradwire_protocol.messages.work import FINISHED_MAX, OPEN_MAX, Ledger, Plan

HELD_SHOWN_MAX: Final = 16
"""Held items that a status names, the oldest ones."""


@dataclass(slots=True)
class OpenItem:
    """An item that was granted and is not done."""

    rank: int | None
    """The worker that holds it, or has finished it; None if no worker is known to."""
    due: float
    """From when on it may be granted again."""
    sequence: int | None = None
    """Once its worker has finished it, the sequence of that worker's last update then."""


class WorkLedger:
    """The items of one work.

    Parameters
    ----------
    plan : Plan
    ledger : Ledger, optional
        Of a checkpoint.
    """

    def __init__(self, plan: Plan, ledger: Ledger | None = None) -> None:
        ledger = ledger or Ledger()
        self.plan = plan
        self.returned = 0
        """How many items were given back, or taken back from workers that were lost."""
        self.waiting: dict[int, None] = {}
        """The ranks that want an item, in the order in which they have asked."""
        self._next = ledger.next
        self._open = {number: OpenItem(None, 0.0) for number in ledger.open}

    # What workers say.

    def merge(self, ledger: Ledger, due: float) -> None:
        """Take over what a worker knows that this ledger does not: what is done, what is open.

        That is news after a restart. Until `due`, other workers may say which of the items that
        are open they hold.
        """
        known = set(ledger.open)
        for number in [n for n in self._open if n < ledger.next and n not in known]:
            del self._open[number]
        for number in ledger.open:
            if number >= self._next:
                self._open[number] = OpenItem(None, due)
        self._next = max(self._next, ledger.next)

    def hold(self, rank: int, number: int, now: float) -> None:
        """Note that a worker trains on an item."""
        item = self._open.get(number)
        if item is not None and item.rank is None:
            self._open[number] = OpenItem(rank, now + self.plan.lease_seconds)

    def finish(self, rank: int, number: int, sequence: int) -> None:
        """Note that a worker has trained on an item; the first worker that has counts."""
        item = self._open.get(number)
        if item is not None and item.sequence is None:
            self._open[number] = OpenItem(rank, inf, sequence)

    def give_back(self, rank: int, *, but: Collection[int] = ()) -> None:
        """Note that a worker holds no item any more, or none but these."""
        for number, item in self._open.items():
            if item.rank == rank and item.sequence is None and number not in but:
                self._return(number)

    def lose(self, rank: int, accepted: int) -> None:
        """Note that a worker is gone, and that this was its last update."""
        self.waiting.pop(rank, None)
        self.give_back(rank)
        for number, item in self._open.items():
            if item.rank == rank and item.sequence is not None and item.sequence > accepted:
                self._return(number)

    # What follows.

    def settle(self, stable: Mapping[int, int]) -> None:
        """Note which items are done: all live workers have the updates that came of them."""
        self._open = {n: item for n, item in self._open.items() if not _is_in(item, stable)}

    def take(self, rank: int, now: float) -> int | None:
        """Grant an item to a worker; None if there is none for it now."""
        own = [item for item in self._open.values() if item.rank == rank]
        if len(own) >= FINISHED_MAX:
            return None
        due = [n for n, item in self._open.items() if item.due <= now]
        if due:
            number = min(due)
        elif self._next < self.plan.numbers and len(self._open) < OPEN_MAX:
            number = self._next
            self._next += 1
        else:
            return None
        self._open[number] = OpenItem(rank, now + self.plan.lease_seconds)
        return number

    def next_due(self, now: float) -> float | None:
        """Return from when on another item may be granted again; None if none ever may."""
        later = (item.due for item in self._open.values() if now < item.due < inf)
        return min(later, default=None)

    @property
    def is_over(self) -> bool:
        """Whether all items are done."""
        return self._next == self.plan.numbers and not self._open

    def counts(self) -> dict[str, int]:
        """Return how many items are done, finished, held by workers, and left."""
        items = self._open.values()
        finished = sum(item.sequence is not None for item in items)
        held = sum(item.rank is not None for item in items) - finished
        done = self._next - len(self._open)
        left = self.plan.numbers - done - finished - held
        return {"done": done, "finished": finished, "held": held, "left": left}

    def ledger(self, versions: Mapping[int, int] | None = None) -> Ledger:
        """Return what is done; with `versions`, what is in a replica with these updates."""
        versions = versions or {}
        open_items = (n for n, item in self._open.items() if not _is_in(item, versions))
        return Ledger(self._next, tuple(sorted(open_items)))

    def status(self, now: float) -> dict[str, Any]:
        """Return what there is to say of it, as values that JSON has."""
        plan = self.plan
        held = sorted(
            (item.due, number, item.rank)
            for number, item in self._open.items()
            if item.rank is not None and item.sequence is None
        )
        return {
            "name": plan.name,
            "items": plan.items,
            "epochs": plan.epochs,
            **self.counts(),
            "returned": self.returned,
            "longest_held": [
                {
                    "number": number,
                    "rank": rank,
                    "seconds": round(now - due + plan.lease_seconds, 1),
                }
                for due, number, rank in held[:HELD_SHOWN_MAX]
            ],
        }

    def _return(self, number: int) -> None:
        self._open[number] = OpenItem(None, 0.0)
        self.returned += 1


def _is_in(item: OpenItem, versions: Mapping[int, int]) -> bool:
    """Return whether an item is finished, and a replica has all that came of it."""
    if item.rank is None or item.sequence is None:
        return False
    return versions.get(item.rank, 0) >= item.sequence
