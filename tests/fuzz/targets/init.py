"""INIT: a byte says how, the rest is the datagram, or the greeting inside an authentic one.

Nobody is answered who has not the key that he names, and the name and a valid greeting with it; an
answer is smaller than what it answers; and the answer to an authentic INIT is one that its
initiator can read.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fuzz.keyed import DENIED_KEY, NOW, UNIX_TIME_NS, WORKER_KEY, responding
from fuzz.reading import Reader
from gradwire_protocol import Endpoint
from gradwire_protocol.crypto.keys import SECRET_BYTES, WorkerKey
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.errors import InvalidDatagramError
from gradwire_protocol.security.handshake import HandshakeState, start_handshake
from gradwire_protocol.wire.packets import (
    ACCEPT,
    COOKIE_BYTES,
    INIT,
    INIT_BYTES,
    NO_KEY_ID,
    PUBLIC_KEY_BYTES,
    RETRY,
    VERSION,
    VERSIONS,
    Accept,
    Greeting,
    Init,
    Reply,
    parse_retry_or_reset,
)
from support.endpoints import LIMITS, ask
from support.insides import spend_inits

BYTES_MAX: Final = 240
"""Behind its first 176 bytes an INIT is padding, which `check` adds."""

GREETING_BYTES: Final = 88
PARSED_BYTES: Final = 176
SUITES: Final = (Suite.AES, Suite.CHACHA)

# How, by bits: one for the suite, then
KEYED: Final = 0x02
"""at an endpoint with keys;"""
AUTHENTIC: Final = 0x04
"""the input is a greeting, and sealed;"""
DENIED: Final = 0x08
"""with the key of a name that is denied;"""
FLOODED: Final = 0x10
"""after as many INITs as are taken without a cookie."""
AGAIN: Final = 0x20
"""once more: it may be a copy, or a replay."""

ADDRESS: Final = "stranger"


def check(data: bytes) -> None:
    """Let an endpoint receive an INIT."""
    reader = Reader(data)
    how = reader.integer(1)
    if how & AUTHENTIC:
        check_authentic(how, reader.rest())
    else:
        check_raw(how, reader.rest())


def check_raw(how: int, data: bytes) -> None:
    """Let an INIT come from somebody without a key."""
    datagram = (bytes([INIT]) + data[1:INIT_BYTES]).ljust(INIT_BYTES, b"\0")
    try:
        init = Init.parse(datagram)
    except InvalidDatagramError:
        pass
    else:
        assert init.pack()[2:PARSED_BYTES] == datagram[2:PARSED_BYTES]
    endpoint = responding(keyed=bool(how & KEYED))
    answers = ask(endpoint, datagram, ADDRESS, NOW)
    check_smaller(answers)
    assert not (how & KEYED and answers and answers[0][0] == ACCEPT), "let in without a key"
    if datagram[1] == VERSION:
        assert not answers or answers[0][0] != VERSIONS


def check_smaller(answers: list[bytes]) -> None:
    """Compare answers with what may be said to a stranger."""
    assert len(answers) <= 1
    assert sum(map(len, answers)) < INIT_BYTES


def check_authentic(how: int, greeting: bytes) -> None:
    """Let an INIT come from the holder of a key, or from anybody where there are none."""
    greeting = greeting[:GREETING_BYTES].ljust(GREETING_BYTES, b"\0")
    keyed, key = bool(how & KEYED), DENIED_KEY if how & DENIED else WORKER_KEY
    init, state = _sealed(how, key if keyed else None, greeting)
    endpoint = responding(keyed=keyed)
    if how & FLOODED:
        init = replace(init, cookie=cookie_from(endpoint, init))
    answers = ask(endpoint, init.pack(), ADDRESS, NOW)
    check_smaller(answers)
    assert bool(answers) is is_welcome(greeting, key, keyed=keyed)
    for answer in answers:
        accept = Accept.parse(answer)
        reply = Reply.parse(state.read_accept(accept.public_key, accept.sealed))
        assert reply.session_id
    if how & AGAIN:
        assert ask(endpoint, init.pack(), ADDRESS, NOW) == answers, "answered in another way"
        elsewhere = ask(endpoint, init.without_cookie().pack(), "elsewhere", NOW)
        assert not (keyed and ACCEPT in {answer[0] for answer in elsewhere}), "replayed"


def cookie_from(endpoint: Endpoint, init: Init) -> bytes:
    """Let an endpoint have more INITs than it answers at once; return the cookie it asks for."""
    spend_inits(endpoint, NOW)
    [retry] = ask(endpoint, init.pack(), ADDRESS, NOW)
    assert retry[0] == RETRY
    check_smaller([retry])
    return parse_retry_or_reset(retry)


def is_welcome(greeting: bytes, key: WorkerKey, *, keyed: bool) -> bool:
    """Return whether who says that is to be let in."""
    try:
        parsed = Greeting.parse(greeting)
    except InvalidDatagramError:
        return False
    assert parsed.pack() == greeting
    return not keyed or parsed.name == key.name != DENIED_KEY.name


def _sealed(how: int, key: WorkerKey | None, greeting: bytes) -> tuple[Init, HandshakeState]:
    suite, key_id, secret = Suite.CHECKSUM, NO_KEY_ID, b""
    if key is not None:
        suite, key_id, secret = SUITES[how % len(SUITES)], key.key_id, key.secret
    blank = Init(suite, 7, key_id, b"", b"")
    state = start_handshake(suite, secret, blank.prologue)
    public_key, sealed = state.write_init(bytes(range(PUBLIC_KEY_BYTES)), greeting)
    return replace(blank, public_key=public_key, sealed=sealed), state


def seeds() -> Iterable[bytes]:
    """Return INITs of all suites with a key and without, and greetings of every kind."""
    named = Greeting(LIMITS, UNIX_TIME_NS, WORKER_KEY.name).pack()
    denied = Greeting(LIMITS, UNIX_TIME_NS, DENIED_KEY.name).pack()
    nobody = Greeting(LIMITS).pack()
    for how in (KEYED, KEYED | 1, KEYED | FLOODED, KEYED | AGAIN, KEYED | FLOODED | AGAIN):
        yield bytes([how | AUTHENTIC]) + named
    yield bytes([AUTHENTIC | AGAIN]) + nobody
    yield bytes([AUTHENTIC | FLOODED]) + nobody
    yield bytes([AUTHENTIC | KEYED]) + nobody
    yield bytes([AUTHENTIC | KEYED | DENIED]) + denied
    yield bytes([AUTHENTIC | KEYED]) + denied
    forged, _ = _sealed(0, replace(WORKER_KEY, secret=bytes(SECRET_BYTES)), named)
    plain, _ = _sealed(0, None, nobody)
    for init in (forged, plain, replace(forged, cookie=b"c" * COOKIE_BYTES)):
        for how in (0, KEYED):
            yield bytes([how]) + init.pack()[:PARSED_BYTES]
    yield bytes([KEYED]) + bytes([INIT, VERSION + 1])
