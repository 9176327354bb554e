"""`RoundAccounts`: what workers contribute to rounds, and which result contains it.

Results are entered into the `Ledger`, as no worker encodes one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from gradwire_codecs import Update, decode
from gradwire_codecs.arrays import Int32Array, Int64Array
from gradwire_codecs.replica import round_sum
from gradwire_codecs.replica.merged_sum import MergedSum
from gradwire_codecs.replica.state_sum import StateSum
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.masters.relaying import Merged
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


def in_sum(rounds: Rounds) -> Int64Array:
    """Return what is in the sum of a round, by element."""
    if not isinstance(rounds._sum, MergedSum):
        return rounds._sum._total
    total = np.zeros(rounds._elements, np.int64)
    for update in rounds._sum._updates:
        total[update.index] += update.change
    return total


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
        self.merged = 0
        """How many sums have come from relays."""
        self._open: dict[Rounds, list[tuple[int, int]]] = {}
        self._left: dict[Rounds, Int64Array] = {}
        """What was contributed, less what has become of it, in quanta."""
        self._parts: dict[tuple[Rounds, int], list[tuple[tuple[int, int], Update]]] = {}
        """By rank: what has come of a gradient."""
        self._dropped: set[tuple[int, int]] = set()
        """Parts of gradients that were never complete."""
        self._contributions: set[Rounds] = set()
        """Whose open round has a complete contribution, not only what workers have left."""
        self._workers: dict[Rounds, int] = {}
        """By how many its last mean was divided."""
        self._last: list[tuple[int, int]] = []
        """What the round contains that was closed last."""
        self._in: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """By rank and sequence of a result's last update: which updates of workers it contains."""

    @contextmanager
    def watching(
        self, ledger: Callable[[], Ledger], is_ours: Callable[[Any], bool] = lambda _: True
    ) -> Iterator[None]:
        """Watch what happens in the block.

        `ledger` returns the one in use, `is_ours` whether `Rounds` or a `Relay` are part of this
        history, where several are played at once.
        """
        log_update, add, close = Relay.log_update, Rounds.add, Rounds.close
        forget, add_sum = Rounds.forget_parts, Rounds.add_sum

        def watched_add(
            rounds: Rounds, rank: int, encoded: EncodedUpdate, update: Update, now: float
        ) -> None:
            name = rank, encoded.sequence
            assert encoded.body == ledger().updates[name], f"contributed: {name} is another update"
            self._note(rounds, rank, encoded, update)
            add(rounds, rank, encoded, update, now)

        def watched_sum(rounds: Rounds, merged: Merged, updates: Sequence[Update]) -> None:
            self._note_sum(rounds, merged, updates, ledger())
            add_sum(rounds, merged, updates)

        def watched_close(rounds: Rounds, now: float, *, is_last: bool) -> list[Update]:
            self._last = self._open.pop(rounds, [])
            self.rounds += 1
            self._note_divisor(rounds)
            return self._watch(rounds, lambda: close(rounds, now, is_last=is_last))

        def watched_log(relay: Relay, rank: int, sequence: int, message: ShapedMessage) -> None:
            log_update(relay, rank, sequence, message)
            if rank >= WORKERS_MAX:
                result = EncodedUpdate.parse(message.payload)
                ledger().relayed_by_master(rank, sequence, result.body)
                if result.closes:
                    self._in.setdefault((rank, sequence), self._last)

        def watched_forget(rounds: Rounds, rank: int) -> None:
            forget(rounds, rank)
            dropped = self._parts.pop((rounds, rank), [])
            self._dropped.update(name for name, _ in dropped)

        def ours(watched: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
            return lambda part, *arguments, **options: (watched if is_ours(part) else plain)(
                part, *arguments, **options
            )

        with (
            patch.object(Rounds, "forget_parts", ours(watched_forget, forget)),
            patch.object(round_sum, "RANGE_ELEMENTS_MAX", self._range_elements),
            patch.object(Rounds, "add", ours(watched_add, add)),
            patch.object(Rounds, "add_sum", ours(watched_sum, add_sum)),
            patch.object(Rounds, "close", ours(watched_close, close)),
            patch.object(Relay, "log_update", ours(watched_log, log_update)),
        ):
            yield

    def _watch(self, rounds: Rounds, close: Callable[[], list[Update]]) -> list[Update]:
        """Close a round, and check what it comes to; a unit test compares steps of optimizers."""
        if rounds.mode.optimizer is not None:
            left = self._left.setdefault(rounds, np.zeros(rounds._elements, np.int64))
            assert (in_sum(rounds) == left).all(), "contributed: the sum is another one"
            left[:] = 0
            return close()
        means = close()
        if not rounds.mode.has_outer_step:
            self._check_means(rounds, means)
        return means

    def _check_means(self, rounds: Rounds, means: Sequence[Update]) -> None:
        """Check that means leave in the sum what is not in them."""
        left = self._left.setdefault(rounds, np.zeros(rounds._elements, np.int64))
        steps = steps_of(rounds)
        for mean in means:
            is_sum = np.isin(mean.index, steps) | rounds.mode.merged
            each = np.where(is_sum, 1, self._workers[rounds])
            left[mean.index] -= each * mean.change.astype(np.int64)
        assert (in_sum(rounds) == left).all(), "contributed: a mean is not the mean"

    def _note_divisor(self, rounds: Rounds) -> None:
        """Note what the mean of a round that closes is divided by."""
        here = len({rank for rank, _ in self._last})
        if rounds in self._contributions:
            self._contributions.discard(rounds)
            self._workers[rounds] = here
        else:  # what is left at the end is a part of what all have changed
            self._workers[rounds] = max(self._workers.get(rounds, 1), here)

    def _note_sum(
        self, rounds: Rounds, merged: Merged, updates: Sequence[Update], ledger: Ledger
    ) -> None:
        """Note a sum of a relay: it has to be that of the updates that are said to be in it."""
        left = self._left.setdefault(rounds, np.zeros(rounds._elements, np.int64))
        change = np.zeros_like(left)
        for update in updates:
            change[update.index] += update.change
        left += change
        for span in merged.spans:
            for sequence in range(span.after + 1, span.sequence + 1):
                name = span.rank, sequence
                self._open.setdefault(rounds, []).append(name)
                one = decode(ledger.updates[name], rounds._elements)
                change[one.index] -= one.change
        assert not change.any(), "contributed: what a relay has merged is something else"
        self.merged += 1

    def _note(self, rounds: Rounds, rank: int, encoded: EncodedUpdate, update: Update) -> None:
        """Note what is added to the sum; of a gradient, when all of it is here."""
        if encoded.closes:
            self._contributions.add(rounds)
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
