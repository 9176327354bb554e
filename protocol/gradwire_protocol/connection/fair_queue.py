"""Order of sending: fair turns among connections, and one pace for their common link.

Congestion control finds the bottleneck on the way to each peer. All connections share the link of
this machine, where they would compete and lose packets in their own queue, so one `LinkPacer`
limits them together.
"""

from typing import Final

from gradwire_protocol.connection.connection import Connection
from gradwire_protocol.connection.train import Train
from gradwire_protocol.limits import TRAIN_BYTES_MAX
from gradwire_protocol.recovery.pacer import Pacer

LEARNING_SECONDS_MIN: Final = 0.01
"""Shortest time over which a rate is measured."""

DRAIN_GAIN: Final = 0.98
"""Share of the measured rate that is used, so that the queue in front of the link drains."""

GROWTH: Final = 1.1
GROWTH_SECONDS: Final = 1.0
"""Growth of a learned rate per interval, while the link accepts everything."""

FORGET_GROWTHS: Final = 20
"""Growths after which the link no longer counts as the limit: 1.1^20 is more than 6."""


class LinkPacer:
    """Paces all connections together.

    Parameters
    ----------
    rate : float or None
        Bytes per second without the headers of IP and below. With None the rate is learned: when
        the socket blocks, the link is the limit, and the bytes sent since it last blocked give its
        rate.
    """

    __slots__ = ("_configured", "_grow_at", "_growths", "_pacer", "_sent", "_since", "rate")

    def __init__(self, rate: float | None = None) -> None:
        self.rate = float("inf") if rate is None else rate
        """Bytes per second; infinite until the link was found to be full."""
        self._configured = rate is not None
        self._pacer = Pacer(2 * TRAIN_BYTES_MAX)
        self._since: float | None = None
        self._sent = 0
        self._growths = 0
        self._grow_at = float("inf")

    def wait_until(self, now: float) -> float | None:
        """Return when the next train may leave; None if it may leave now."""
        if self.rate == float("inf"):
            return None
        if now >= self._grow_at:
            self._grow(now)
        if self._pacer.allowance(self.rate, now) >= TRAIN_BYTES_MAX:
            return None
        return self._pacer.ready_at(TRAIN_BYTES_MAX, self.rate, now)

    def on_sent(self, size: int) -> None:
        """Record the bytes of a train that left."""
        self._sent += size
        if self.rate != float("inf"):
            self._pacer.on_sent(size)

    def on_idle(self) -> None:
        """Record a pause: the bytes sent during one do not show the link's rate."""
        self._since = None

    def on_blocked(self, now: float) -> None:
        """Record that the socket accepts no more."""
        if self._configured:
            return
        if self._since is None:
            self._since, self._sent = now, 0
            return
        elapsed = now - self._since
        if elapsed < LEARNING_SECONDS_MIN or not self._sent:
            return
        self.rate = DRAIN_GAIN * self._sent / elapsed
        self._since, self._sent = now, 0
        self._growths = 0
        self._grow_at = now + GROWTH_SECONDS

    def _grow(self, now: float) -> None:
        self._growths += 1
        self._since = None
        self._grow_at = now + GROWTH_SECONDS
        self.rate = float("inf") if self._growths > FORGET_GROWTHS else GROWTH * self.rate


class FairQueue:
    """Connections with data to send, served in fair turns.

    Deficit round robin: in its turn a connection may send a quantum of bytes. Bytes sent beyond
    that are deducted from its next turn (Shreedhar and Varghese, SIGCOMM 1995).
    """

    __slots__ = ("_allowed", "_first", "_waiting")

    def __init__(self) -> None:
        self._first: dict[Connection, None] = {}
        self._waiting: dict[Connection, None] = {}
        self._allowed: dict[Connection, int] = {}

    def __len__(self) -> int:
        """Return how many connections wait for a turn."""
        return len(self._first) + len(self._waiting)

    def __contains__(self, connection: Connection) -> bool:
        """Return whether a connection waits for a turn."""
        return connection in self._first or connection in self._waiting

    def enqueue(self, connection: Connection, *, first: bool = False) -> None:
        """Queue a connection for a turn, unless it is queued already.

        Parameters
        ----------
        first : bool
            Whether it goes before connections that are not first. Set for messages:
            acknowledgements can wait for a few messages, but not the reverse.
        """
        if connection not in self:
            (self._first if first else self._waiting)[connection] = None

    def next_train(self, now: float) -> tuple[Train | None, list[Connection]]:
        """Return the next train, if any, and the connections with nothing more to send."""
        done: list[Connection] = []
        while queue := self._first or self._waiting:
            connection = next(iter(queue))
            allowed = self._allowed.get(connection, TRAIN_BYTES_MAX)
            if allowed <= 0:
                del queue[connection]
                self._waiting[connection] = None
                self._allowed[connection] = allowed + TRAIN_BYTES_MAX
                continue
            train = connection.next_train(now)
            if train is not None:
                self._allowed[connection] = allowed - train.size
                return train, done
            del queue[connection]
            self._allowed.pop(connection, None)
            done.append(connection)
        return None, done
