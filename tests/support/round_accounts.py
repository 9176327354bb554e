"""`RoundAccounts`: what workers contribute to rounds, and which result contains it.

Results are entered into the `Ledger`, as no worker encodes one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

import numpy as np

from gradwire_codecs import Update
from gradwire_codecs.arrays import Int32Array, Int64Array
from gradwire_codecs.replica import round_sum
from gradwire_codecs.replica.state_sum import StateSum
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.modes.mode import INVERSE
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.state.relay import Relay
from gradwire_server.updates.rounds import Rounds
from support.ledger import Ledger

RANGE_ELEMENTS_MIN: Final = 7
RANGES: Final = 16
"""Contributions of small models are about so many updates, too, with as many elements or more."""


def divided(change: Int32Array, divisor: int) -> Int64Array:
    """Return a change divided by a whole number, rounded half away from zero."""
    whole = (np.abs(change.astype(np.int64)) + divisor // 2) // divisor
    found: Int64Array = np.where(change < 0, -whole, whole)
    return found


def steps_of(rounds: Rounds) -> range:
    """Return the elements with numbers of steps, of which a result has the largest."""
    total = rounds._sum
    return range(total._start, total._stop) if isinstance(total, StateSum) else range(0)


class RoundAccounts:
    """Watches the rounds of all masters of a history.

    Parameters
    ----------
    elements : int
        Parameters of the model.
    """

    def __init__(self, elements: int) -> None:
        self._range_elements = max(elements // RANGES, RANGE_ELEMENTS_MIN)
        self.rounds = 0
        """How many were closed."""
        self._open: dict[Rounds, list[tuple[int, int]]] = {}
        self._left: dict[Rounds, Int64Array] = {}
        """What was contributed, less what has become of it, in quanta."""
        self._parts: dict[tuple[Rounds, int], list[tuple[tuple[int, int], Update]]] = {}
        """By rank: what has come of a gradient."""
        self._dropped: set[tuple[int, int]] = set()
        """Parts of gradients that were never complete."""
        self._workers = 1
        """How many contributed to the round that was closed last."""
        self._last: list[tuple[int, int]] = []
        """What the round contains that was closed last."""
        self._in: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """By rank and sequence of a result's last update: which updates of workers it contains."""

    @contextmanager
    def watching(self, ledger: Callable[[], Ledger]) -> Iterator[None]:
        """Watch what happens in the block; `ledger` returns the one in use."""
        accept, add, close = Relay.accept, Rounds.add, Rounds.close
        forget = Rounds.forget_parts

        def watched_add(
            rounds: Rounds, rank: int, encoded: EncodedUpdate, update: Update, now: float
        ) -> None:
            name = rank, encoded.sequence
            assert encoded.body == ledger().updates[name], f"contributed: {name} is another update"
            self._note(rounds, rank, encoded, update)
            add(rounds, rank, encoded, update, now)

        def watched_close(
            rounds: Rounds, now: float, missing: Collection[int], *, is_last: bool
        ) -> list[Update]:
            self._last = self._open.pop(rounds, [])
            self.rounds += 1
            self._workers = len({rank for rank, _ in self._last}) or self._workers
            if rounds.mode.optimizer is not None:  # a unit test compares its steps
                left = self._left.setdefault(rounds, np.zeros(rounds._elements, np.int64))
                assert (rounds._sum._total == left).all(), "contributed: the sum is another one"
                left[:] = 0
                return close(rounds, now, missing, is_last=is_last)
            means = close(rounds, now, missing, is_last=is_last)
            if not (rounds.mode.has_outer_step or rounds.mode.sparse):  # unit tests compare steps
                self._check_means(rounds, means)
            return means

        def watched_accept(
            relay: Relay,
            rank: int,
            encoded: EncodedUpdate,
            now: float,
            update: Update | None = None,
        ) -> None:
            accept(relay, rank, encoded, now, update)
            if rank >= WORKERS_MAX:
                ledger().relayed_by_master(rank, encoded.sequence, encoded.body)
                if encoded.closes:
                    self._in.setdefault((rank, encoded.sequence), self._last)

        def watched_forget(rounds: Rounds, rank: int) -> None:
            forget(rounds, rank)
            dropped = self._parts.pop((rounds, rank), [])
            self._dropped.update(name for name, _ in dropped)

        with (
            patch.object(Rounds, "forget_parts", watched_forget),
            patch.object(round_sum, "RANGE_ELEMENTS_MAX", self._range_elements),
            patch.object(Rounds, "add", watched_add),
            patch.object(Rounds, "close", watched_close),
            patch.object(Relay, "accept", watched_accept),
        ):
            yield

    def _check_means(self, rounds: Rounds, means: Sequence[Update]) -> None:
        """Check that means leave in the sum what is not in them."""
        left = self._left.setdefault(rounds, np.zeros(rounds._elements, np.int64))
        steps = steps_of(rounds)
        for mean in means:
            each = np.where(np.isin(mean.index, steps), 1, self._workers)
            left[mean.index] -= each * mean.change.astype(np.int64)
        assert (rounds._sum._total == left).all(), "contributed: a mean is not the mean"

    def _note(self, rounds: Rounds, rank: int, encoded: EncodedUpdate, update: Update) -> None:
        """Note what is added to the sum; of a gradient, when all of it is here."""
        parts = self._parts.setdefault((rounds, rank), [])
        parts.append(((rank, encoded.sequence), update))
        if rounds.mode.optimizer is not None and not encoded.closes:
            return
        staleness = 1
        if rounds.mode.staleness == INVERSE:
            staleness = max((rounds.steps or 0) - encoded.based_on, 1)
        left = self._left.setdefault(rounds, np.zeros(rounds._elements, np.int64))
        for name, part in parts:
            self._open.setdefault(rounds, []).append(name)
            change = left[part.index] + divided(part.change, staleness)
            is_largest = np.isin(part.index, steps_of(rounds))
            most = np.maximum(left[part.index], part.change)
            left[part.index] = np.where(is_largest, most, change)
        parts.clear()

    def check(self, versions: Mapping[int, int]) -> None:
        """Check that results contain each update that they are said to contain, once."""
        times = Counter(
            name
            for (rank, sequence), names in self._in.items()
            if sequence <= versions.get(rank, 0)
            for name in names
        )
        for rank, last in versions.items():
            for sequence in range(1, last + 1) if rank < WORKERS_MAX else ():
                found = times.pop((rank, sequence), 0)
                wanted = (rank, sequence) not in self._dropped
                assert found == wanted, f"contributed: {rank}/{sequence} is in {found} rounds"
        assert not times, f"contributed: {dict(times)} are in no replica, but in rounds"
