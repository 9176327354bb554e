"""A connection between two peers: datagrams and the time in, datagrams and events out.

::

    CONNECTING ──ACCEPT──▶ OPEN ──close()──▶ CLOSING ──timer──▶ CLOSED
        │                   ├─────CLOSE────▶ DRAINING ──timer──▶   ▲
        └──no answer────────┴──idle timeout────────────────────────┘

A responder's connection begins OPEN, with the first authentic packet of its peer. In CLOSING our
CLOSE is repeated, in DRAINING nothing is sent; both last long enough that late packets do not
look like those of a stranger.

The methods are of three kinds. Input: `receive_datagram`, `receive_accept`, `receive_versions`,
`handle_timer`. What the application wants: `send`, `release`, `close`. Output, to be asked in
this order after every input: `next_event`, `datagrams_to_send`, `next_timer`. An
`endpoint.Endpoint` does all that for many connections.
"""

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final

from gradwire_protocol.config import ConnectionConfig
from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.errors import UsageError, ViolationError
from gradwire_protocol.events import (
    Address,
    AddressChanged,
    Connected,
    Disconnected,
    Event,
    MessageDelivered,
    MessageReceived,
)
from gradwire_protocol.frames import (
    Ack,
    Challenge,
    Close,
    CloseCode,
    Credit,
    Data,
    Frame,
    Response,
    pack_challenge,
    pack_close,
    pack_response,
    parse_frames,
)
from gradwire_protocol.handshake import Initiator
from gradwire_protocol.incoming import Reassembly
from gradwire_protocol.limits import (
    BURST_PACKETS_MAX,
    CLOSE_COPIES,
    EVENTS_MAX,
    MESSAGE_BYTES_MAX,
    PROBE_PACKETS,
    STALL_IDLE_TIMEOUTS,
)
from gradwire_protocol.outgoing import OutgoingMessage, Payload, Priority
from gradwire_protocol.packets import TRANSPORT_HEADER, TransportLimits, parse_versions
from gradwire_protocol.path import PathValidation
from gradwire_protocol.protection import Protection, checksums
from gradwire_protocol.received import ReceivedPackets
from gradwire_protocol.sender import Sender


class State(Enum):
    """Where a connection is in its life."""

    CONNECTING = auto()
    OPEN = auto()
    CLOSING = auto()
    DRAINING = auto()
    CLOSED = auto()


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.CONNECTING: frozenset({State.OPEN, State.CLOSED}),
    State.OPEN: frozenset({State.CLOSING, State.DRAINING, State.CLOSED}),
    State.CLOSING: frozenset({State.DRAINING, State.CLOSED}),
    State.DRAINING: frozenset({State.CLOSED}),
    State.CLOSED: frozenset(),
}


class Connection:
    """One peer.

    Parameters
    ----------
    config : ConnectionConfig
    session_id : int
        Ours; the peer addresses its packets to it.
    address : Address
        Where the peer is.
    counters : Counters
        Shared by all connections of an endpoint.
    random_bytes : callable
        Source of unpredictable bytes.
    on_activity : callable
        Called with this connection whenever it may have something to send or to report.
    """

    def __init__(
        self,
        *,
        config: ConnectionConfig,
        session_id: int,
        address: Address,
        counters: Counters,
        random_bytes: Callable[[int], bytes],
        on_activity: Callable[["Connection"], None],
    ) -> None:
        self.state = State.CONNECTING
        self.session_id = session_id
        self._config = config
        self._counters = counters
        self._on_activity = on_activity
        self._initiator: Initiator | None = None
        self._path = PathValidation(address, random_bytes)
        self._received = ReceivedPackets()
        self._reassembly = Reassembly(config.window_bytes)
        self._events: deque[Event] = deque()
        self._responses: deque[tuple[bytes, Address]] = deque(maxlen=PROBE_PACKETS)
        self._idle_timeout = config.idle_timeout_seconds
        self._last_received = 0.0
        self._was_open = False
        self._last_keepalive = float("-inf")
        # What ends it.
        self._close_frame = b""
        self._close_copies = 0
        self._close_next = 0.0
        self._end: float | None = None

    def connect(self, initiator: Initiator) -> None:
        """Begin the handshake as its initiator."""
        self._initiator = initiator
        self._on_activity(self)

    def establish(
        self,
        *,
        peer_session_id: int,
        limits: TransportLimits,
        sealing: Protection,
        opening: Protection,
        now: float,
    ) -> None:
        """Open the connection with what the handshake has agreed on."""
        self._opening = opening
        self._was_open = True
        datagram_bytes = min(self._config.datagram_bytes, limits.datagram_bytes_max)
        self._sender = Sender(
            peer_session_id=peer_session_id,
            datagram_bytes=datagram_bytes,
            sealing=sealing,
            controller=self._config.congestion(datagram_bytes),
            received=self._received,
            reassembly=self._reassembly,
            counters=self._counters,
        )
        self._sender.on_credit(limits.window_bytes)
        self._idle_timeout = min(self._idle_timeout, limits.idle_timeout_seconds)
        self._last_received = now
        self._move_to(State.OPEN)
        self._counters.connections_opened += 1
        self._report(Connected())

    # Input.

    def receive_accept(self, datagram: memoryview, now: float) -> None:
        """Take the answer to our INIT; a second one changes nothing.

        Raises
        ------
        InvalidDatagramError
            If it is no answer to our INIT.
        """
        if self.state is not State.CONNECTING or self._initiator is None:
            self._counters.drop(Drop.DUPLICATE)
            return
        accept = self._initiator.receive_accept(datagram)
        sealing, opening = checksums(self._initiator.init.nonce, accept.nonce)
        self.establish(
            peer_session_id=accept.session_id,
            limits=accept.limits,
            sealing=sealing,
            opening=opening,
            now=now,
        )
        # Our first packet opens the connection on the other side.
        self._sender.ping_due = True

    def receive_versions(self, datagram: memoryview) -> None:
        """Take the answer of a peer that does not speak our version.

        Raises
        ------
        InvalidDatagramError
            If it is no such answer.
        """
        versions = parse_versions(datagram)
        if self.state is State.CONNECTING:
            listed = ", ".join(map(str, versions))
            self._disconnect(CloseCode.VERSION, listed, by_peer=True)
        else:
            self._counters.drop(Drop.DUPLICATE)

    def receive_datagram(self, datagram: memoryview, address: Address, now: float) -> None:
        """Take a TRANSPORT packet with our session id."""
        if self.state in (State.CONNECTING, State.CLOSED):
            self._counters.drop(Drop.UNKNOWN_SESSION)
            return
        frames = self._opening.open(datagram)
        if frames is None:
            self._counters.drop(Drop.NOT_AUTHENTIC)
            return
        _, flags, reserved, _, number = TRANSPORT_HEADER.unpack_from(datagram)
        if self._received.is_duplicate(number):
            self._counters.drop(Drop.DUPLICATE)
            return
        self._counters.packets_accepted += 1
        self._last_received = now
        if number > self._received.largest:
            self._path.on_packet(address, len(datagram), now)
        try:
            if flags or reserved:
                _refuse_flags(flags, reserved)
            self._receive_frames(number, parse_frames(frames), address, now)
        except ViolationError as error:
            self._counters.violations += 1
            if self.state is State.OPEN:
                self._end_with(error.code, str(error), now)
        self._on_activity(self)

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        if self.state is State.CONNECTING:
            if self._initiator is not None and now >= self._initiator.deadline:
                reason = f"no answer to {self._initiator.sent} datagrams"
                self._disconnect(CloseCode.UNREACHABLE, reason, by_peer=False)
        elif self.state is State.OPEN:
            # Silence outranks everything: a probe to a dead peer is wasted.
            if now >= self._idle_deadline:
                self._counters.idle_timeouts += 1
                silence = now - self._last_received
                self._disconnect(
                    CloseCode.IDLE, f"nothing heard for {silence:.1f} seconds", by_peer=False
                )
            else:
                if now >= self._keepalive_deadline:
                    self._sender.ping_due = True
                    self._last_keepalive = now
                self._sender.handle_timer(now)
                self._end_if_stalled(now)
        elif self._end is not None and now >= self._end:
            self._move_to(State.CLOSED)
            self._end = None
        self._on_activity(self)

    # What the application wants.

    def send(
        self, stream: int, number: int, kind: int, payload: Payload, priority: Priority
    ) -> None:
        """Queue a message.

        It has no effect on a connection that is not open: `Disconnected` is the event that says
        so.

        Parameters
        ----------
        stream, number : int
            Its name; used once in the life of a connection.
        kind : int
            What it is; opaque to the transport.
        payload : bytes-like
            1 to `MESSAGE_BYTES_MAX` bytes. Not copied: it must not change from now on.
        priority : Priority
            What it may overtake.
        """
        size = memoryview(payload).nbytes
        if not 1 <= size <= MESSAGE_BYTES_MAX:
            raise UsageError(f"message of {size} bytes; it is 1 to {MESSAGE_BYTES_MAX}")
        if not (0 <= stream < 2**16 and 0 <= number < 2**32 and 0 <= kind < 2**16):
            raise UsageError(
                f"message {number} of kind {kind} in stream {stream}; numbers are below 2^32, "
                "kinds and streams below 2^16"
            )
        if self.state is not State.OPEN:
            return
        message = OutgoingMessage(stream, number, kind, payload, self._sender.fragment_bytes)
        self._sender.queue.push(message, priority)
        self._on_activity(self)

    def release(self, charge: int) -> None:
        """Give back what a `MessageReceived` was charged with."""
        self._reassembly.release(charge)
        if self._reassembly.announcement_due:
            self._on_activity(self)

    def close(self, code: int, reason: str, now: float) -> None:
        """End the connection and tell the peer why. What was not delivered is dropped."""
        if not 0 <= code < 2**16:
            raise UsageError(f"code={code}; it is below 2^16")
        if self.state is State.CONNECTING:
            self._move_to(State.CLOSED)
        elif self.state is State.OPEN:
            self._close_frame = pack_close(code, reason)
            self._close_copies = CLOSE_COPIES
            self._close_next = now
            self._end = now + 3 * self._sender.recovery.probe_timeout
            self._move_to(State.CLOSING)
        self._on_activity(self)

    # Output.

    def next_event(self) -> Event | None:
        """Return what the application has not heard of yet, oldest first."""
        return self._events.popleft() if self._events else None

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Address]]:
        """Return what has to leave now, at most about `BURST_PACKETS_MAX` datagrams.

        Where it returns so many, there may be more: ask again, after others had their turn.
        """
        if self.state is State.OPEN:
            return self._open_datagrams(now)
        if self.state is State.CONNECTING and self._initiator is not None:
            datagram = self._initiator.datagram_to_send(now)
            return [] if datagram is None else [(datagram, self.address)]
        if self.state is State.CLOSING and self._close_copies and now >= self._close_next:
            self._close_copies -= 1
            self._close_next = now + self._sender.recovery.probe_timeout
            datagram = self._sender.datagram_with(self._close_frame, now, eliciting=False)
            return [(datagram, self.address)]
        return []

    def next_timer(self) -> float | None:
        """Return when `handle_timer` and then `datagrams_to_send` have to be called."""
        deadlines: Iterable[float | None] = (self._end,)
        if self.state is State.OPEN:
            deadlines = (
                *self._sender.deadlines,
                self._path.next_timer,
                self._idle_deadline,
                self._keepalive_deadline,
            )
        elif self.state is State.CONNECTING and self._initiator is not None:
            deadlines = (self._initiator.next_timer,)
        elif self.state is State.CLOSING and self._close_copies:
            deadlines = (self._close_next, self._end)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def address(self) -> Address:
        """Where the peer is."""
        return self._path.address

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time in seconds; None before the first sample."""
        if not self._was_open or not self._sender.recovery.rtt.latest:
            return None
        return self._sender.recovery.rtt.smoothed

    @property
    def bytes_queued(self) -> int:
        """Payload of the messages that the peer has not acknowledged as a whole."""
        return self._sender.queue.bytes_queued if self._was_open else 0

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of packets that are neither acknowledged nor taken for lost."""
        return self._sender.recovery.bytes_in_flight if self._was_open else 0

    @property
    def bytes_held(self) -> int:
        """Message bytes that are under way to us or were not released; at most the window."""
        return self._reassembly.bytes_held

    # Private.

    def _receive_frames(
        self, number: int, frames: Iterable[Frame], address: Address, now: float
    ) -> None:
        eliciting = completing = False
        challenge: Challenge | None = None
        for frame in frames:
            if isinstance(frame, Close):
                self._receive_close(frame, now)
            elif self.state is State.OPEN:
                eliciting |= not isinstance(frame, Ack)
                completing |= self._receive_frame(frame, address, now)
                challenge = frame if isinstance(frame, Challenge) else challenge
        if challenge is not None:
            # One answer to a packet, however many it asks for: see `path`.
            self._responses.append((challenge.data, address))
        self._received.add(number, eliciting=eliciting, completing=completing, now=now)

    def _receive_frame(self, frame: Frame, address: Address, now: float) -> bool:
        """Act on a frame; return whether it completed a message."""
        match frame:
            case Data():
                return self._receive_data(frame)
            case Ack():
                for message in self._sender.on_ack(frame, now):
                    self._report(MessageDelivered(message.stream, message.number))
            case Credit():
                self._sender.on_credit(frame.credit)
            case Response():
                if self._path.on_response(frame.data, address):
                    self._sender.recovery.controller.on_path_changed()
                    self._counters.addresses_changed += 1
                    self._report(AddressChanged(address))
        return False

    def _receive_data(self, data: Data) -> bool:
        message = self._reassembly.receive(data)
        if message is None:
            return False
        self._report(
            MessageReceived(data.stream, data.number, data.kind, message.buffer, message.charge)
        )
        return True

    def _receive_close(self, close: Close, now: float) -> None:
        if self.state is State.OPEN:
            self._report(Disconnected(close.code, close.reason, by_peer=True))
        if self.state in (State.OPEN, State.CLOSING):
            self._end = now + 3 * self._sender.recovery.probe_timeout
            self._move_to(State.DRAINING)

    def _open_datagrams(self, now: float) -> list[tuple[bytes, Address]]:
        datagrams: list[tuple[bytes, Address]] = []
        sender = self._sender
        challenge = self._path.challenge_to_send(sender.recovery.probe_timeout, now)
        if challenge is not None:
            frame, address = pack_challenge(challenge[0]), challenge[1]
            datagrams.append((sender.datagram_with(frame, now, eliciting=True), address))
        while self._responses:
            data, address = self._responses.popleft()
            frame = pack_response(data)
            datagrams.append((sender.datagram_with(frame, now, eliciting=True), address))
        while len(datagrams) < BURST_PACKETS_MAX:
            datagram = sender.next_datagram(now)
            if datagram is None:
                break
            datagrams.append((datagram, self.address))
        return datagrams

    @property
    def _patience(self) -> float:
        # RFC 9000, section 10.1: three probes, so that a long path is not taken for a dead one.
        # A peer that withholds its acknowledgements cannot stretch that without end.
        three_probes = min(3 * self._sender.recovery.probe_timeout, 2 * self._idle_timeout)
        return max(self._idle_timeout, three_probes)

    @property
    def _idle_deadline(self) -> float:
        return self._last_received + self._patience

    @property
    def _keepalive_deadline(self) -> float:
        last = max(self._last_received, self._last_keepalive, self._sender.last_eliciting_at)
        return last + min(self._config.keepalive_seconds, self._idle_timeout / 3)

    def _end_if_stalled(self, now: float) -> None:
        # No deadline of its own: what is sent again and again, and keepalives, have timers.
        stall = self._sender.stall(STALL_IDLE_TIMEOUTS * self._patience, now)
        if stall is not None:
            self._counters.stalls += 1
            self._end_with(CloseCode.STALLED, stall, now)

    def _end_with(self, code: int, reason: str, now: float) -> None:
        """End for a reason that both the peer and the application hear."""
        self.close(code, reason, now)
        self._report(Disconnected(code, reason, by_peer=False))

    def _disconnect(self, code: CloseCode, reason: str, *, by_peer: bool) -> None:
        """End without a word to the peer, which is gone or does not understand us."""
        self._move_to(State.CLOSED)
        self._report(Disconnected(code, reason, by_peer))

    def _move_to(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _report(self, event: Event) -> None:
        assert len(self._events) < EVENTS_MAX, "the application does not take its events"
        self._events.append(event)


def _refuse_flags(flags: int, reserved: int) -> None:
    raise ViolationError(
        CloseCode.VIOLATION, f"packet with flags {flags} and {reserved} in a reserved field"
    )
