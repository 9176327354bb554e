"""`OwnStaleness`: the staleness of a worker's own updates, measured without the master's help.

A worker counts the updates of others as they arrive. It computes an update with those that had
arrived when it last applied any. When it learns that the master has its update, all updates that
the master accepted before it have arrived too. The difference of the two counts is the staleness of
the update at the master.
"""

from collections import deque
from typing import Final

UNDELIVERED_MAX: Final = 4096
"""Updates to remember. The outbox holds fewer, and a flush sends no more than these at a time."""


class OwnStaleness:
    """The training thread calls `on_sent` and `drain`, the network thread `on_delivered`."""

    def __init__(self) -> None:
        self._known: deque[int] = deque(maxlen=UNDELIVERED_MAX)
        self._measured: deque[int] = deque(maxlen=UNDELIVERED_MAX)

    def on_sent(self, updates: int, known: int) -> None:
        """Note that a number of updates is about to be sent.

        Parameters
        ----------
        updates : int
        known : int
            Updates of others that had arrived when the worker read the parameters from which it
            computed these updates.
        """
        self._known.extend([known] * updates)

    def on_delivered(self, received: int) -> None:
        """Note that the master has the next update, and how many updates of others have arrived.

        Updates arrive in about the order in which they are sent. Where two arrive in the other
        order, each gets the other's staleness, which hardly changes mean and distribution.
        """
        if self._known:
            self._measured.append(max(received - self._known.popleft(), 0))

    def drain(self) -> list[int]:
        """Return the staleness of the updates that were delivered since the last call."""
        return [self._measured.popleft() for _ in range(len(self._measured))]
