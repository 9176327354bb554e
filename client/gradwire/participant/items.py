"""`Items`: what a worker trains on, one item after the other, as the master grants them."""

from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from gradwire.errors import DeadlineError, UsageError
from gradwire.replica.training_half import TrainingHalf
from gradwire.replica.waits import Procedure, Wait
from gradwire.worker.membership import Answer
from gradwire_protocol.messages.work import (
    EPOCHS_MAX,
    ITEMS_MAX,
    LEASE_SECONDS_MAX,
    WORK_NAME_CHARACTERS_MAX,
    Plan,
)

LEASES_WAITED: Final = 2.0
"""How many times the lease of an item a worker waits for one: other workers may hold the last
items, and an item that is granted again after its lease is held for another."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item to train on. As an index it is `index`, so ``shards[item]`` is its shard."""

    epoch: int
    """From 0 on."""
    index: int
    """Which of the items of an epoch it is, from 0 on."""

    def __index__(self) -> int:
        """Return `index`."""
        return self.index


class Items:
    """The items of one work, for one loop over them.

    Parameters
    ----------
    plan : Plan
        Checked by `plan_of`.
    half : TrainingHalf
        Of the worker whose loop it is.
    running : set of str
        Works that a loop of this worker runs over.
    """

    _requests = count(1)

    def __init__(self, plan: Plan, half: TrainingHalf, running: set[str]) -> None:
        self._plan = plan
        self._half = half
        self._membership = half.membership
        self._running = running
        self._has_begun = False
        self._last = -1
        """Number of the last item that it had."""
        self._order: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        """How the items of an epoch are shuffled."""
        self._epoch = -1
        """The epoch that `_order` is of."""

    def next(self) -> Procedure[Item | None]:
        """Say that the last item is finished, and wait for another one.

        What peers send meanwhile is applied. Returns None when all items are done, or when training
        is to end.

        Raises
        ------
        UsageError
            If this run has another work of that name, or a loop over it runs already.
        DeadlineError
            If other workers hold the last items for longer than `LEASES_WAITED` leases.
        """
        half, membership, plan = self._half, self._membership, self._plan
        if not self._has_begun:
            if plan.name in self._running:
                raise UsageError(f"a loop over items of {plan.name!r} runs already: end that first")
            self._running.add(plan.name)
            self._has_begun = True
        request = next(self._requests)
        sequence = half.shared.versions[half.shared.rank]
        membership.post(half.worker.work.ask, plan, request, sequence)
        deadline = half.clock() + LEASES_WAITED * plan.lease_seconds
        while True:
            before = membership.news  # whatever changes from here on is seen below, or is news
            half.check_connected()
            if membership.stop_reason is not None:
                return None
            answer = membership.answers.get(plan.name)
            if answer is not None and answer.request == request:
                return self._item_of(answer)
            if half.clock() >= deadline:
                raise DeadlineError(
                    f"waited {LEASES_WAITED * plan.lease_seconds:g} s for {self._purpose()}"
                )
            if not half.is_paused:
                half.applying.pull()
            yield Wait(lambda: membership.news != before, deadline, self._purpose)  # noqa: B023

    def next_alone(self) -> Item | None:
        """Return the next item for a worker that no master grants any; None after the last one.

        They are those after the last one that it was granted.
        """
        number = self._last + 1
        if (
            self._membership.stop_reason is not None
            or number >= self._plan.items * self._plan.epochs
        ):
            return None
        return self._item(number)

    def end(self) -> None:
        """Give back what this worker holds: its loop has ended."""
        if not self._has_begun:
            return
        self._running.discard(self._plan.name)
        self._has_begun = False
        self._membership.post(self._half.worker.work.give_back, self._plan.name)

    def _purpose(self) -> str:
        return (
            f"an item of {self._plan.name!r}: other workers hold the last ones, or none is granted"
        )

    def _item_of(self, answer: Answer) -> Item | None:
        if answer.refused:
            raise UsageError(f"items of {self._plan.name!r}: {answer.refused}")
        if answer.number is None:
            return None
        return self._item(answer.number)

    def _item(self, number: int) -> Item:
        self._last = number
        epoch, place = divmod(number, self._plan.items)
        return Item(epoch, self._shuffled(epoch, place))

    def _shuffled(self, epoch: int, place: int) -> int:
        """Return which item has a place in an epoch, the same one at every worker."""
        seed = self._plan.seed
        if seed is None:
            return place
        if self._order is None or epoch != self._epoch:
            # The legacy generator: its numbers stay what they are (NEP 19), whatever numpy it is.
            legacy = np.random.RandomState([seed, epoch])
            self._order, self._epoch = legacy.permutation(self._plan.items), epoch
        return int(self._order[place])


def plan_of(
    name: str, items: int, *, epochs: int, shuffle_seed: int | None, lease_seconds: float
) -> Plan:
    """Return a work as messages have it. Raises `UsageError` for what none may be."""
    if not 0 < len(name) <= WORK_NAME_CHARACTERS_MAX or not name.isprintable():
        raise UsageError(
            f"items of {name[:WORK_NAME_CHARACTERS_MAX]!r}: the name has to be printable, with 1 "
            f"to {WORK_NAME_CHARACTERS_MAX} characters"
        )
    for what, value, low, high in (
        ("count", items, 1, ITEMS_MAX),
        ("epochs", epochs, 1, EPOCHS_MAX),
        ("shuffle_seed", 0 if shuffle_seed is None else shuffle_seed, 0, 2**32 - 1),
        ("lease_seconds", lease_seconds, 1, LEASE_SECONDS_MAX),
    ):
        if not low <= value <= high:
            hint = ": make each item larger" if what == "count" and value > high else ""
            raise UsageError(f"items of {name!r}: {what}={value} is not from {low} to {high}{hint}")
    return Plan(name, items, epochs, shuffle_seed, int(lease_seconds))
