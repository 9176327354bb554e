"""Who sends next: fair turns among connections, and one pace for the link they share.

Congestion control finds the bottleneck on the way to each peer. The link of this machine is the
one that all connections have in common, and there they would compete with each other and lose
packets in their own queue, so one `LinkPacer` stands before all of them.
"""

from typing import Final

from gradwire_protocol.connection.connection import Connection
from gradwire_protocol.connection.train import Train
from gradwire_protocol.limits import TRAIN_BYTES_MAX
from gradwire_protocol.recovery.pacer import Pacer

LEARNING_SECONDS_MIN: Final = 0.01
"""A rate is learned from no shorter time."""

DRAIN_GAIN: Final = 0.98
"""A little less than the link takes, so that the queue before it runs empty."""

GROWTH: Final = 1.1
GROWTH_SECONDS: Final = 1.0
"""A learned rate grows so much, so often, while the link takes everything."""

FORGET_GROWTHS: Final = 20
"""After so many, it is not the link that limits us: 1.1^20 is more than 6 times as much."""


class LinkPacer:
    """What all connections together may send.

    Parameters
    ----------
    rate : float or None
        Bytes per second, headers of IP and below not counted. None learns it: whenever the socket
        takes no more, the link is what limits us, and what went through since it last took no more
        is its rate.
    """

    __slots__ = ("_configured", "_grow_at", "_growths", "_pacer", "_sent", "_since", "rate")

    def __init__(self, rate: float | None = None) -> None:
        self.rate = float("inf") if rate is None else rate
        """Bytes per second; infinite while the link was never found to be full."""
        self._configured = rate is not None
        self._pacer = Pacer(2 * TRAIN_BYTES_MAX)
        self._since: float | None = None
        self._sent = 0
        self._growths = 0
        self._grow_at = float("inf")

    def wait_until(self, now: float) -> float | None:
        """Return when the next train may leave; None for now."""
        if self.rate == float("inf"):
            return None
        if now >= self._grow_at:
            self._grow(now)
        if self._pacer.allowance(self.rate, now) >= TRAIN_BYTES_MAX:
            return None
        return self._pacer.ready_at(TRAIN_BYTES_MAX, self.rate, now)

    def on_sent(self, size: int) -> None:
        """Note that so many bytes left."""
        self._sent += size
        if self.rate != float("inf"):
            self._pacer.on_sent(size)

    def on_idle(self) -> None:
        """Note that there is nothing to send: what the link carries meanwhile is not its rate."""
        self._since = None

    def on_blocked(self, now: float) -> None:
        """Note that the socket takes no more."""
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
    """Connections that may have something to send, each with its share.

    Deficit round robin: a connection in its turn may send a quantum of bytes, and what it overdraws
    is taken off its next turn (Shreedhar and Varghese, SIGCOMM 1995).
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
        """Give a connection a turn, if it waits for none.

        Parameters
        ----------
        connection : Connection
        first : bool
            Before those that are not. That is for messages: acknowledgements can wait for a few
            of them, but not the other way.
        """
        if connection not in self:
            (self._first if first else self._waiting)[connection] = None

    def next_train(self, now: float) -> tuple[Train | None, list[Connection]]:
        """Return the next train, if any, and the connections that have nothing more to send."""
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
