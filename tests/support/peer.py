"""A peer that says what a test makes it say, sensible or not, over a simulated connection."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from gradwire_codecs.arrays import Int32Array
from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
    MessageReceived,
)
from gradwire_protocol.delivery.outgoing import Priority
from gradwire_protocol.messages.admission import (
    CODEC_VERSION,
    Join,
    LogName,
    Peer,
    Place,
    Resume,
    Welcome,
)
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import CONTROL_STREAM
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.link import Control, EntriesReceived, Link, Message
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import EncodedUpdate, Entries, Span
from support.applications import Untimed
from support.network import SimulatedNetwork

LOG = LogName(1 << 32)
LAYOUT = Layout((Tensor("weights", (6,)),))

Kept = TypeVar("Kept", bound=Message)


def join_request(
    *,
    run: str | None = None,
    worker_id: bytes = b"r" * WORKER_ID_BYTES,
    name: str = "rogue",
    rank: int | None = None,
    codec: int = CODEC_VERSION,
    quantum_exponent: int = -24,
    layout: Layout = LAYOUT,
    resume: Resume | None = None,
) -> Join:
    """Return a JOIN that is as it should be but for what the caller says."""
    return Join(run, worker_id, name, rank, codec, quantum_exponent, layout, resume)


def welcome(
    rank: int = 0,
    layout: Layout = LAYOUT,
    versions: Mapping[int, int] | None = None,
    *,
    run: str = "default",
    sequence: int = 0,
    roster: tuple[Peer, ...] = (),
    founder: bool = False,
    place: Place | None = None,
    **others: Any,
) -> Welcome:
    """Return a WELCOME to a run with the finest quantum."""
    place = place or Place(LOG, sum((versions or {}).values()))
    return Welcome(
        run, rank, sequence, -24, layout, roster, founder, place, versions or {}, **others
    )


def resume_of(
    rank: int = 0,
    sequence: int = 0,
    versions: Mapping[int, int] | None = None,
    workers: int = 2,
    place: Place | None = None,
    kept_from: int | None = None,
    **others: Any,
) -> Resume:
    """Return what a worker says that is back."""
    place = place or Place(LOG, sum((versions or {}).values()))
    kept_from = sequence + 1 if kept_from is None else kept_from
    return Resume(
        rank, sequence, place, versions or {}, workers, place.position, kept_from, **others
    )


class ScriptedPeer(Untimed):
    """One end of a connection: a worker if it dials somebody, else a master for one worker.

    Parameters
    ----------
    network : SimulatedNetwork
    address : str
    dial : str or None
        Whom to dial; None to be dialled.
    credentials : Credentials, optional
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        address: str,
        *,
        dial: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.network = network
        self.heard: list[Message] = []
        self.ended: Disconnected | None = None
        self.endpoint = Endpoint(
            ConnectionConfig(connect_timeout_seconds=60.0),
            random_bytes=network.random.randbytes,
            connections_max=1 if dial is None else 0,
            credentials=credentials,
        )
        self._link: Link | None = None
        self._control_sent = 0
        self._is_master = dial is None
        self.position = 0
        """In the log that it has sent as a master."""
        if dial is not None:
            self.endpoint.connect(dial, network.now)
        self.host = network.add(address, self.endpoint, self)
        if dial is not None:
            self.wait_for_connection()

    # Events.

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        match event:
            case Connected():
                self._link, self._control_sent = Link(connection), 0
            case MessageReceived():
                self.heard += self.link.receive(event)
            case Disconnected():
                self.ended = event
            case _:
                pass

    # Saying.

    @property
    def link(self) -> Link:
        assert self._link is not None
        return self._link

    def say(self, *records: Control) -> None:
        """Send control messages, in this order."""
        self.say_out_of_order(records, range(len(records)))

    def say_out_of_order(self, records: Sequence[Control], order: Sequence[int]) -> None:
        """Send control messages that arrive in another order than they are meant in."""
        first = self._control_sent
        self._control_sent += len(records)
        for i in order:
            kind, payload = records[i].KIND, records[i].pack()
            self.link.connection.send(CONTROL_STREAM, first + i, kind, payload, Priority.CONTROL)
        self.network.turn(self.host)

    def say_block(self, start: int, values: Int32Array) -> None:
        """Send a block of a snapshot."""
        self.link.send_block(Snapshot(start, values.astype("<i4").tobytes()))
        self.network.turn(self.host)

    def say_update(
        self,
        rank: int,
        sequence: int,
        body: bytes,
        *,
        based_on: int = 0,
        closes: Mapping[int, int] | None = None,
    ) -> None:
        """Send an update of a worker with this rank; as a master, as the next of the log."""
        closes = closes or {}
        if self._is_master:
            span = Span(self.position, {rank: sequence}, 1, 1, {rank: based_on}, closes=closes)
            self.position += 1
            self.link.send_log(Entries(self.position, body, span))
        else:
            payload = EncodedUpdate(sequence, based_on, body, closes=closes).pack()
            self.link.send_update(rank, sequence, payload)
        self.network.turn(self.host)

    def say_anything(self, stream: int, number: int, kind: int, payload: bytes) -> None:
        """Send what need not be a message at all."""
        self.link.connection.send(stream, number, kind, payload, Priority.CONTROL)
        self.network.turn(self.host)

    def end(self, code: int, reason: str) -> None:
        """Close the connection."""
        self.link.connection.close(code, reason, self.network.now)
        self.network.turn(self.host)

    # Hearing.

    def wait_for_connection(self) -> None:
        self.network.run(lambda: self._link is not None, seconds=60)

    def all(self, kind: type[Kept]) -> list[Kept]:
        """Return every message of a kind that was heard."""
        return [message for message in self.heard if isinstance(message, kind)]

    def wait_for(self, kind: type[Kept], n: int = 1) -> Kept:
        """Wait until so many messages of a kind were heard; return the last one of these."""
        self.network.run(lambda: len(self.all(kind)) >= n, seconds=60)
        return self.all(kind)[n - 1]

    def wait_for_end(self) -> Disconnected:
        """Wait until the other side has closed the connection; return what it said."""
        self.network.run(lambda: self.ended is not None, seconds=60)
        assert self.ended is not None
        return self.ended

    @property
    def updates(self) -> list[tuple[int, int]]:
        """Rank and sequence of every update heard, in the order they came."""
        spans = [each.entries.span for each in self.all(EntriesReceived)]
        return [each for span in spans if span is not None for each in span.after.items()]


def said_by_peer(code: int, reason: str) -> Disconnected:
    """Return what one side hears when the other one closes the connection."""
    return Disconnected(int(code), reason, by_peer=True)
