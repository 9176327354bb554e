"""`Responder`: admits peers with a key, at a cost that peers without one cannot drive up.

An INIT has to pass these checks, the cheapest first:

1. The size, and a key id that one of our run keys could have made: 1 us.
2. A cookie, while more INITs come than `limits.INITS_PER_SECOND`. A RETRY asks for it and stores
   nothing: 5 us. So a forged source address leads no further. INITs with a cookie are counted by
   source, so no source can use up the share of another: 3 us. An invalid cookie counts as none,
   and the initiator is asked again: the master may have restarted, or a NAT may have changed the
   initiator's address, since the cookie was made.
3. The greeting has to open with the named key: 15 us. The name in it has to match the key and
   must not be denied. The greeting has to be newer than the last one of this key, so that INITs
   cannot be replayed.
4. The answer: 60 us. It needs a `HalfOpen` of about 2 KiB, but no timer, until a packet shows that
   the initiator received the answer. There are at most `limits.HALF_OPEN_MAX`, and few for one
   key; the oldest is evicted. The same INIT again gets the same answer.

In suite 0 there are no keys, so checks 1 and 3 pass every INIT; the rest is the same.

An INIT that fails is not answered. The endpoint is visible all the same: it sends a RESET for a
packet of an unknown session, and an answer to an INIT of an unknown version. Every answer is
smaller than the packet it answers.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from hashlib import blake2s

from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.crypto.keys import Identity
from gradwire_protocol.crypto.noise import NotAuthenticError
from gradwire_protocol.crypto.suites import Credentials, Suite
from gradwire_protocol.delivery.events import Address
from gradwire_protocol.errors import InvalidDatagramError
from gradwire_protocol.limits import (
    HALF_OPEN_MAX,
    HALF_OPEN_OF_KEY_MAX,
    HALF_OPEN_SECONDS_MAX,
    INITS_BURST,
    INITS_PER_SECOND,
    REPLAYS_MAX,
    RESET_DATAGRAM_BYTES_MIN,
    RESETS_PER_SECOND,
    SOURCE_INITS_BURST,
    SOURCE_INITS_PER_SECOND,
    SOURCES_MAX,
)
from gradwire_protocol.security.handshake import Agreement, make_protections, start_handshake
from gradwire_protocol.security.sealed import Workspace
from gradwire_protocol.security.unproved import Cookies, SourceBuckets, TokenBucket
from gradwire_protocol.wire.packets import (
    COOKIE_AT,
    COOKIE_LENGTH_AT,
    KEY_ID_AT,
    NO_TOKEN,
    PUBLIC_KEY_BYTES,
    SUITE_AT,
    TOKEN_BYTES,
    Accept,
    Greeting,
    Init,
    Reply,
    TransportLimits,
    pack_reset,
    pack_retry,
    session_id_of,
)


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """An answered INIT whose initiator has sent no packet yet."""

    session_id: int
    init: Init
    address: Address
    accept: bytes
    agreement: Agreement
    expires: float


class Replays:
    """The time of the last INIT of each key.

    A sealed greeting holds the time of day, so a replayed INIT is not newer than the last one.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, int] = OrderedDict()

    def record_if_newer(self, key_id: bytes, unix_time_ns: int) -> bool:
        """Return whether an INIT is newer than all earlier ones of its key; if so, record it."""
        if unix_time_ns <= self._last.get(key_id, -1):
            return False
        self._last[key_id] = unix_time_ns
        self._last.move_to_end(key_id)
        if len(self._last) > REPLAYS_MAX:
            self._last.popitem(last=False)
        return True


class Responder:
    """The half of an endpoint that accepts connections.

    Parameters
    ----------
    credentials : Credentials or None
        Credentials with a keyring; suite 0 if there is none.
    new_session_id : callable
        Returns a free session id.
    source_of : callable
        Returns the part of an address that counts as its source.
    """

    def __init__(
        self,
        limits: TransportLimits,
        credentials: Credentials | None,
        *,
        counters: Counters,
        random_bytes: Callable[[int], bytes],
        new_session_id: Callable[[], int],
        source_of: Callable[[Address], Hashable],
        workspace: Workspace,
    ) -> None:
        self._limits = limits
        self._counters = counters
        self._random_bytes = random_bytes
        self._new_session_id = new_session_id
        self._source_of = source_of
        self._workspace = workspace
        self.keyring = None if credentials is None else credentials.keyring
        """Keys of the peers to admit; None admits every peer, in suite 0."""
        self._half_open: OrderedDict[int, HalfOpen] = OrderedDict()
        self._answered: dict[tuple[Address, int], int] = {}
        self._cookies = Cookies(random_bytes)
        self._inits = TokenBucket(INITS_PER_SECOND, INITS_BURST)
        self._sources = SourceBuckets(SOURCE_INITS_PER_SECOND, SOURCE_INITS_BURST, SOURCES_MAX)
        self._replays = Replays()
        self._resets = TokenBucket(RESETS_PER_SECOND, RESETS_PER_SECOND)
        self.instance = "" if credentials is None else credentials.instance
        self._is_unsealed = credentials is None
        """Without keys, any host that knows a session id can end the session by a CLOSE or a
        RESET."""

    def __contains__(self, session_id: int) -> bool:
        """Return whether an INIT was answered with this session id."""
        return session_id in self._half_open

    def __len__(self) -> int:
        """Return the number of half-open connections."""
        return len(self._half_open)

    def receive_init(self, view: memoryview, address: Address, now: float) -> bytes | None:
        """Return the answer to an INIT of our version, if it gets one.

        Parameters
        ----------
        view : memoryview
            The INIT, `INIT_BYTES` long.

        Raises
        ------
        InvalidDatagramError
            If the datagram is malformed.
        """
        keyring = self.keyring
        if keyring is not None and not keyring.knows(view[KEY_ID_AT]):
            reason = Drop.UNKNOWN_KEY if view[SUITE_AT] else Drop.OTHER_SUITE
            self._counters.count_refused(reason, address, view[KEY_ID_AT])
            return None
        has_cookie = self._has_valid_cookie(view, address, now)
        if not has_cookie and not self._inits.try_spend(now):
            # Not even parsed: this path has to cope with tens of thousands a second.
            self._counters.retries_sent += 1
            cookie = self._cookies.make(address, view[KEY_ID_AT], now)
            return pack_retry(session_id_of(view), cookie)
        init = Init.parse(view)
        if (init.suite is Suite.CHECKSUM) is (keyring is not None):
            self._counters.count_refused(Drop.OTHER_SUITE, address, init.key_id)
            return None
        if has_cookie and not self._sources.try_spend(self._source_of(address), now):
            self._counters.count_drop(Drop.TOO_MANY)
            return None
        self._expire(now)
        half_open = self._earlier_answer(init, address) or self._answer(init, address, now)
        if half_open is None:
            return None
        self._counters.handshakes_answered += 1
        return half_open.accept

    def establish(self, session_id: int, view: memoryview, now: float) -> HalfOpen | None:
        """Return the half-open connection that this packet completes, if the packet opens."""
        self._expire(now)
        half_open = self._half_open.get(session_id)
        if half_open is None:
            self._counters.count_drop(Drop.UNKNOWN_SESSION)
            return None
        if half_open.agreement.opening.open(view) is None:
            self._counters.count_drop(Drop.NOT_AUTHENTIC)
            return None
        # Forget every answer to this initiator, which may have sent several INITs.
        asked = (half_open.address, half_open.init.session_id, half_open.init.key_id)
        for other in list(self._half_open.values()):
            if (other.address, other.init.session_id, other.init.key_id) == asked:
                self._forget(other)
        return half_open

    def reset_for(self, session_id: int, size: int, now: float) -> bytes | None:
        """Return the RESET for a packet of an unknown session, if any."""
        if size < RESET_DATAGRAM_BYTES_MIN or not self._resets.try_spend(now):
            return None
        token = self._token(session_id)
        if token == NO_TOKEN:
            return None
        self._counters.resets_sent += 1
        return pack_reset(session_id, token)

    def forget_denied(self) -> None:
        """Forget half-open connections that the keyring no longer admits."""
        for half_open in list(self._half_open.values()):
            identity = half_open.agreement.identity
            if self.keyring and identity and not self.keyring.admits(identity):
                self._forget(half_open)

    # Private.

    def _has_valid_cookie(self, view: memoryview, address: Address, now: float) -> bool:
        if not view[COOKIE_LENGTH_AT]:
            return False
        cookie = bytes(view[COOKIE_AT])
        if self._cookies.is_valid(cookie, address, view[KEY_ID_AT], now):
            return True
        self._counters.count_drop(Drop.COOKIE)
        return False

    def _earlier_answer(self, init: Init, address: Address) -> HalfOpen | None:
        known = self._answered.get((address, init.session_id))
        if known is None:
            return None
        half_open = self._half_open[known]
        return half_open if half_open.init == init.without_cookie() else None

    def _answer(self, init: Init, address: Address, now: float) -> HalfOpen | None:
        secret = None if self.keyring is None else self.keyring.secret_of(init.key_id)
        state = start_handshake(init.suite, secret or b"", init.prologue)
        try:
            greeting = Greeting.parse(state.read_init(init.public_key, init.sealed))
        except NotAuthenticError:
            self._counters.count_drop(Drop.NOT_AUTHENTIC)
            return None
        identity = None
        if self.keyring is not None:
            identity = self._identify(init, greeting, address)
            if identity is None:
                return None
        session_id = self._new_session_id()
        reply = Reply(session_id, self._limits, self._token(session_id))
        public_key, sealed = state.write_accept(self._random_bytes(PUBLIC_KEY_BYTES), reply.pack())
        theirs, ours = state.keys
        sealing, opening = make_protections(init.suite, ours, theirs, self._workspace)
        half_open = HalfOpen(
            session_id,
            init.without_cookie(),
            address,
            Accept(init.suite, init.session_id, public_key, sealed).pack(),
            Agreement(init.session_id, greeting.limits, sealing, opening, identity),
            now + HALF_OPEN_SECONDS_MAX,
        )
        self._make_room(identity)
        self._half_open[session_id] = half_open
        self._answered[address, init.session_id] = session_id
        return half_open

    def _identify(self, init: Init, greeting: Greeting, address: Address) -> Identity | None:
        """Return the initiator's identity, if it is admitted."""
        assert self.keyring is not None
        identity = self.keyring.identity(init.key_id, greeting.name)
        if identity is None:
            raise InvalidDatagramError("the name in the INIT does not match its key")
        if not self.keyring.admits(identity):
            self._counters.count_refused(Drop.DENIED, address, init.key_id, identity.name)
            return None
        if not self._replays.record_if_newer(init.key_id, greeting.unix_time_ns):
            self._counters.count_refused(Drop.REPLAYED, address, init.key_id, identity.name)
            return None
        return identity

    def _make_room(self, identity: Identity | None) -> None:
        """Evict the oldest half-open connections to make room for one of this identity."""
        if len(self._half_open) >= HALF_OPEN_MAX:
            self._forget(next(iter(self._half_open.values())))
        if identity is None:
            return
        # Otherwise a single worker could push out all others by repeated INITs.
        same = [h for h in self._half_open.values() if h.agreement.identity == identity]
        if len(same) >= HALF_OPEN_OF_KEY_MAX:
            self._forget(same[0])

    def _token(self, session_id: int) -> bytes:
        if self._is_unsealed:
            return blake2s(session_id.to_bytes(4, "little"), digest_size=TOKEN_BYTES).digest()
        if self.keyring is None or not self.instance:
            return NO_TOKEN
        # Use the oldest run key, which stays the same when a key is added. A removed run key, which
        # may have been leaked, makes no more tokens.
        key = self.keyring.run_keys[-1].reset_key(self.instance)
        data = session_id.to_bytes(4, "little")
        return blake2s(data, key=key, digest_size=TOKEN_BYTES).digest()

    def _forget(self, half_open: HalfOpen) -> None:
        del self._half_open[half_open.session_id]
        key = (half_open.address, half_open.init.session_id)
        if self._answered.get(key) == half_open.session_id:
            del self._answered[key]

    def _expire(self, now: float) -> None:
        while self._half_open:
            oldest = next(iter(self._half_open.values()))
            if oldest.expires > now:
                break
            self._forget(oldest)
