"""`Kept`: a worker's own updates, until everyone has them.

A master that lives has what it acknowledged, and one that was killed has nothing. So a worker keeps
what it sent until the master says that it is stable, and sends again what turns out to be missing.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gradwire_protocol.limits import MIB

KEPT_BYTES_MAX: Final = 64 * MIB
"""Encoded updates kept at most. Those that the master does not have yet are bounded by the outbox,
and what is not stable by what a master keeps for a slow worker; the oldest one gives way."""


@dataclass(frozen=True, slots=True)
class OwnUpdate:
    """An update as it was encoded."""

    sequence: int
    based_on: int
    """How many updates of others the parameters contained that it was computed with."""
    body: bytes


class Kept:
    """Own updates in the order of their sequence, which has no gaps.

    Parameters
    ----------
    bytes_max : int
        Of their bodies.
    """

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._updates: deque[OwnUpdate] = deque()
        self._bytes = 0
        self._forgotten = 0
        """The highest sequence that was kept and is not any more."""

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._updates)

    @property
    def nbytes(self) -> int:
        """Bytes of their bodies."""
        return self._bytes

    def put(self, update: OwnUpdate) -> None:
        """Keep the next one."""
        self._updates.append(update)
        self._bytes += len(update.body)
        while self._bytes > self._bytes_max:
            self._forget()

    def forget(self, sequence: int) -> None:
        """Forget all updates up to this one."""
        while self._updates and self._updates[0].sequence <= sequence:
            self._forget()

    def reaches_back_to(self, sequence: int) -> bool:
        """Return whether every update after this one is still there."""
        return self._forgotten <= sequence

    def after(self, sequence: int) -> Iterator[OwnUpdate]:
        """Iterate over the updates after this one, as far as they are kept."""
        return iter([update for update in self._updates if update.sequence > sequence])

    def _forget(self) -> None:
        update = self._updates.popleft()
        self._bytes -= len(update.body)
        self._forgotten = update.sequence
