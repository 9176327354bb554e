"""A connection to one peer: datagrams and the time in, datagrams and events out.

The methods are of three kinds. Input: `receive`, the other methods whose names begin with it, and
`handle_timer`. Requests of the application: `send`, `relay`, `release`, `skip_to`, `close`. Output,
to be called in this order after every input or request: `next_event`, `next_train`, `next_timer`.
An `endpoint.Endpoint` does this for many connections.

`states` has the phases of a connection. While it is open, its `traffic.Traffic` handles the
packets. This module begins and ends it, and reports to the application.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from gradwire_protocol.connection.config import ConnectionConfig
from gradwire_protocol.connection.path_validation import PathValidation
from gradwire_protocol.connection.sender import Sender
from gradwire_protocol.connection.states import TRANSITIONS, Ending, State
from gradwire_protocol.connection.timers import earliest
from gradwire_protocol.connection.traffic import Traffic
from gradwire_protocol.connection.train import Train
from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.crypto.keys import Identity
from gradwire_protocol.delivery.events import (
    Address,
    AddressChanged,
    Connected,
    Disconnected,
    Event,
    MessageDelivered,
    MessageReceived,
)
from gradwire_protocol.delivery.incoming import IncomingMessage, Reassembly
from gradwire_protocol.delivery.outgoing import Priority, check_message
from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.delivery.shaped_message import Payload, ShapedMessage
from gradwire_protocol.errors import UsageError, ViolationError
from gradwire_protocol.limits import EVENTS_MAX
from gradwire_protocol.security.handshake import Agreement, Initiator
from gradwire_protocol.wire.frames import Ack, Close, CloseCode, Credit, Frame, Response, pack_close
from gradwire_protocol.wire.packets import ACCEPT, RETRY, parse_versions

RESET_SILENCE_SECONDS: Final = 10.0
"""A peer that lives is heard of more often. After a longer silence, which side was away is unknown
to the one that is sent a RESET."""


class Connection:
    """One peer.

    Parameters
    ----------
    session_id : int
        Ours; the peer addresses its packets to it.
    counters : Counters
        Shared by all connections of an endpoint.
    on_activity : callable
        Called when there may be something to send or to report, with this connection and whether
        a message was queued.
    """

    def __init__(
        self,
        *,
        config: ConnectionConfig,
        session_id: int,
        address: Address,
        counters: Counters,
        random_bytes: Callable[[int], bytes],
        on_activity: Callable[["Connection", bool], None],
    ) -> None:
        self.state = State.CONNECTING
        self.session_id = session_id
        self.identity: Identity | None = None
        """The peer that dialled us, as proved by its key; None if we dialled, and in suite 0."""
        self.was_open = False
        """Whether the handshake was completed."""
        self._config = config
        self._counters = counters
        self._on_activity = on_activity
        self._initiator: Initiator | None = None
        self._random_bytes = random_bytes
        self._path = PathValidation(address, random_bytes)
        self._reassembly = Reassembly(config.window_bytes)
        self._events: deque[Event] = deque()
        self._ending = Ending()

    def connect(self, initiator: Initiator) -> None:
        """Begin the handshake as its initiator."""
        self._initiator = initiator
        self._on_activity(self, False)

    def establish(self, agreement: Agreement, now: float) -> None:
        """Open the connection with the result of the handshake."""
        self._agreement = agreement
        self.identity = agreement.identity
        self._traffic = Traffic(
            config=self._config,
            agreement=agreement,
            owner=self,
            path=self._path,
            reassembly=self._reassembly,
            counters=self._counters,
            random_bytes=self._random_bytes,
            now=now,
        )
        self.was_open = True
        self._move_to(State.OPEN)
        self._counters.connections_opened += 1
        self._report(Connected())

    # Input.

    def receive_answer(self, kind: int, datagram: memoryview, now: float) -> None:
        """Process an answer to our INIT: ACCEPT, RETRY or VERSIONS. A late one changes nothing.

        Raises
        ------
        InvalidDatagramError
            If it does not answer our INIT, or is a RETRY beyond `limits.RETRIES_MAX`.
        """
        initiator = self._initiator
        if self.state is not State.CONNECTING or initiator is None:
            self._counters.count_drop(Drop.DUPLICATE)
        elif kind == ACCEPT:
            self.establish(initiator.receive_accept(datagram), now)
            # Our first packet opens the connection on the other side.
            self._traffic.sender.outcomes.ping_due = True
        elif kind == RETRY:
            initiator.receive_retry(datagram, now)
        else:
            initiator.versions = parse_versions(datagram)
            if not initiator.is_sealed:
                self._give_up(initiator)
            # Sealed suites authenticate an ACCEPT but not a VERSIONS, which anyone may have sent.
            # So it counts only if no ACCEPT has come by the deadline.

    def receive_reset(self, session_id: int, token: bytes, now: float) -> bool:
        """Disconnect if this RESET is for this connection; return whether it is."""
        if (
            self.state is not State.OPEN
            or self._agreement.peer_session_id != session_id
            or not self._agreement.is_reset(token)
        ):
            return False
        self._counters.resets_received += 1
        silent = now - self._traffic.liveness.last_heard
        # A process that stood still, or was suspended, has not noticed that it was silent.
        reason = "the other side no longer knows this connection: it was restarted" + (
            f", or this process was silent for too long: nothing came for {silent:.0f} s"
            if silent >= RESET_SILENCE_SECONDS
            else ""
        )
        self._disconnect(CloseCode.RESET, reason, by_peer=True)
        return True

    def receive(self, datagram: memoryview, address: Address, ecn: int, now: float) -> None:
        """Process a TRANSPORT packet with our session id."""
        if self.state in (State.CONNECTING, State.CLOSED):
            self._counters.count_drop(Drop.UNKNOWN_SESSION)
            return
        if self._traffic.receiver.receive(datagram, address, ecn, now):
            self._traffic.sender.recovery.on_heard(now)
            self._on_activity(self, False)

    def receive_train(self, packets: PacketRows, address: Address, ecn: int, now: float) -> None:
        """Process several TRANSPORT packets of one size with our session id."""
        if self.state is not State.OPEN:
            for row in range(packets.count):
                self.receive(packets.datagram(row), address, ecn, now)
        elif self._traffic.receiver.receive_train(packets, address, ecn, now):
            self._traffic.sender.recovery.on_heard(now)
            self._on_activity(self, False)

    def ask(self, now: float) -> None:
        """Ask an open connection's peer for a sign of life; `bytes_in_flight` until it comes."""
        self._traffic.sender.outcomes.ping_due = True
        self._traffic.liveness.on_asked(now)
        self._on_activity(self, False)

    def abort(self, reason: str) -> None:
        """End at once, without a CLOSE: the peer can no longer be reached."""
        if self.state in (State.CONNECTING, State.OPEN):
            connecting = self.state is State.CONNECTING
            code = CloseCode.UNREACHABLE if connecting else CloseCode.LOST
            self._disconnect(code, reason, by_peer=False)
        elif self.state is not State.CLOSED:
            self._move_to(State.CLOSED)
        self._on_activity(self, False)

    def handle_timer(self, now: float) -> None:
        """Act on every deadline at or before `now`."""
        if self.state is State.CONNECTING:
            if self._initiator is not None and now >= self._initiator.deadline:
                self._give_up(self._initiator)
        elif self.state is State.OPEN:
            end = self._traffic.handle_timer(now)
            if end is not None and end[0] is CloseCode.IDLE:
                self._disconnect(*end, by_peer=False)
            elif end is not None:
                self._close_and_report(*end, now)
        elif self.state is not State.CLOSED and now >= self._ending.over_at:
            self._move_to(State.CLOSED)
        self._on_activity(self, False)

    # Input from the receiver: see `receiver.Owner`.

    @property
    def is_open(self) -> bool:
        """Whether packets have any effect besides a CLOSE."""
        return self.state is State.OPEN

    def on_message(self, message: IncomingMessage) -> None:
        """Report a complete message."""
        self._report(MessageReceived(message.shaped, message.charge))

    def on_frame(self, frame: Frame, address: Address, now: float) -> None:
        """Process an ACK, CREDIT, RESPONSE or CLOSE."""
        if isinstance(frame, Close):
            self._receive_close(frame, now)
        if self.state is not State.OPEN:
            return
        match frame:
            case Ack():
                for message in self._traffic.sender.outcomes.on_ack(frame, now):
                    self._report(MessageDelivered(message.stream, message.number))
            case Credit():
                self._traffic.sender.outcomes.on_credit(frame.credit)
            case Response():
                if self._path.on_response(frame.data, address):
                    self._traffic.sender.outcomes.on_path_changed()
                    self._counters.addresses_changed += 1
                    self._report(AddressChanged(address))

    def on_violation(self, error: ViolationError, now: float) -> None:
        """Close the connection: the peer broke a rule of the protocol."""
        self._counters.violations += 1
        if self.state is State.OPEN:
            self._close_and_report(error.code, str(error), now)

    def on_too_many_forgeries(self, now: float) -> None:
        """Close the connection: no further packet can be trusted."""
        if self.state is State.OPEN:
            self._close_and_report(CloseCode.FORGERIES, "too many forged packets", now)

    # Requests of the application.

    def send(
        self, stream: int, number: int, kind: int, payload: Payload, priority: Priority
    ) -> None:
        """Queue a message. Once the connection is no longer open, this does nothing.

        Parameters
        ----------
        stream, number : int
            Identify the message; each pair is used once in the life of a connection.
        kind : int
            Opaque to the transport.
        payload : bytes-like
            1 to `MESSAGE_BYTES_MAX` bytes; copied.

        Raises
        ------
        UsageError
            If the size of the payload or one of the numbers is out of range.
        """
        check_message(stream, number, kind, memoryview(payload).nbytes)
        if self.state is State.OPEN:
            size = self._traffic.sender.fragment_bytes
            self.relay(ShapedMessage.of(stream, number, kind, payload, size), priority)

    def relay(self, message: ShapedMessage, priority: Priority) -> None:
        """Queue a message that was received or also goes to other peers; it is not copied."""
        if self.state is State.OPEN:
            self._traffic.sender.enqueue(message, priority)
            self._on_activity(self, True)

    def release(self, charge: int) -> None:
        """Return the `charge` of a `MessageReceived` to the peer's credit."""
        self._reassembly.release(charge)
        if self._reassembly.announcement_due:
            self._on_activity(self, False)

    def skip_to(self, stream: int, number: int) -> None:
        """Expect no further message of a stream with a number below this one."""
        self._reassembly.skip_to(stream, number)

    def close(self, code: int, reason: str, now: float) -> None:
        """Close the connection and tell the peer why. Undelivered messages are dropped."""
        if not 0 <= code < 2**16:
            raise UsageError(f"code={code}; use a number from 0 below 2^16")
        if self.state is State.CONNECTING:
            self._move_to(State.CLOSED)
        elif self.state is State.OPEN:
            self._ending.begin(now, self._probe_timeout, pack_close(code, reason))
            self._move_to(State.CLOSING)
        self._on_activity(self, False)

    def deny(self, reason: str, now: float) -> None:
        """Close the connection and report it: the peer's key is no longer accepted."""
        if self.state is State.OPEN:
            self._close_and_report(CloseCode.DENIED, reason, now)

    # Output.

    def next_event(self) -> Event | None:
        """Return the oldest event not yet returned; None if there is none."""
        return self._events.popleft() if self._events else None

    def next_train(self, now: float) -> Train | None:
        """Return the next datagrams to send; None if nothing is due or may leave now."""
        if self.state is State.OPEN:
            return self._traffic.next_train(now)
        if self.state is State.CONNECTING and self._initiator is not None:
            datagram = self._initiator.datagram_to_send(now)
            if datagram is not None:
                return Train([memoryview(datagram)], len(datagram), len(datagram), self.address)
        elif self.state is State.CLOSING:
            frame = self._ending.frame_to_send(now, self._probe_timeout)
            if frame is not None:
                packet = self._traffic.sender.packet_with(frame, now, eliciting=False)
                return Train(*packet, self.address)
        return None

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has to be called."""
        deadlines: Iterable[float | None] = ()
        if self.state is State.OPEN:
            deadlines = self._traffic.deadlines
        elif self.state is State.CONNECTING and self._initiator is not None:
            deadlines = (self._initiator.next_timer,)
        elif self.state in (State.CLOSING, State.DRAINING):
            deadlines = self._ending.deadlines
        return earliest(deadlines)

    @property
    def address(self) -> Address:
        """The peer's address, as last proved."""
        return self._path.address

    @property
    def sender(self) -> Sender:
        """The sending half; it exists only after the handshake."""
        return self._traffic.sender

    @property
    def rtt(self) -> float | None:
        """Smoothed round-trip time in seconds; None before the first sample."""
        if not self.was_open:
            return None
        rtt = self._traffic.sender.recovery.rtt
        return rtt.smoothed if rtt.latest else None

    @property
    def last_heard(self) -> float | None:
        """When the peer's last packet came; None before the handshake."""
        return self._traffic.liveness.last_heard if self.was_open else None

    @property
    def unanswered_since(self) -> float | None:
        """Since when no message that was sent is acknowledged; None while none waits for that."""
        unanswered = self._traffic.sender.outcomes.unanswered if self.was_open else None
        return None if unanswered is None else unanswered[0]

    @property
    def message_bytes_sent(self) -> int:
        """Bytes of messages in all packets to the peer, those sent again included."""
        return self._traffic.sender.message_bytes if self.was_open else 0

    @property
    def bytes_queued(self) -> int:
        """Payload bytes of the messages that the peer has not acknowledged as a whole."""
        return self._traffic.sender.queue.bytes_queued if self.was_open else 0

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of packets neither acknowledged nor counted as lost."""
        return self._traffic.sender.recovery.sent.bytes_in_flight if self.was_open else 0

    @property
    def bytes_held(self) -> int:
        """Message bytes under way to us or waiting for release; at most the window."""
        return self._reassembly.bytes_held

    # Private.

    @property
    def _probe_timeout(self) -> float:
        return self._traffic.sender.recovery.probe_timeout

    def _give_up(self, initiator: Initiator) -> None:
        """End the attempt to connect: no answer, or only a VERSIONS."""
        if initiator.versions:
            listed = ", ".join(map(str, initiator.versions))
            self._disconnect(CloseCode.VERSION, listed, by_peer=True)
        else:
            reason = f"no answer to {initiator.inits_sent} datagrams"
            self._disconnect(CloseCode.UNREACHABLE, reason, by_peer=False)

    def _receive_close(self, close: Close, now: float) -> None:
        if self.state is State.OPEN:
            self._report(Disconnected(close.code, close.reason, by_peer=True))
        if self.state in (State.OPEN, State.CLOSING):
            self._ending.begin(now, self._probe_timeout)
            self._move_to(State.DRAINING)

    def _close_and_report(self, code: int, reason: str, now: float) -> None:
        """Close the connection; tell the peer and the application why."""
        self.close(code, reason, now)
        self._report(Disconnected(code, reason, by_peer=False))

    def _disconnect(self, code: CloseCode, reason: str, *, by_peer: bool) -> None:
        """End without a CLOSE: the peer is gone or does not understand us."""
        self._move_to(State.CLOSED)
        self._report(Disconnected(code, reason, by_peer))

    def _move_to(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    def _report(self, event: Event) -> None:
        assert len(self._events) < EVENTS_MAX, "the application does not call next_event"
        self._events.append(event)
