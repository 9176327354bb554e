"""`Traffic`: the sender, the receiver and the timeouts of an open connection.

`Sender` and `Receiver` share the validated path, the received packet numbers and the reassembly.
`Traffic` also sends keepalives, and ends connections that are silent or stalled. A connection is
stalled if none of our fragments arrives, or if the peer does not finish a message.
"""

from collections.abc import Callable

from gradwire_protocol.congestion import BbrLite, StaticWindow
from gradwire_protocol.connection.config import ConnectionConfig
from gradwire_protocol.connection.datagram_size import DatagramSizes
from gradwire_protocol.connection.path_validation import PathValidation
from gradwire_protocol.connection.receiver import Liveness, Owner, Receiver
from gradwire_protocol.connection.sender import Sender
from gradwire_protocol.connection.train import Train
from gradwire_protocol.counters import Counters
from gradwire_protocol.delivery.events import Address
from gradwire_protocol.delivery.incoming import Reassembly
from gradwire_protocol.limits import (
    PROGRESS_CHECK_SECONDS_MIN,
    STALL_IDLE_TIMEOUTS,
    UNFINISHED_IDLE_TIMEOUTS,
)
from gradwire_protocol.recovery.received_packets import ReceivedPackets
from gradwire_protocol.security.handshake import Agreement
from gradwire_protocol.wire.frames import CloseCode, pack_challenge, pack_response


class Traffic:
    """Both halves of an open connection, and its timeouts."""

    def __init__(
        self,
        *,
        config: ConnectionConfig,
        agreement: Agreement,
        owner: Owner,
        path: PathValidation,
        reassembly: Reassembly,
        counters: Counters,
        random_bytes: Callable[[int], bytes],
        now: float,
    ) -> None:
        limits = agreement.limits
        largest = min(config.datagram_bytes_max, limits.datagram_bytes_max)
        sizes = DatagramSizes(config.datagram_bytes, largest)
        self.received = received = ReceivedPackets()

        def random() -> float:
            return int.from_bytes(random_bytes(6), "little") / 2**48

        self._path = path
        self._reassembly = reassembly
        self._counters = counters
        self.sender = sender = Sender(
            peer_session_id=agreement.peer_session_id,
            sizes=sizes,
            sealing=agreement.sealing,
            controller=StaticWindow() if config.lossless else BbrLite(sizes.current, random),
            received=received,
            reassembly=reassembly,
            counters=counters,
            random=random,
        )
        sender.recovery.probing = not config.lossless
        sender.outcomes.on_credit(limits.window_bytes)
        idle_timeout = min(config.idle_timeout_seconds, limits.idle_timeout_seconds)
        self._check_seconds = max(idle_timeout, PROGRESS_CHECK_SECONDS_MIN)
        self._progress_due = now + self._check_seconds
        self.liveness = Liveness(idle_timeout, config.keepalive_seconds, now)
        self.receiver = Receiver(
            owner=owner,
            opening=agreement.opening,
            received=received,
            reassembly=reassembly,
            path=path,
            liveness=self.liveness,
            counters=counters,
            probe_timeout=lambda: sender.recovery.probe_timeout,
        )

    @property
    def deadlines(self) -> tuple[float | None, ...]:
        """When `handle_timer` or `next_train` may have something to do."""
        return (
            *self.sender.deadlines,
            self._path.next_timer,
            self._idle_deadline,
            self._keepalive_deadline,
            self._progress_deadline,
            self.receiver.deadline,
        )

    def handle_timer(self, now: float) -> tuple[CloseCode, str] | None:
        """Act on due deadlines; return code and reason if the connection has to end."""
        end = self._check_silence(now)
        if end is None:  # else a probe would be wasted on a dead peer
            if now >= self._keepalive_deadline:
                self.sender.outcomes.ping_due = True
                self.liveness.on_asked(now)
            self.sender.outcomes.handle_timer(now)
            end = self._check_stall(now) or self._check_progress(now)
        self.receiver.handle_timer(now)
        return end

    def next_train(self, now: float) -> Train | None:
        """Return the next datagrams to send; None if nothing is due or may leave now."""
        sender, path = self.sender, self._path
        if not path.is_settled:
            validation = self._path_frame(now)
            if validation is not None:
                frame, address = validation
                return Train(*sender.packet_with(frame, now, eliciting=True), address)
        packets = sender.next_packets(now)
        return None if packets is None else Train(*packets, path.address)

    def _path_frame(self, now: float) -> tuple[bytes, Address] | None:
        """Return a CHALLENGE or a RESPONSE that is due, and its destination."""
        path = self._path
        challenge = path.challenge_to_send(self.sender.recovery.probe_timeout, now)
        if challenge is not None:
            return pack_challenge(challenge[0]), challenge[1]
        response = path.response_to_send()
        if response is not None:
            return pack_response(response[0]), response[1]
        return None

    @property
    def _keepalive_deadline(self) -> float:
        return self.liveness.keepalive_deadline(self.sender.last_eliciting_at)

    @property
    def _idle_deadline(self) -> float:
        return self.liveness.idle_deadline(self.sender.recovery.probe_timeout)

    @property
    def _progress_deadline(self) -> float | None:
        has_begun = self._reassembly.has_begun or self.sender.queue.has_begun
        return self._progress_due if has_begun else None

    def _check_silence(self, now: float) -> tuple[CloseCode, str] | None:
        if now < self._idle_deadline:
            return None
        self._counters.idle_timeouts += 1
        return CloseCode.IDLE, f"nothing heard for {now - self.liveness.last_heard:.1f} seconds"

    def _check_stall(self, now: float) -> tuple[CloseCode, str] | None:
        # It needs no deadline of its own: retransmissions and keepalives have timers.
        patience = self.liveness.stretched_timeout(self.sender.recovery.probe_timeout)
        stall = self.sender.outcomes.stall(STALL_IDLE_TIMEOUTS * patience, now)
        if stall is None:
            return None
        self._counters.stalls += 1
        return CloseCode.STALLED, stall

    def _check_progress(self, now: float) -> tuple[CloseCode, str] | None:
        """Check every idle timeout whether messages that have begun go on, in both directions."""
        if now < self._progress_due:
            return None
        self._progress_due = now + self._check_seconds
        self.sender.queue.check_progress()
        unfinished = self._reassembly.check_progress(UNFINISHED_IDLE_TIMEOUTS)
        if unfinished is None:
            return None
        self._counters.stalls += 1
        shaped, seconds = unfinished.shaped, UNFINISHED_IDLE_TIMEOUTS * self._check_seconds
        return CloseCode.STALLED, (
            f"message {shaped.number} of stream {shaped.stream} is not finished: "
            f"{unfinished.received} of {shaped.count} fragments arrived, and no other one in "
            f"{seconds:g} s, which is the limit: send every message that has begun to its end"
        )
