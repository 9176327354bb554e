"""`Relays`: the relays that stand before this master; it passes on their messages.

Of a relay's peers, their connections are reported like all others. Their sums of updates go to the
master, of which there is one: a master that relays stand before serves one run.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from gradwire_protocol import (
    CloseCode,
    Connection,
    Disconnected,
    Event,
    InvalidMessageError,
    MessageDelivered,
    MessageReceived,
    Role,
)
from gradwire_protocol.messages.admission import Join, RefusalCode, Refuse
from gradwire_protocol.messages.kinds import RANK_END, EndCode
from gradwire_protocol.messages.link import Link, Message
from gradwire_protocol.messages.masters.relaying import (
    Arrived,
    Aside,
    Carried,
    Ended,
    Merged,
    Opened,
    Reached,
    Relaying,
)
from gradwire_server.branches.branch import Branch, relayed
from gradwire_server.config import AUTO, PLAIN, MasterConfig
from gradwire_server.master.master import Master
from gradwire_server.master.reception import name_of
from gradwire_server.runs.masters import Masters
from gradwire_server.state.roster import role_of

logger = logging.getLogger("gradwire.master")


DETOUR_SECONDS: Final = 60.0
"""After it was sent to a relay, a worker that comes again within this time is let in."""

PEERS_ALIKE: Final = 8
"""Relays of which one has so many peers more than another one are chosen by the way there."""


def _distance(branch: Branch) -> tuple[int, float]:
    """Return what is least of the relay that is sent the next worker."""
    return (branch.connected + branch.expected) // PEERS_ALIKE, branch.link.connection.rtt or 0.0


class Relays:
    """The relays of a daemon.

    Parameters
    ----------
    report : callable
        Called with the connection of a relay's peer and an event.
    """

    def __init__(
        self,
        config: MasterConfig,
        masters: Masters,
        report: Callable[[Connection, Event], None],
    ) -> None:
        self._config = config
        self._masters = masters
        self._report = report
        self._numbers = count(1)
        self._branches: dict[Connection, Branch] = {}
        self._sent: dict[bytes, float] = {}
        """By worker id: until when it is let in here, after it was sent to a relay."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._branches)

    @property
    def branches(self) -> Sequence[Branch]:
        """All of them, in the order they came."""
        return tuple(self._branches.values())

    def status(self) -> list[dict[str, Any]]:
        """Return what they are, as values that JSON has."""
        return [
            {"number": each.number, "address": each.address, "peers": each.connected}
            for each in self.branches
        ]

    def holds(self, connection: Connection) -> bool:
        """Return whether a connection is that of a relay."""
        return connection in self._branches

    def refusal(self, connection: Connection) -> Refuse | None:
        """Return why a peer may not stand before this master as a relay; None if it may."""
        identity = connection.identity
        if identity is not None and role_of(connection) is not Role.RELAY:
            return Refuse(
                RefusalCode.ROLE,
                f"the key of {identity.name} is not a relay's: start the relay with the run key",
            )
        if self._config.topology == PLAIN:
            return Refuse(
                RefusalCode.ROLE,
                "this master was started for workers alone: start it with --topology tree, or auto",
            )
        terms = self._masters.first.master.terms
        return None if terms.in_charge else terms.refusal()

    def detour(self, link: Link, join: Join) -> Refuse | None:
        """Return the refusal for a peer that is to join at a relay; None if it may join here.

        It may if it was sent to one before: then it could not reach that.
        """
        now = self._masters.now
        if self._config.topology != AUTO or relayed(link.connection) is not None:
            return None
        for worker_id in [each for each, until in self._sent.items() if now >= until]:
            del self._sent[worker_id]
        nearest = min(self._branches.values(), key=_distance, default=None)
        if nearest is None or self._sent.pop(join.worker_id, None) is not None:
            return None
        self._sent[join.worker_id] = now + DETOUR_SECONDS
        nearest.expected += 1
        return Refuse(
            RefusalCode.USE_RELAY,
            f"this master has relays: join at the one at {nearest.address}",
            nearest.address,
        )

    def admit(self, link: Link, relaying: Relaying, messages: Sequence[Message]) -> None:
        """Take a relay, and act on the messages that came with its request."""
        connection = link.connection
        branch = Branch(link, relaying, next(self._numbers), self._report)
        self._branches[connection] = branch
        terms = self._masters.first.master.terms
        link.send(Relaying(branch.address, branch.master, terms.other))
        logger.info("a relay is here, which workers reach at %s", relaying.address)
        self._receive_all(branch, messages)

    def handle_event(self, connection: Connection, event: Event) -> None:
        """Act on an event of the connection of a relay."""
        branch = self._branches[connection]
        match event:
            case MessageReceived():
                try:
                    messages = branch.link.receive(event)
                except InvalidMessageError as error:
                    self._expel(branch, CloseCode.INVALID_MESSAGE, str(error))
                else:
                    self._receive_all(branch, messages)
            case MessageDelivered(stream, number) if stream < RANK_END:
                self._tell(Master.note_fed, branch, stream, number)
            case Disconnected():
                self._lose(branch, event.reason)

    def conclude(self) -> None:
        """Close the connections of relays that are too slow, or do what they must not.

        Those of all, where this master is not in charge any more.
        """
        master = self._masters.first.master
        for branch in self.branches:
            if not self.holds(branch.link.connection):
                continue  # it was behind one that is gone
            slow = master.branches.too_slow(branch)
            if branch.failure is not None:
                self._expel(branch, CloseCode.INVALID_MESSAGE, branch.failure)
            elif slow is not None:
                self._expel(branch, EndCode.TOO_SLOW, slow)
            elif not master.terms.in_charge:
                self._expel(branch, EndCode.STEPPED_DOWN, "this master is not in charge any more")

    def close(self, reason: str) -> None:
        """Close all connections with a reason: the master ends, and another one may go on."""
        has_other = self._masters.first.master.terms.other is not None
        code = EndCode.STEPPED_DOWN if has_other else EndCode.STOPPED
        for connection in self._branches:
            connection.close(code, reason, self._masters.now)
        self._branches.clear()

    # Private.

    def _receive_all(self, branch: Branch, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                if not self.holds(branch.link.connection):
                    return
                self._receive(branch, message)
        except InvalidMessageError as error:
            self._expel(branch, CloseCode.INVALID_MESSAGE, str(error))

    def _receive(self, branch: Branch, message: Message) -> None:
        match message:
            case Opened() | Carried() | Arrived() | Ended():
                branch.receive(message)
            case Merged():
                self._tell(Master.receive_merged, branch, message)
            case Reached():
                self._tell(Master.receive_reached, branch, message)
            case Aside():
                self._tell(Master.quarantine, branch.peer(message.peer))
            case _:
                raise InvalidMessageError(f"{name_of(message)} from a relay")

    def _expel(self, branch: Branch, code: int, reason: str) -> None:
        branch.link.connection.close(code, reason, self._masters.now)
        self._lose(branch, reason)

    def _lose(self, branch: Branch, reason: str) -> None:
        del self._branches[branch.link.connection]
        logger.warning(
            "the relay at %s is gone, and with it its %d connections: %s",
            branch.address,
            branch.connected,
            reason,
        )
        self._tell(Master.lose_branch, branch)
        branch.lose(f"the relay at {branch.address} is gone: {reason}")

    def _tell(self, act: Callable[..., None], *arguments: object) -> None:
        served, now = self._masters.first, self._masters.now
        self._masters.guard(served, act, served.master, *arguments, now)
