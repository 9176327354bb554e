"""`Upstream`: the connection of a standby, or of a relay, to the master before it.

It is dialled until a master answers, at one address after the other.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from gradwire_protocol import Connection, GradwireError
from gradwire_protocol.messages.link import Link

DIAL_SECONDS: Final = 1.0
"""Least time between the end of an attempt and the next one."""


class Upstream:
    """A connection that comes and goes.

    Parameters
    ----------
    addresses : sequence of str
        ``host:port`` of each master that may be there.
    dial : callable
        Given ``host:port`` and the time, begins a connection, or raises `GradwireError`.
    called : str
        What messages call that master.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        dial: Callable[[str, float], Connection],
        now: float,
        *,
        called: str,
        logger: logging.Logger,
    ) -> None:
        self.addresses = list(addresses)
        self.address = self.addresses[0]
        """Where it is dialled, or was last."""
        self.link: Link | None = None
        """The connection; None between two attempts."""
        self.due: float | None = now
        """When the next attempt begins; None during one, and where none is to begin."""
        self.complaint = ""
        """The last complaint about the master, so that it is logged once."""
        self._dial = dial
        self._called = called
        self._logger = logger

    def holds(self, connection: Connection) -> bool:
        """Return whether it is this one."""
        return self.link is not None and self.link.connection is connection

    def handle_timer(self, now: float) -> None:
        """Dial if that is due."""
        if self.due is None or now < self.due:
            return
        self.due = None
        try:
            self.link = Link(self._dial(self.address, now))
        except GradwireError as error:
            self.complain(f"cannot reach the {self._called}: {error}")
            self.lose(now)

    def lose(self, now: float) -> None:
        """Note that the connection is lost: the next address is dialled in a moment."""
        self.link, self.due = None, now + DIAL_SECONDS
        turn = self.addresses.index(self.address) + 1 if self.address in self.addresses else 0
        self.address = self.addresses[turn % len(self.addresses)]

    def end(self, code: int, reason: str, now: float) -> None:
        """Close the connection, if there is one, and dial no more."""
        if self.link is not None:
            self.link.connection.close(code, reason, now)
        self.link = self.due = None

    def complain(self, what: str) -> None:
        """Log what is wrong, unless it is what was wrong before."""
        if what != self.complaint:
            self._logger.error("%s", what)
        self.complaint = what
