"""`Link`: typed messages over a connection, each in its stream.

Master and worker both use one. It numbers outgoing messages, restores the order of control
messages, and parses bytes into checked records.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

from gradwire_protocol.connection.connection import Connection
from gradwire_protocol.delivery.events import MessageReceived
from gradwire_protocol.delivery.ordering import InOrder
from gradwire_protocol.delivery.outgoing import Priority
from gradwire_protocol.delivery.shaped_message import Payload, ShapedMessage
from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.admission import (
    Follow,
    Join,
    Promise,
    Refuse,
    Roster,
    Voters,
    Welcome,
)
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.kinds import (
    BRANCH_STREAM,
    CONTROL_STREAM,
    LOG_STREAM,
    LOGGED_STREAM,
    RANK_END,
    SNAPSHOT_STREAM,
    Kind,
)
from gradwire_protocol.messages.logged.histograms import Histograms
from gradwire_protocol.messages.logged.scalars import Logged
from gradwire_protocol.messages.relays import (
    Branch,
    Elsewhere,
    Fed,
    Feed,
    Have,
    Receipts,
    Returned,
    Trunk,
    Unfed,
)
from gradwire_protocol.messages.replicas import Blocks, Contents, Digest, Snapshot, Want
from gradwire_protocol.messages.updates import (
    Aside,
    EncodedUpdate,
    Entries,
    Finish,
    Finished,
    Leave,
    Stable,
    Stopping,
)
from gradwire_protocol.messages.work import Grant, StopTraining, Work

Control: TypeAlias = (
    Join
    | Welcome
    | Contents
    | Refuse
    | Roster
    | Stable
    | Finish
    | Finished
    | Leave
    | Stopping
    | Follow
    | Promise
    | Voters
    | Digest
    | Blocks
    | Want
    | Buffers
    | Work
    | Grant
    | StopTraining
    | Aside
    | Trunk
    | Receipts
    | Returned
    | Feed
    | Fed
    | Have
    | Unfed
)

CONTROL_RECORDS: Final[dict[Kind, type[Control]]] = {
    record.KIND: record for record in get_args(Control)
}

LOGGED_RECORDS: Final[dict[Kind, type[Logged | Histograms | Elsewhere]]] = {
    record.KIND: record for record in (Logged, Histograms, Elsewhere)
}


@dataclass(frozen=True, slots=True)
class UpdateReceived:
    """An update of the worker with this rank, both parsed and as it arrived."""

    rank: int
    update: EncodedUpdate
    message: ShapedMessage
    charge: int
    """Credit to release when the update has been used or dropped; until then it counts against the
    sender."""


@dataclass(frozen=True, slots=True)
class EntriesReceived:
    """Entries of the log, or a part of them."""

    entries: Entries
    number: int
    """In `LOG_STREAM`; it rises from one to the next, and leaves out some."""


Message: TypeAlias = (
    Control | Snapshot | EntriesReceived | UpdateReceived | Logged | Histograms | Branch | Elsewhere
)


class Link:
    """The messages to and from one peer."""

    __slots__ = ("_control_in", "_sent", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._sent: Counter[int] = Counter()
        """By stream: the messages numbered here that were sent."""
        self._control_in: InOrder[tuple[Control, int]] = InOrder(0)

    def send(self, record: Control, packed: bytes | None = None) -> int:
        """Send a control message; return its number in `CONTROL_STREAM`.

        `packed` is the packed record, so that one for many receivers is packed only once.
        """
        payload = packed or record.pack()
        return self._send(CONTROL_STREAM, record.KIND, payload, Priority.CONTROL)

    def send_update(self, rank: int, sequence: int, payload: Payload) -> None:
        """Send a packed `EncodedUpdate` of the worker with this rank."""
        self.connection.send(rank, sequence, Kind.UPDATE, payload, Priority.UPDATE)

    def send_block(self, block: Snapshot) -> None:
        """Send a block of a snapshot."""
        self._send(SNAPSHOT_STREAM, Kind.SNAPSHOT, block.pack(), Priority.SNAPSHOT)

    def send_entries(self, message: ShapedMessage) -> None:
        """Send entries of the log, in a message that others may be sent, too."""
        self.connection.relay(message, Priority.UPDATE)

    def send_log(self, entries: Entries) -> None:
        """Send entries of the log that nobody else is sent."""
        self._send(LOG_STREAM, Kind.ENTRIES, entries.pack(), Priority.UPDATE)

    def send_branch(self, branch: Branch, priority: Priority) -> None:
        """Send what a worker behind a relay says, or hears."""
        self._send(BRANCH_STREAM, Kind.BRANCH, branch.pack(), priority)

    def send_logged(self, logged: Logged | Histograms | Elsewhere) -> None:
        """Send what is for people to look at, when nothing else waits."""
        self._send(LOGGED_STREAM, logged.KIND, logged.pack(), Priority.LOGGED)

    def receive(self, event: MessageReceived) -> list[Message]:
        """Parse a message; return the messages that are now in order, which may be none.

        Control messages hold their sender's credit while they wait for their predecessors. An
        update holds it until the caller releases its `charge`. So credit bounds what we store for
        a peer that skips a number. All other messages are released at once.

        Raises
        ------
        InvalidMessageError
            If the message breaks its schema or is in the wrong stream.
        """
        try:
            kind = Kind(event.kind)
        except ValueError:
            raise InvalidMessageError(f"a message has the unknown kind {event.kind}") from None
        if kind is Kind.UPDATE and event.stream < RANK_END:
            update = EncodedUpdate.parse(event.payload)
            if update.sequence != event.number:
                raise InvalidMessageError(
                    f"update {update.sequence} came as message {event.number} of its stream"
                )
            return [UpdateReceived(event.stream, update, event.message, event.charge)]
        if kind is Kind.SNAPSHOT and event.stream == SNAPSHOT_STREAM:
            self.connection.release(event.charge)
            return [Snapshot.parse(event.payload)]
        if kind is Kind.ENTRIES and event.stream == LOG_STREAM:
            self.connection.release(event.charge)
            return [EntriesReceived(Entries.parse(event.payload), event.number)]
        if kind is Kind.BRANCH and event.stream == BRANCH_STREAM:
            self.connection.release(event.charge)
            return [Branch.parse(event.payload)]
        if kind in LOGGED_RECORDS and event.stream == LOGGED_STREAM:
            self.connection.release(event.charge)
            return [LOGGED_RECORDS[kind].parse(event.payload)]
        record = CONTROL_RECORDS.get(kind)
        if record is None or event.stream != CONTROL_STREAM:
            raise InvalidMessageError(
                f"{kind.name} came in stream {event.stream}, which is for other messages"
            )
        ready = self._control_in.insert(event.number, (record.parse(event.payload), event.charge))
        for _, charge in ready:
            self.connection.release(charge)
        return [each for each, _ in ready]

    def _send(self, stream: int, kind: Kind, payload: bytes, priority: Priority) -> int:
        number = self._sent[stream]
        self._sent[stream] += 1
        self.connection.send(stream, number, kind, payload, priority)
        return number
