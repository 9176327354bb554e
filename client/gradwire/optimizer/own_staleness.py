"""`OwnStaleness`: how many updates of others had come when the master had one of this worker's.

A worker counts the updates of others as they come. What it computes with are those that had come
when it last applied any; what the master had accepted before its update has come by the time it
hears that the update is there. The difference is the staleness of that update, as the master had
it, without anybody having to tell.
"""

from collections import deque
from typing import Final

UNDELIVERED_MAX: Final = 4096
"""Updates that are remembered. The outbox holds fewer, and a flush sends no more at a time."""


class OwnStaleness:
    """Of the updates of one worker. The training thread sends, the network thread is told."""

    def __init__(self) -> None:
        self._known: deque[int] = deque(maxlen=UNDELIVERED_MAX)
        self._found: deque[int] = deque(maxlen=UNDELIVERED_MAX)

    def sent(self, updates: int, known: int) -> None:
        """Note that updates are about to be handed over to the network.

        Parameters
        ----------
        updates : int
        known : int
            How many updates of others had come when the parameters were read that they were
            computed with.
        """
        self._known.extend([known] * updates)

    def delivered(self, received: int) -> None:
        """Note that the master has the next one, and how many of others have come by now.

        Updates are delivered in about the order in which they are sent; where they are not, two of
        them have each other's staleness, and mean and distribution are hardly changed.
        """
        if self._known:
            self._found.append(max(received - self._known.popleft(), 0))

    def take_found(self) -> list[int]:
        """Return what was found since the last time."""
        return [self._found.popleft() for _ in range(len(self._found))]
