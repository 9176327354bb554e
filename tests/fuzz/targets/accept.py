"""Answers to an INIT: ACCEPT, RETRY, VERSIONS and RESET, as an initiator receives them.

The first byte says whether it has a key; then come answers, each a byte of how, two of a length,
and so many bytes: the answer, or the reply inside an authentic ACCEPT. Who has a key is connected
only by an authentic ACCEPT with a valid reply, and nobody makes an initiator send more INITs than a
few.
"""

from collections.abc import Iterable
from typing import Final

from fuzz.keyed import NOW, WORKER_KEY, dialling
from fuzz.reading import Reader, steps
from gradwire_protocol import Connection, Endpoint, State
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.errors import InvalidDatagramError
from gradwire_protocol.limits import RETRIES_MAX
from gradwire_protocol.security.handshake import start_handshake
from gradwire_protocol.wire.packets import (
    ACCEPT,
    INIT,
    INIT_BYTES,
    PUBLIC_KEY_BYTES,
    RESET,
    RETRY,
    TOKEN_BYTES,
    TRANSPORT,
    VERSION,
    VERSIONS,
    Accept,
    Init,
    Reply,
    pack_reset,
    pack_retry,
    pack_versions,
)
from support.endpoints import LIMITS, events_of, hand_over, sent_by

BYTES_MAX: Final = 512
STEPS_MAX: Final = 12
REPLY_BYTES: Final = 40

KEYED: Final = 0x01
CHACHA: Final = 0x02

KINDS: Final = (ACCEPT, RETRY, VERSIONS, RESET, TRANSPORT)
AUTHENTIC: Final = 0x80
"""The piece is the reply of an ACCEPT; else the kind is chosen by the other bits."""
ELSEWHERE: Final = 0x40
"""It is for another session."""


def check(data: bytes) -> None:
    """Let an initiator receive answers."""
    reader = Reader(data)
    how = reader.integer(1)
    keyed = bool(how & KEYED)
    endpoint = dialling(keyed=keyed, suite=Suite.CHACHA if how & CHACHA else Suite.AES)
    connection = endpoint.connect("master", NOW)
    [(datagram, _)] = sent_by(endpoint, NOW)
    init = Init.parse(datagram)
    inits, accepted = 1, False
    for _ in range(STEPS_MAX):
        if not reader:
            break
        kind = reader.integer(1)
        answer = reader.piece()
        if kind & AUTHENTIC:
            answer, valid = authentic(init, keyed=keyed, reply=answer)
            accepted |= valid and connection.state is State.CONNECTING
        else:
            answer = addressed(connection, kind, answer)
        hand_over(endpoint, [answer], "anywhere", NOW)
        inits += inits_sent(endpoint)
        check_state(connection, connected=accepted or not keyed)
    assert inits <= 1 + RETRIES_MAX
    events_of(endpoint)


def addressed(connection: Connection, kind: int, rest: bytes) -> bytes:
    """Return an answer that anybody can send who has seen the INIT, or who guesses."""
    session_id = connection.session_id ^ bool(kind & ELSEWHERE)
    head = bytes([KINDS[(kind & 0x3F) % len(KINDS)]]) + rest[:3].ljust(3, b"\0")
    return head + session_id.to_bytes(4, "little") + rest[3:]


def authentic(init: Init, *, keyed: bool, reply: bytes) -> tuple[bytes, bool]:
    """Return the ACCEPT of a responder that has the key, and whether it is one to believe."""
    reply = reply[:REPLY_BYTES].ljust(REPLY_BYTES, b"\0")
    state = start_handshake(init.suite, WORKER_KEY.secret if keyed else b"", init.prologue)
    state.read_init(init.public_key, init.sealed)
    public_key, sealed = state.write_accept(bytes(range(PUBLIC_KEY_BYTES)), reply)
    datagram = Accept(init.suite, init.session_id, public_key, sealed).pack()
    try:
        parsed = Reply.parse(reply)
    except InvalidDatagramError:
        return datagram, False
    assert parsed.pack() == reply
    return datagram, True


def inits_sent(endpoint: Endpoint) -> int:
    """Return how many INITs leave now."""
    datagrams = [datagram for datagram, _ in sent_by(endpoint, NOW)]
    assert all(len(datagram) <= INIT_BYTES for datagram in datagrams)
    return sum(datagram[0] == INIT for datagram in datagrams)


def check_state(connection: Connection, *, connected: bool) -> None:
    """Compare a connection with what it may be."""
    assert connection.state in (State.CONNECTING, State.OPEN, State.CLOSED)
    if connection.state is State.OPEN:
        assert connected, "connected by somebody without the key"
        assert connection.bytes_held == 0


def seeds() -> Iterable[bytes]:
    """Return every answer: as it should be, twice, too often, and for others."""
    token = b"t" * TOKEN_BYTES
    reply = Reply(9, LIMITS, token).pack()
    versions = pack_versions(0).replace(bytes([VERSION]), bytes([VERSION + 1]))
    retries = [(1, _rest(pack_retry(0, bytes([i]) * 16))) for i in range(5)]
    forged = _rest(Accept(Suite.AES, 0, bytes(32), bytes(56)).pack())
    for how in (0, KEYED, KEYED | CHACHA):
        yield bytes([how]) + steps((AUTHENTIC, reply), (AUTHENTIC, reply))
    yield bytes([KEYED]) + steps((AUTHENTIC, reply), (3, _rest(pack_reset(0, token))))
    yield bytes([KEYED]) + steps((AUTHENTIC, reply), (3 | ELSEWHERE, _rest(pack_reset(0, token))))
    yield bytes([KEYED]) + steps((AUTHENTIC, bytes(REPLY_BYTES)), (AUTHENTIC, reply))
    yield bytes([KEYED]) + steps(*retries, retries[0], (AUTHENTIC, reply))
    yield bytes([KEYED]) + steps((0, forged), (ELSEWHERE, forged), (2, _rest(versions)))
    yield bytes([0]) + steps((2, b"\1\0\0" + bytes([VERSION])), (4, bytes(30)))


def _rest(datagram: bytes) -> bytes:
    """Return a datagram without what `addressed` puts in."""
    return datagram[1:4] + datagram[8:]
