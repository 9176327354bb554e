"""The sum of a round: what workers have left at the end, and when it may come."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from gradwire_codecs import Update
from gradwire_codecs.replica.fragments import fragments_of
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.modes.mode import AVERAGING, DILOCO, USUAL, Mode
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.updates.rounds import Rounds

ELEMENTS: Final = 10
LAYOUT: Final = Layout((Tensor("weights", (ELEMENTS,)),))
WORKERS: Final = 2
CHANGE: Final = 10_000


class History:
    """Two workers, whose rounds are played by hand."""

    def __init__(self, mode: Mode) -> None:
        self.rounds = Rounds(mode, LAYOUT, {})
        self.fragments = fragments_of([(0, ELEMENTS)], mode.streams)
        self.replica = np.zeros(ELEMENTS, np.int64)
        self.sequences = [0] * WORKERS
        self.turn = 0

    def add(self, rank: int, ranges: Sequence[tuple[int, int]], *, is_rest: bool) -> None:
        """Add what a worker has changed: all elements of these ranges, by its rank and 1."""
        self.sequences[rank] += 1
        sequence = self.sequences[rank]
        for start, stop in ranges:
            index = np.arange(start, stop, dtype=np.uint32)
            change = np.full(len(index), CHANGE * (rank + 1), np.int32)
            encoded = EncodedUpdate(sequence, 0, b"", closes={} if is_rest else {rank: sequence})
            self.rounds.add(rank, encoded, Update(start, stop, 1, index, change), 0.0)

    def contribute(self, rank: int) -> None:
        self.add(rank, self.fragments[self.turn % len(self.fragments)], is_rest=False)

    def give_rest(self, rank: int) -> None:
        self.add(rank, [(0, ELEMENTS)], is_rest=True)

    def close(self, *, is_last: bool = False) -> None:
        self.turn += 1
        for update in self.rounds.close(0.0, is_last=is_last):
            if update.stop <= ELEMENTS:
                self.replica[update.start : update.stop] += update.change_of_range()


@pytest.mark.parametrize(
    "mode", [USUAL[AVERAGING], USUAL[DILOCO], replace(USUAL[DILOCO], streams=2)], ids=str
)
@pytest.mark.parametrize("early", [[0], [1], [0, 1]], ids=str)
def test_what_is_left_may_come_before_the_last_round_closes(early: list[int], mode: Mode) -> None:
    ends = []
    for before in ([], early):
        history = History(mode)
        turns = 3 * mode.streams
        for turn in range(turns):
            for rank in range(WORKERS):
                history.contribute(rank)
            for rank in before if turn == turns - 1 else ():
                history.give_rest(rank)
            history.close()
        for rank in range(WORKERS):
            if rank not in before:
                history.give_rest(rank)
        history.close(is_last=True)
        ends.append(history.replica)

    late, other = ends
    coarsest = CHANGE * 3 * WORKERS / 127  # of a mean in 8 bits, which the last result makes up for
    assert np.abs(late - other).max() <= coarsest
    assert np.abs(late).min() > 10 * coarsest
