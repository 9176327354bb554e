"""`OwnUpdateLog`, `PeerUpdateLog`: the updates that a worker keeps until every worker has them.

A master that lives has what it acknowledged; one that was killed has nothing. So a worker keeps
what it sent until the master says that it is stable, and sends again what turns out to be missing.
It also keeps what others sent, because they may be killed together with the master.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.fields import SEQUENCE_MAX
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.updates import EncodedUpdate

UPDATE_LOG_BYTES_MAX: Final = 64 * MIB
"""Encoded updates kept at most. The outbox bounds those that the master does not have yet. If some
worker is slow, more updates may not be stable yet: then the oldest one is dropped, and cannot be
sent again to a restarted master. The same limit holds for others' updates."""


ENTRY_BYTES: Final = 512
"""What an update takes besides its body: objects, and places in queues."""


@dataclass(frozen=True, slots=True)
class OwnUpdate:
    """An own update as it was encoded."""

    sequence: int
    based_on: int
    """How many updates of others were in the parameters that it was computed with."""
    body: bytes
    clock: int = 0
    """How many of our steps our updates up to this one contain; 0 if that is not told."""
    pace: int = 0
    """Microseconds that a step of ours takes; 0 if that is not told."""
    is_last: bool = False
    """Whether a contribution to a round ends with it."""


class OwnUpdateLog:
    """Own updates in the order of their sequence, which has no gaps.

    Safe for one thread that appends and another one that forgets.

    Parameters
    ----------
    bytes_max : int
        As `nbytes` counts. Beyond it the oldest update is dropped.
    """

    def __init__(self, bytes_max: int = UPDATE_LOG_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._updates: deque[OwnUpdate] = deque()
        self._bytes = 0
        self._forgotten = 0
        """The highest sequence that is kept no longer."""

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._updates)

    @property
    def nbytes(self) -> int:
        """Bytes of their bodies, and `ENTRY_BYTES` for each."""
        return self._bytes

    def append(self, update: OwnUpdate) -> None:
        """Keep the next update."""
        with self._lock:
            self._updates.append(update)
            self._bytes += len(update.body) + ENTRY_BYTES
            while self._bytes > self._bytes_max:
                self._forget()

    def forget(self, sequence: int) -> None:
        """Forget all updates up to this one."""
        with self._lock:
            while self._updates and self._updates[0].sequence <= sequence:
                self._forget()

    @property
    def first(self) -> int | None:
        """Sequence of the oldest update; None if there is none."""
        with self._lock:
            return self._updates[0].sequence if self._updates else None

    def reaches_back_to(self, sequence: int) -> bool:
        """Return whether every update after this one is still kept."""
        return self._forgotten <= sequence

    def between(self, first: int, last: int) -> list[OwnUpdate]:
        """Return the updates from `first` to `last`, as far as they are kept."""
        with self._lock:
            return [update for update in self._updates if first <= update.sequence <= last]

    def after(self, sequence: int) -> list[OwnUpdate]:
        """Return the updates after this one, as far as they are kept."""
        return self.between(sequence + 1, SEQUENCE_MAX)

    def _forget(self) -> None:
        update = self._updates.popleft()
        self._bytes -= len(update.body) + ENTRY_BYTES
        self._forgotten = update.sequence


class PeerUpdateLog:
    """Updates of others by rank, each rank's without a gap.

    Parameters
    ----------
    bytes_max : int
        As `nbytes` counts. Beyond it the oldest update of the rank that takes most is dropped.
    """

    def __init__(self, bytes_max: int = UPDATE_LOG_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._updates: dict[int, deque[EncodedUpdate]] = {}
        self._bytes: dict[int, int] = {}
        self._total = 0
        self.results_kept = 0
        """How many of the last results of each master are kept, though all workers have them."""

    @property
    def nbytes(self) -> int:
        """Bytes of all bodies, and `ENTRY_BYTES` for each."""
        return self._total

    def append(self, rank: int, update: EncodedUpdate) -> None:
        """Keep an update; if it does not come next, forget what was kept of that rank."""
        updates = self._updates.get(rank)
        if updates is not None and updates[-1].sequence + 1 != update.sequence:
            self.forget(rank, updates[-1].sequence)
        self._updates.setdefault(rank, deque()).append(update)
        size = len(update.body) + ENTRY_BYTES
        self._bytes[rank] = self._bytes.get(rank, 0) + size
        self._total += size
        while self._total > self._bytes_max:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self.forget(largest, self._updates[largest][0].sequence)

    def forget(self, rank: int, sequence: int) -> None:
        """Forget the updates of a rank up to this one."""
        updates = self._updates.get(rank)
        while updates and updates[0].sequence <= sequence:
            size = len(updates.popleft().body) + ENTRY_BYTES
            self._bytes[rank] -= size
            self._total -= size
        if updates is not None and not updates:
            del self._updates[rank], self._bytes[rank]

    def forget_stable(self, versions: Mapping[int, int]) -> None:
        """Forget what every worker has."""
        for rank in list(self._updates):
            stable = versions.get(rank, 0)
            if self.results_kept and rank >= WORKERS_MAX:
                stable = min(stable, self._before_last_results(rank))
            self.forget(rank, stable)

    def _before_last_results(self, rank: int) -> int:
        """Return the last update before those results of a rank that are kept."""
        ends = [update.sequence for update in self._updates[rank] if update.closes]
        return ends[-1 - self.results_kept] if len(ends) > self.results_kept else 0

    def first_sequences(self, versions: Mapping[int, int]) -> dict[int, int]:
        """Return by rank the first update kept, for ranks kept up to these versions."""
        return {
            rank: updates[0].sequence
            for rank, updates in self._updates.items()
            if updates[-1].sequence == versions.get(rank)
        }

    def between(self, rank: int, first: int, last: int) -> list[EncodedUpdate]:
        """Return the updates of a rank from `first` to `last`, as far as they are kept."""
        updates = self._updates.get(rank, ())
        return [update for update in updates if first <= update.sequence <= last]
