"""`OwnUpdateLog`: the updates that a worker has made and keeps until every worker has them.

A master that lives has what it acknowledged; one that was killed has nothing. So a worker keeps
what it sent until the master says that it is stable, and sends again what turns out to be missing.
"""

from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import Final

from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.fields import SEQUENCE_MAX

UPDATE_LOG_BYTES_MAX: Final = 64 * MIB
"""Encoded updates kept at most. The outbox bounds those that the master does not have yet. If some
worker is slow, more updates may not be stable yet: then the oldest one is dropped, and cannot be
sent again to a restarted master. The same limit holds for what is kept of the log."""


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
