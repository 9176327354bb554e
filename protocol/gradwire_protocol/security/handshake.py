"""The initiator's side of the handshake: it repeats the INIT until it is answered.

The responder has no timer: it answers every INIT, and the initiator repeats it. See `packets` for
the datagrams and `responder` for the other side. Both sides end with an `Agreement`.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gradwire_protocol.crypto.keys import Identity
from gradwire_protocol.crypto.noise import NoiseHandshake
from gradwire_protocol.crypto.suites import Credentials, Suite
from gradwire_protocol.errors import InvalidDatagramError, UsageError
from gradwire_protocol.limits import (
    HANDSHAKE_TIMER_SECONDS,
    HANDSHAKE_TIMER_SECONDS_MAX,
    INIT_SECONDS_MAX,
    RETRIES_MAX,
)
from gradwire_protocol.security.checksum import Checksum, ChecksumHandshake
from gradwire_protocol.security.protection import Opening, Sealing
from gradwire_protocol.security.sealed import CipherOpening, CipherSealing, Workspace
from gradwire_protocol.wire.packets import (
    NO_KEY_ID,
    NO_TOKEN,
    PUBLIC_KEY_BYTES,
    Accept,
    Greeting,
    Init,
    Reply,
    TransportLimits,
    parse_retry_or_reset,
)

HandshakeState: TypeAlias = NoiseHandshake | ChecksumHandshake
"""One side of a suite's handshake."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of a handshake for one side."""

    peer_session_id: int
    limits: TransportLimits
    """The peer's limits."""
    sealing: Sealing
    opening: Opening
    identity: Identity | None = None
    """The initiator's identity; None at the initiator, and in suite 0."""
    reset_token: bytes = field(default=NO_TOKEN, repr=False)
    """Token of a RESET that ends this connection."""

    def is_reset(self, token: bytes) -> bool:
        """Return whether a RESET with this token ends the connection."""
        return self.reset_token != NO_TOKEN and hmac.compare_digest(token, self.reset_token)


def start_handshake(suite: Suite, secret: bytes, prologue: bytes) -> HandshakeState:
    """Return a new handshake of a suite."""
    if suite is Suite.CHECKSUM:
        return ChecksumHandshake(prologue)
    return NoiseHandshake(suite, secret, prologue)


def make_protections(
    suite: Suite, sealing_key: bytes, opening_key: bytes, workspace: Workspace
) -> tuple[Sealing, Opening]:
    """Return the sealing and the opening of a connection."""
    if suite is Suite.CHECKSUM:
        return Checksum(sealing_key), Checksum(opening_key)
    return (
        CipherSealing(suite, sealing_key, workspace),
        CipherOpening(suite, opening_key, workspace),
    )


class Initiator:
    """One attempt to connect.

    The same INIT is repeated for a limited time. The other side eventually forgets INITs that it
    has answered and would then take a repeated one for a replay.

    Parameters
    ----------
    credentials : Credentials or None
        Credentials with a key; None for suite 0.
    """

    def __init__(
        self,
        session_id: int,
        limits: TransportLimits,
        credentials: Credentials | None,
        *,
        random_bytes: Callable[[int], bytes],
        workspace: Workspace,
        timeout_seconds: float,
        now: float,
    ) -> None:
        if credentials is not None and credentials.key is None:
            raise UsageError("dialling out needs credentials with a key")
        self.versions: tuple[int, ...] = ()
        """Versions of the other side, if a VERSIONS came; it is not authenticated."""
        self.inits_sent = 0
        self.deadline = now + timeout_seconds
        self._session_id = session_id
        self._limits = limits
        self._credentials = credentials
        self._random_bytes = random_bytes
        self._workspace = workspace
        self._interval = HANDSHAKE_TIMER_SECONDS
        self._next = now
        self._make_init(now)

    def _make_init(self, now: float) -> None:
        credentials = self._credentials
        key = None if credentials is None else credentials.key
        if credentials is None or key is None:
            suite, key_id, secret = Suite.CHECKSUM, NO_KEY_ID, b""
            greeting = Greeting(self._limits)
        else:
            suite, key_id, secret = credentials.suite, key.key_id, key.secret
            greeting = Greeting(self._limits, credentials.unix_time_ns(), key.name)
        init = Init(suite, self._session_id, key_id, b"", b"")
        self._state = start_handshake(suite, secret, init.prologue)
        private_key = self._random_bytes(PUBLIC_KEY_BYTES)
        public_key, sealed = self._state.write_init(private_key, greeting.pack())
        self.init = replace(init, public_key=public_key, sealed=sealed)
        self.datagram = self.init.pack()
        self._retries_left = RETRIES_MAX
        self._renew_at = now + INIT_SECONDS_MAX

    @property
    def is_sealed(self) -> bool:
        """Whether the suite is sealed, so that the answer proves itself."""
        return self.init.suite is not Suite.CHECKSUM

    @property
    def next_timer(self) -> float:
        """When to send again or to give up."""
        return min(self._next, self.deadline)

    def datagram_to_send(self, now: float) -> bytes | None:
        """Return the INIT if it is due."""
        if now < self._next:
            return None
        if now >= self._renew_at:
            self._make_init(now)
        self.inits_sent += 1
        self._next = now + self._interval
        self._interval = min(2 * self._interval, HANDSHAKE_TIMER_SECONDS_MAX)
        return self.datagram

    def receive_retry(self, datagram: memoryview, now: float) -> None:
        """Add the cookie and resend at once; raise `InvalidDatagramError` for an excess RETRY."""
        cookie = parse_retry_or_reset(datagram)
        if not self._retries_left or cookie == self.init.cookie:
            raise InvalidDatagramError(
                f"the RETRY repeats its cookie, or {RETRIES_MAX} came before it"
            )
        self._retries_left -= 1
        self.init = replace(self.init, cookie=cookie)
        self.datagram = self.init.pack()
        self._next = now

    def receive_accept(self, datagram: memoryview) -> Agreement:
        """Parse the answer; raise `InvalidDatagramError` if it does not answer this INIT."""
        accept = Accept.parse(datagram)
        init = self.init
        if accept.session_id != init.session_id or accept.suite is not init.suite:
            raise InvalidDatagramError("the ACCEPT is for another session id or suite")
        reply = Reply.parse(self._state.read_accept(accept.public_key, accept.sealed))
        ours, theirs = self._state.keys
        sealing, opening = make_protections(init.suite, ours, theirs, self._workspace)
        return Agreement(
            reply.session_id, reply.limits, sealing, opening, reset_token=reply.reset_token
        )
