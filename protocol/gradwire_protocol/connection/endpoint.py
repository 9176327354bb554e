"""An endpoint: all connections of one socket, told apart by session id.

It answers handshakes, passes packets to their connections, and collects the datagrams, events and
timers of all connections. Like a connection it does no I/O: `receive` and `handle_timer` are its
input; after every input, call `next_event`, `next_train` and `next_timer`, in this order.

Its `Responder` decides which peers are admitted. Every answer to an unproved address is smaller
than the datagram it answers.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable

from gradwire_protocol.connection.config import ConnectionConfig
from gradwire_protocol.connection.connection import Connection
from gradwire_protocol.connection.fair_queue import FairQueue, LinkPacer
from gradwire_protocol.connection.states import State
from gradwire_protocol.connection.timers import Timers
from gradwire_protocol.connection.train import ECN_NOT, Train
from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.crypto.keys import Keyring
from gradwire_protocol.crypto.suites import Credentials
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
from gradwire_protocol.wire.frames import CloseCode, pack_close
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
    WORD_BYTES,
    TransportLimits,
    pack_versions,
    parse_retry_or_reset,
    session_id_of,
)


class Endpoint:
    """Many connections over one socket.

    Parameters
    ----------
    random_bytes : callable
        Returns the given number of unpredictable bytes: `os.urandom`, or a seeded generator in
        simulation.
    connections_max : int
        Connections accepted at once; 0 for an endpoint that only dials out.
    link_rate : float, optional
        Bytes per second that all connections together may send; learned unless given.
    counters : Counters, optional
        Shared with another endpoint of the same owner.
    connections_elsewhere : callable
        Returns the connections of other endpoints that count against `connections_max`, too.
    credentials : Credentials, optional
        Without them, packets are checked but not sealed, and every peer is admitted.
    source_of : callable
        Returns the part of an address, such as its host, by which requests for connections are
        counted.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        random_bytes: Callable[[int], bytes],
        connections_max: int = 0,
        link_rate: float | None = None,
        counters: Counters | None = None,
        connections_elsewhere: Callable[[], int] = lambda: 0,
        credentials: Credentials | None = None,
        source_of: Callable[[Address], Hashable] = lambda address: address,
    ) -> None:
        if connections_max and credentials is not None and credentials.keyring is None:
            raise UsageError(
                f"connections_max={connections_max} with credentials that have no keyring; give "
                "one, or every peer would be admitted"
            )
        self.config = config
        self.link = LinkPacer(link_rate)
        """Paces all connections together."""
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
        self._reporting: dict[Connection, None] = {}
        """An ordered set: connections that may have events."""
        self._turns = FairQueue()
        self._paced_until: float | None = None
        self._timers: Timers[Connection] = Timers()

    def __len__(self) -> int:
        """Return the number of connections, including those that are connecting or closing."""
        return len(self._connections)

    @property
    def half_open(self) -> int:
        """Number of INITs answered but not yet followed by a packet."""
        return len(self._responder)

    # Input.

    def connect(self, address: Address, now: float) -> Connection:
        """Dial a peer; the event `Connected` or `Disconnected` reports the result."""
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
        """Process datagrams from the socket; nothing refers to `view` afterwards.

        Parameters
        ----------
        view : memoryview
            Datagrams, one behind the other.
        segment : int
            Bytes of every datagram except the last, which may be shorter.
        ecn : int
            The two ECN bits of the IP header.
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
        """End the connections with an address that can no longer be reached.

        For drivers that learn of it, as that of TCP does when a TCP connection ends.
        """
        for connection in self._connections.values():
            if connection.address == address:
                connection.abort(reason)

    def name(self, instance: str) -> None:
        """Say which master this is, as `Credentials` do, where its address is known late."""
        self._responder.instance = instance

    def set_keyring(self, keyring: Keyring, now: float) -> None:
        """Replace the keyring, and close the connections of keys that it does not admit.

        Only for an endpoint that was made with a keyring.
        """
        self._responder.keyring = keyring
        self._responder.forget_denied()
        for connection in list(self._connections.values()):
            if connection.identity is not None and not keyring.admits(connection.identity):
                connection.deny("the key of this worker is not accepted any more", now)

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        for connection in self._timers.pop_due(now):
            deadline = connection.next_timer()
            if deadline is None or deadline <= now:
                connection.handle_timer(now)
            else:  # the deadline has moved since, as with every packet
                self._timers.arm(connection, deadline)

    # Output.

    def next_event(self) -> tuple[Connection, Event] | None:
        """Return an event not yet returned, and its connection; None if there is none."""
        while self._reporting:
            connection = next(iter(self._reporting))
            event = connection.next_event()
            if event is not None:
                return connection, event
            del self._reporting[connection]
        return None

    def next_train(self, now: float) -> Train | None:
        """Return the next datagrams to send; None if nothing is due or may leave now.

        Their buffers are valid until the next call.
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
        """Record that the socket accepts no more: this machine's link is the limit."""
        self.link.on_blocked(now)

    def next_timer(self) -> float | None:
        """Return the latest time for the next `handle_timer`; None if there is no deadline."""
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
        """Open a half-open connection if this packet is authentic."""
        if session_id not in self._responder and self.connections_max:
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
        """Send a CLOSE to a peer that considers itself connected since its INIT was answered."""
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
            if len(view) == INIT_BYTES:  # else the answer might be larger than the datagram
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
        # The source address is not compared: a master with several may answer from another one.
        connection = self._connections.get(session_id_of(view))
        if connection is None:
            self.counters.count_drop(Drop.UNKNOWN_SESSION)
            return
        connection.receive_answer(kind, view, now)
        self._mark_active(connection)

    def _receive_reset(self, view: memoryview, now: float) -> None:
        token = parse_retry_or_reset(view)
        # Only endpoints that dial out are sent a RESET, and they have few connections.
        connections = () if self.connections_max else tuple(self._connections.values())
        for connection in connections:
            if connection.receive_reset(session_id_of(view), token, now):
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
            session_id = int.from_bytes(self._random_bytes(4), "little")
            taken = session_id in self._connections or session_id in self._responder
            if session_id and not taken:
                return session_id

    def _mark_active(self, connection: Connection, has_message: bool = False) -> None:
        self._reporting[connection] = None
        self._turns.enqueue(connection, first=has_message)

    def _arm(self, connection: Connection) -> None:
        """Arm the timer of a connection; forget the connection if it is closed."""
        if connection.state is State.CLOSED:
            self._connections.pop(connection.session_id, None)
            self._timers.cancel(connection)
        else:
            self._timers.arm(connection, connection.next_timer())
