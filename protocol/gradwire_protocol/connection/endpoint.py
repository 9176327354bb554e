"""An endpoint: one socket's worth of connections, told apart by session id.

It answers handshakes, hands packets to the connection they belong to, and collects what all of
them have to send, to report and to wait for. Like a connection it does no I/O: `receive` and
`handle_timer` put something in, `next_event`, `next_train` and `next_timer` are asked after every
input, in this order.

Whom it lets in is its `Responder`'s business. Every answer to someone who has not proved his
address is smaller than what it answers.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable

from gradwire_protocol.connection.config import ConnectionConfig
from gradwire_protocol.connection.connection import Connection
from gradwire_protocol.connection.fair_queue import FairQueue, LinkPacer
from gradwire_protocol.connection.session_ids import ALL_SESSION_IDS, SessionIds
from gradwire_protocol.connection.states import State
from gradwire_protocol.connection.timers import Timers
from gradwire_protocol.connection.train import ECN_NOT, Train
from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.crypto.credentials import Credentials
from gradwire_protocol.crypto.keys import Keyring
from gradwire_protocol.delivery.events import Address, Event
from gradwire_protocol.delivery.packet_rows import MINIMUM_BYTES, PacketRows
from gradwire_protocol.delivery.shaped_message import Payload
from gradwire_protocol.errors import InvalidDatagramError, UsageError
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    HALF_OPEN_MAX,
    PACKET_HEADER_BYTES,
    VECTOR_PACKETS_MIN,
)
from gradwire_protocol.security.handshake import Initiator
from gradwire_protocol.security.responder import HalfOpen, Responder
from gradwire_protocol.security.sealed import Workspace
from gradwire_protocol.wire.close_codes import CloseCode
from gradwire_protocol.wire.frames import pack_close
from gradwire_protocol.wire.packets import (
    ACCEPT,
    INIT,
    INIT_BYTES,
    RESET,
    RETRY,
    TRANSPORT,
    TRANSPORT_HEADER,
    VERSION,
    VERSIONS,
    TransportLimits,
    pack_versions,
    parse_retry_or_reset,
    session_id_of,
)
from gradwire_protocol.wire.words import WORD_BYTES


class Endpoint:
    """Many connections over one socket.

    Parameters
    ----------
    config : ConnectionConfig
        For every connection.
    random_bytes : callable
        Returns so many unpredictable bytes: `os.urandom`, or a seeded generator in simulation.
    connections_max : int
        Connections accepted at once; 0 for an endpoint that only dials out.
    link_rate : float, optional
        Bytes per second that all connections together may send; learned unless given.
    shard : SessionIds
        Which session ids are this endpoint's, where several share an address.
    counters : Counters, optional
        Of another endpoint of the same owner, to be counted together with.
    connections_elsewhere : callable
        Returns how many connections another endpoint has that count against `connections_max`, too.
    credentials : Credentials, optional
        Without, packets are checked and not sealed, and everyone is let in.
    source_of : callable
        Returns what of an address is counted where it asks for connections: its host, say.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        random_bytes: Callable[[int], bytes],
        connections_max: int = 0,
        link_rate: float | None = None,
        shard: SessionIds = ALL_SESSION_IDS,
        counters: Counters | None = None,
        connections_elsewhere: Callable[[], int] = lambda: 0,
        credentials: Credentials | None = None,
        source_of: Callable[[Address], Hashable] = lambda address: address,
    ) -> None:
        if connections_max and credentials is not None and credentials.keyring is None:
            raise UsageError("credentials without a keyring: this endpoint would let everyone in")
        self.config = config
        self.link = LinkPacer(link_rate)
        """What all connections together may send."""
        self._shard = shard
        self.counters = Counters() if counters is None else counters
        self._connections_elsewhere = connections_elsewhere
        self.connections_max = connections_max
        self._random_bytes = random_bytes
        self._credentials = credentials
        self._workspace = Workspace()
        self._connections: dict[int, Connection] = {}
        self._responder = Responder(
            self._transport_limits(),
            credentials,
            counters=self.counters,
            random_bytes=random_bytes,
            new_session_id=self._new_session_id,
            source_of=source_of,
            workspace=self._workspace,
        )
        self._replies: deque[tuple[Payload, Address]] = deque(maxlen=HALF_OPEN_MAX)
        # Connections that may have something to report or to send, in the order they got it.
        self._reporting: dict[Connection, None] = {}
        self._turns = FairQueue()
        self._paced_until: float | None = None
        self._timers: Timers[Connection] = Timers()

    def __len__(self) -> int:
        """Return the number of connections, those on their way in or out included."""
        return len(self._connections)

    @property
    def half_open(self) -> int:
        """How many that dialled have not proved their address yet."""
        return len(self._responder)

    # Input.

    def connect(self, address: Address, now: float) -> Connection:
        """Dial out; `Connected` or `Disconnected` tells how it ends."""
        session_id = self._new_session_id()
        initiator = Initiator(
            session_id,
            self._transport_limits(),
            self._credentials,
            random_bytes=self._random_bytes,
            workspace=self._workspace,
            timeout_seconds=self.config.connect_timeout_seconds,
            now=now,
        )
        connection = self._new_connection(session_id, address)
        connection.connect(initiator)
        return connection

    def receive(
        self, view: memoryview, segment: int, address: Address, ecn: int, now: float
    ) -> None:
        """Take what the socket received. It is used up before this returns.

        Parameters
        ----------
        view : memoryview
            Datagrams, one behind the other.
        segment : int
            Bytes of every one but the last, which may be shorter.
        address : Address
            Where they came from.
        ecn : int
            The two ECN bits they came with.
        now : float
        """
        size = len(view)
        if not size:
            self.counters.count_drop(Drop.SHORT)
            return
        count = size // segment
        at = 0
        if (
            count >= VECTOR_PACKETS_MIN
            and segment >= MINIMUM_BYTES
            and not segment % WORD_BYTES
            and segment <= DATAGRAM_BYTES_MAX
            and view[0] == TRANSPORT
        ):
            packets = PacketRows(view[: count * segment], segment)
            connection = self._connections.get(packets.session_id())
            if connection is not None:
                connection.receive_train(packets, address, ecn, now)
                at = count * segment
        for start in range(at, size, segment):
            self._receive_one(view[start : start + segment], address, ecn, now)

    def _receive_one(self, view: memoryview, address: Address, ecn: int, now: float) -> None:
        if len(view) < 8:
            self.counters.count_drop(Drop.SHORT)
            return
        kind = view[0]
        try:
            if kind == TRANSPORT:
                self._receive_transport(view, address, ecn, now)
            elif kind == INIT:
                self._receive_init(view, address, now)
            elif kind in (ACCEPT, RETRY, VERSIONS):
                self._receive_answer(kind, view, now)
            elif kind == RESET:
                self._receive_reset(view, now)
            else:
                self.counters.count_drop(Drop.UNKNOWN_TYPE)
        except InvalidDatagramError:
            self.counters.count_drop(Drop.INVALID_HANDSHAKE)

    def disconnect_address(self, address: Address, reason: str) -> None:
        """End the connections with an address that nothing can reach, or be heard from, any more.

        For what carries packets over connections of its own, as TCP does, and sees their end.
        """
        for connection in self._connections.values():
            if connection.address == address:
                connection.abort(reason)

    def set_keyring(self, keyring: Keyring, now: float) -> None:
        """Let in whom another keyring admits, and nobody else any more.

        Connections of names that are denied now, or that came with a run key which is not accepted
        any more, are closed. To be called where there was a keyring from the beginning.
        """
        self._responder.keyring = keyring
        self._responder.forget_denied()
        for connection in list(self._connections.values()):
            if connection.identity is not None and not keyring.admits(connection.identity):
                connection.deny("the key of this worker is not accepted any more", now)

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        for connection in self._timers.pop_due(now):
            connection.handle_timer(now)

    # Output.

    def next_event(self) -> tuple[Connection, Event] | None:
        """Return an event that was not reported yet, and the connection it belongs to."""
        while self._reporting:
            connection = next(iter(self._reporting))
            event = connection.next_event()
            if event is not None:
                return connection, event
            del self._reporting[connection]
        return None

    def next_train(self, now: float) -> Train | None:
        """Return what has to leave next; None where nothing has to, or may, leave now.

        Its buffers are valid until this is called again.
        """
        if self._replies:
            datagram, address = self._replies.popleft()
            return Train([memoryview(datagram)], len(datagram), len(datagram), address, ECN_NOT)
        self._paced_until = self.link.wait_until(now) if self._turns else None
        if self._paced_until is not None:
            return None
        train, done = self._turns.next_train(now)
        for connection in done:
            self._arm(connection)
        if train is None:
            self.link.on_idle()
        else:
            self.link.on_sent(train.size)
        return train

    def on_blocked(self, now: float) -> None:
        """Note that the socket takes no more: the link of this machine is what limits us."""
        self.link.on_blocked(now)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called at the latest."""
        deadline = self._timers.next_deadline
        if self._paced_until is not None and (deadline is None or self._paced_until < deadline):
            return self._paced_until
        return deadline

    def connections(self) -> Iterable[Connection]:
        """Iterate over all connections."""
        return self._connections.values()

    # Private.

    @property
    def _connections_open(self) -> int:
        return len(self._connections) + self._connections_elsewhere()

    def _receive_transport(self, view: memoryview, address: Address, ecn: int, now: float) -> None:
        if len(view) < PACKET_HEADER_BYTES:
            self.counters.count_drop(Drop.SHORT)
            return
        session_id = session_id_of(view)
        connection = self._connections.get(session_id)
        if connection is None:
            connection = self._establish(session_id, view, address, now)
        if connection is not None:
            connection.receive(view, address, ecn, now)

    def _establish(
        self, session_id: int, view: memoryview, address: Address, now: float
    ) -> Connection | None:
        """Turn a half-open connection into one, if this packet proves who sent it."""
        unknown = session_id not in self._responder and self._shard.owns(session_id)
        if unknown and self.connections_max:
            reset = self._responder.reset_for(session_id, len(view), now)
            if reset is not None:
                self._replies.append((reset, address))
        half_open = self._responder.establish(session_id, view, now)
        if half_open is None:
            return None
        if self._connections_open >= self.connections_max:
            self.counters.count_drop(Drop.FULL)
            self._refuse_when_full(half_open)
            return None
        connection = self._new_connection(session_id, half_open.address)
        connection.establish(half_open.agreement, now)
        return connection

    def _refuse_when_full(self, half_open: HalfOpen) -> None:
        """Tell a peer that takes itself for connected that it is not, in its first packet."""
        header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, half_open.init.session_id, 0)
        reason = f"no room: {self._connections_open} connections are open"
        close = half_open.agreement.sealing.seal(
            bytearray(header + pack_close(CloseCode.FULL, reason))
        )
        self._replies.append((close, half_open.address))

    def _receive_init(self, view: memoryview, address: Address, now: float) -> None:
        if not self.connections_max:
            self.counters.count_drop(Drop.NOT_ACCEPTING)
            return
        if view[1] != VERSION:
            self.counters.count_drop(Drop.VERSION)
            if len(view) == INIT_BYTES:  # else the answer might be the larger one
                self._replies.append((pack_versions(session_id_of(view)), address))
            return
        if len(view) != INIT_BYTES:
            raise InvalidDatagramError(f"INIT of {len(view)} bytes, not {INIT_BYTES}")
        if self._connections_open >= self.connections_max:
            self.counters.count_drop(Drop.FULL)
            return
        answer = self._responder.receive_init(view, address, now)
        if answer is not None:
            self._replies.append((answer, address))

    def _receive_answer(self, kind: int, view: memoryview, now: float) -> None:
        # The source address proves nothing: a master with several may answer from another one.
        connection = self._connections.get(session_id_of(view))
        if connection is None:
            self.counters.count_drop(Drop.UNKNOWN_SESSION)
            return
        connection.receive_answer(kind, view, now)
        self._mark_active(connection)

    def _receive_reset(self, view: memoryview, now: float) -> None:
        token = parse_retry_or_reset(view)
        # Only who dials out is ever told that, and has few connections to look through.
        connections = () if self.connections_max else tuple(self._connections.values())
        for connection in connections:
            if connection.receive_reset(session_id_of(view), token):
                self._mark_active(connection)
                return
        self.counters.count_drop(Drop.UNKNOWN_SESSION)

    def _transport_limits(self) -> TransportLimits:
        config = self.config
        return TransportLimits(
            config.window_bytes, config.datagram_bytes_max, config.idle_timeout_seconds
        )

    def _new_connection(self, session_id: int, address: Address) -> Connection:
        connection = Connection(
            config=self.config,
            session_id=session_id,
            address=address,
            counters=self.counters,
            random_bytes=self._random_bytes,
            on_activity=self._mark_active,
        )
        self._connections[session_id] = connection
        return connection

    def _new_session_id(self) -> int:
        while True:
            drawn = int.from_bytes(self._random_bytes(4), "little")
            session_id = self._shard.to_own(drawn)
            taken = session_id in self._connections or session_id in self._responder
            if session_id and not taken:
                return session_id

    def _mark_active(self, connection: Connection, has_message: bool = False) -> None:
        self._reporting[connection] = None
        self._turns.enqueue(connection, first=has_message)

    def _arm(self, connection: Connection) -> None:
        """Put the timer of a connection where it belongs now; forget one that is closed."""
        if connection.state is State.CLOSED:
            self._connections.pop(connection.session_id, None)
            self._timers.forget(connection)
        else:
            self._timers.arm(connection, connection.next_timer())
