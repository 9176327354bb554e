"""`Ledger`: an account of every update, of its own, with plain dictionaries.

It follows them from their encoding on; what workers and master have in the end is compared with it.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from gradwire_codecs import decode
from gradwire_codecs.arrays import Int32Array


class Ledger:
    """Every update ever encoded, by (rank, sequence), and who has applied it."""

    def __init__(self) -> None:
        self.updates: dict[tuple[int, int], bytes] = {}
        self.encoders: dict[tuple[int, int], str] = {}
        """Who encoded an update: ranks are used again."""
        self.applied: Counter[tuple[str, int, int]] = Counter()

    def encoded(self, worker: str, rank: int, sequence: int, body: bytes) -> None:
        """Note a new update; its origin has it.

        A rank goes on to another worker where the last update accepted from it ended. So a name
        can come twice, if nobody has ever seen what had it first.
        """
        last = self.encoders.get((rank, sequence))
        if last is not None:
            assert self.who_applied(rank, sequence) == [last], f"{rank}/{sequence} was used twice"
            del self.applied[last, rank, sequence]
        self.updates[rank, sequence] = body
        self.encoders[rank, sequence] = worker
        self.note(worker, rank, sequence)

    def relayed_by_master(self, rank: int, sequence: int, body: bytes) -> None:
        """Note a result of a round."""
        known = self.updates.setdefault((rank, sequence), body)
        assert known == body, f"bits: result {rank}/{sequence} is another one"
        self.encoders[rank, sequence] = "a master"

    def note(self, worker: str, rank: int, sequence: int) -> None:
        """Note that a worker has applied an update."""
        self.applied[worker, rank, sequence] += 1
        assert self.applied[worker, rank, sequence] == 1, (
            f"{worker} applied update {rank}/{sequence} twice"
        )

    def take_back(self, worker: str, rank: int, sequence: int) -> None:
        """Note that a worker has not applied an update any more."""
        assert self.applied[worker, rank, sequence] == 1
        del self.applied[worker, rank, sequence]

    def who_applied(self, rank: int, sequence: int) -> list[str]:
        """Return the workers that have applied an update."""
        return [name for name, *update in self.applied if update == [rank, sequence]]

    def cut(self, versions: Mapping[int, int]) -> None:
        """Forget all updates that a version vector does not contain: everybody has lost them."""
        for rank, sequence in [*self.updates]:
            if sequence > versions.get(rank, 0):
                del self.updates[rank, sequence], self.encoders[rank, sequence]
        for name, rank, sequence in [*self.applied]:
            if sequence > versions.get(rank, 0):
                del self.applied[name, rank, sequence]

    def sum_of(self, versions: Mapping[int, int], elements: int) -> Int32Array:
        """Add up the updates that a version vector contains, in the plainest way."""
        values = np.zeros(elements, np.int64)
        for (rank, sequence), body in self.updates.items():
            if sequence <= versions.get(rank, 0):
                update = decode(body, elements)
                for i, change in zip(update.index.tolist(), update.change.tolist(), strict=True):
                    values[i] += change
        return values.astype(np.int32)
