"""The initiator: repeat the INIT until there is an answer, and no longer than agreed."""

from dataclasses import replace
from random import Random

import pytest

from gradwire_protocol import Credentials, InvalidDatagramError, Suite, UsageError, WorkerKey
from gradwire_protocol.limits import HALF_OPEN_SECONDS_MAX, INIT_SECONDS_MAX, RETRIES_MAX
from gradwire_protocol.security.handshake import (
    Agreement,
    Initiator,
    make_protections,
    start_handshake,
)
from gradwire_protocol.security.sealed import Workspace
from gradwire_protocol.wire.packets import (
    NO_KEY_ID,
    NO_TOKEN,
    PUBLIC_KEY_BYTES,
    TRANSPORT,
    TRANSPORT_HEADER,
    Accept,
    Greeting,
    Init,
    Reply,
    pack_retry,
)
from support.endpoints import LIMITS
from support.keyed import WORKER_KEY
from support.wording import naming

TIME = 1_700_000_000_000_000_000
REPLY = Reply(9, replace(LIMITS, window_bytes=2**25), b"t" * 16)
SUITES = pytest.mark.parametrize("suite", Suite)
PACKET = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, 9, 0) + b"data"


def initiator_of(
    suite: Suite = Suite.CHECKSUM, *, key: WorkerKey | None = WORKER_KEY, now: float = 0.0
) -> Initiator:
    """Return an attempt to connect that lasts 10 seconds."""
    return Initiator(
        1,
        LIMITS,
        None
        if suite is Suite.CHECKSUM
        else Credentials(key=key, suite=suite, unix_time_ns=lambda: TIME),
        random_bytes=Random(1).randbytes,
        workspace=Workspace(),
        timeout_seconds=10.0,
        now=now,
    )


def answer_to(init: Init, reply: Reply = REPLY) -> tuple[bytes, Greeting, Agreement]:
    """Return the ACCEPT of a responder that knows the key, what it has read, and what it has."""
    secret = b"" if init.suite is Suite.CHECKSUM else WORKER_KEY.secret
    state = start_handshake(init.suite, secret, init.prologue)
    greeting = Greeting.parse(state.read_init(init.public_key, init.sealed))
    public_key, sealed = state.write_accept(b"p" * PUBLIC_KEY_BYTES, reply.pack())
    theirs, ours = state.keys
    sealing, opening = make_protections(init.suite, ours, theirs, Workspace())
    accept = Accept(init.suite, init.session_id, public_key, sealed)
    return accept.pack(), greeting, Agreement(1, LIMITS, sealing, opening)


def accepted(initiator: Initiator, accept: bytes) -> Agreement:
    return initiator.receive_accept(memoryview(accept))


def test_an_init_is_repeated_at_growing_intervals_until_time_is_up() -> None:
    initiator = initiator_of(now=100.0)

    times = []
    while (now := initiator.next_timer) < initiator.deadline:
        assert initiator.datagram_to_send(now - 0.001) is None
        assert initiator.datagram_to_send(now) == initiator.init.pack()
        times.append(now - 100.0)

    assert times == [0.0, 0.25, 0.75, 1.75, 3.75, 5.75, 7.75, 9.75]
    assert initiator.inits_sent == 8
    assert initiator.next_timer == initiator.deadline == 110.0


@pytest.mark.parametrize("suite", [Suite.AES, Suite.CHACHA])
def test_it_asks_anew_before_the_other_side_can_have_forgotten_what_it_answered(
    suite: Suite,
) -> None:
    """The same INIT would be a replay then."""
    assert INIT_SECONDS_MAX < HALF_OPEN_SECONDS_MAX
    initiator = initiator_of(suite)
    first = initiator.init
    while initiator.next_timer < INIT_SECONDS_MAX:
        assert initiator.datagram_to_send(initiator.next_timer) == first.pack()

    again = Init.parse(initiator.datagram_to_send(initiator.next_timer) or b"")

    assert again.prologue == first.prologue
    assert again.public_key != first.public_key
    with pytest.raises(InvalidDatagramError):
        accepted(initiator, answer_to(first)[0])
    assert accepted(initiator, answer_to(again)[0]).limits == REPLY.limits


# What it says.


@SUITES
def test_an_init_says_what_a_responder_has_to_know(suite: Suite) -> None:
    init = Init.parse(initiator_of(suite).datagram)

    _, greeting, _ = answer_to(init)

    assert (init.suite, init.session_id, init.cookie) == (suite, 1, b"")
    if suite is Suite.CHECKSUM:
        assert init.key_id == NO_KEY_ID
        assert greeting == Greeting(LIMITS)
    else:
        assert init.key_id == WORKER_KEY.key_id
        assert greeting == Greeting(LIMITS, TIME, WORKER_KEY.name)


def test_who_has_credentials_never_falls_back_to_what_is_not_sealed() -> None:
    with pytest.raises(UsageError, match=naming("credentials", "key")):
        initiator_of(Suite.AES, key=None)


def test_a_reset_token_shows_in_no_representation() -> None:
    _, _, agreement = answer_to(initiator_of().init)
    agreement = replace(agreement, reset_token=REPLY.reset_token)

    assert "tttt" not in repr(REPLY) + repr(agreement)


# Answers.


@SUITES
def test_the_answer_is_taken_and_both_sides_understand_each_other(suite: Suite) -> None:
    initiator = initiator_of(suite)
    accept, _, theirs = answer_to(initiator.init)

    ours = accepted(initiator, accept)

    assert (ours.peer_session_id, ours.limits) == (REPLY.session_id, REPLY.limits)
    assert (ours.reset_token, ours.identity) == (REPLY.reset_token, None)
    for one, other in ((ours, theirs), (theirs, ours)):
        packet = one.sealing.seal(bytearray(PACKET))
        assert one.opening.open(packet) is None, "it is not to be reflected"
        assert bytes(other.opening.open(packet) or b"") == b"data"


@SUITES
def test_an_answer_for_another_session_is_refused(suite: Suite) -> None:
    initiator = initiator_of(suite)
    accept = Accept.parse(answer_to(initiator.init)[0])

    with pytest.raises(InvalidDatagramError, match=naming("session id", "suite")):
        initiator.receive_accept(memoryview(replace(accept, session_id=3).pack()))


@pytest.mark.parametrize(
    ("asked", "answered"),
    [(Suite.AES, Suite.CHECKSUM), (Suite.AES, Suite.CHACHA), (Suite.CHECKSUM, Suite.AES)],
)
def test_an_answer_in_another_suite_is_refused(asked: Suite, answered: Suite) -> None:
    initiator = initiator_of(asked)
    accept, *_ = answer_to(replace(initiator_of(answered).init, session_id=1))

    with pytest.raises(InvalidDatagramError, match=naming("session id", "suite")):
        accepted(initiator, accept)


# Cookies.


@SUITES
def test_with_a_cookie_it_asks_again_at_once_and_the_answer_is_the_same(suite: Suite) -> None:
    initiator = initiator_of(suite)
    first = initiator.datagram_to_send(0.0)
    assert first is not None

    initiator.receive_retry(memoryview(pack_retry(1, b"c" * 16)), 0.1)
    second = initiator.datagram_to_send(0.1)

    assert second is not None
    assert Init.parse(second).cookie == b"c" * 16
    assert Init.parse(second).without_cookie() == Init.parse(first)
    agreement = accepted(initiator, answer_to(Init.parse(second))[0])
    assert agreement.peer_session_id == REPLY.session_id


@pytest.mark.parametrize(
    "cookies", [[b"c" * 16], [bytes([n] * 16) for n in range(RETRIES_MAX)]], ids=["same", "many"]
)
def test_nobody_can_make_it_ask_for_ever(cookies: list[bytes]) -> None:
    initiator = initiator_of()
    for cookie in cookies:
        initiator.receive_retry(memoryview(pack_retry(1, cookie)), 0.0)
    initiator.datagram_to_send(0.0)

    with pytest.raises(InvalidDatagramError, match=naming("RETRY", RETRIES_MAX)):
        initiator.receive_retry(memoryview(pack_retry(1, b"c" * 16)), 0.0)

    assert initiator.datagram_to_send(0.0) is None


# RESETs.


@pytest.mark.parametrize(
    ("named", "came", "is_reset"),
    [
        pytest.param(REPLY.reset_token, REPLY.reset_token, True, id="its own"),
        pytest.param(REPLY.reset_token, b"T" * 16, False, id="another"),
        pytest.param(NO_TOKEN, NO_TOKEN, False, id="zeros where none was named"),
    ],
)
def test_a_connection_is_reset_by_its_own_token_only(
    named: bytes, came: bytes, is_reset: bool
) -> None:
    initiator = initiator_of(Suite.AES)
    accept, *_ = answer_to(initiator.init, replace(REPLY, reset_token=named))

    assert accepted(initiator, accept).is_reset(came) == is_reset
