"""Who is let in, what it costs whom, and what those hear who are not."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import (
    Counters,
    Credentials,
    Drop,
    InvalidDatagramError,
    Keyring,
    Suite,
    WorkerKey,
)
from gradwire_protocol.crypto.keys import KEY_ID_BYTES
from gradwire_protocol.limits import (
    COOKIE_SECONDS,
    HALF_OPEN_MAX,
    HALF_OPEN_OF_KEY_MAX,
    HALF_OPEN_SECONDS_MAX,
    INITS_BURST,
    INITS_PER_SECOND,
    REPLAYS_MAX,
    RESET_DATAGRAM_BYTES_MIN,
    SOURCE_INITS_BURST,
)
from gradwire_protocol.security.handshake import Agreement, Initiator
from gradwire_protocol.security.responder import HalfOpen, Replays, Responder
from gradwire_protocol.security.sealed import Workspace
from gradwire_protocol.wire.frames import pack_ping
from gradwire_protocol.wire.packets import (
    COOKIE_BYTES,
    COOKIE_LENGTH_AT,
    INIT_BYTES,
    NO_TOKEN,
    RETRY,
    TRANSPORT,
    TRANSPORT_HEADER,
    pack_retry,
    parse_retry_or_reset,
    session_id_of,
)
from support.endpoints import LIMITS, NOW
from support.insides import answers_of, replays_of
from support.keyed import INSTANCE, OTHER_RUN_KEY, RUN_KEY, WORKER_KEY, TimeOfDay
from support.wording import naming

SUITES = pytest.mark.parametrize("suite", Suite)
TIME = TimeOfDay()
"""Of all initiators: every INIT is newer than the one before."""


def initiator_of(
    suite: Suite = Suite.AES, *, session_id: int = 7, key: WorkerKey = WORKER_KEY, seed: int = 3
) -> Initiator:
    credentials = Credentials(key=key, suite=suite, unix_time_ns=TIME)
    return Initiator(
        session_id,
        LIMITS,
        credentials if suite is not Suite.CHECKSUM else None,
        random_bytes=Random(seed).randbytes,
        workspace=Workspace(),
        timeout_seconds=10.0,
        now=NOW,
    )


@dataclass
class Door:
    """A responder and what it looks at."""

    keyring: Keyring | None = field(default_factory=lambda: Keyring([RUN_KEY]))
    instance: str = INSTANCE
    counters: Counters = field(default_factory=Counters)
    responder: Responder = field(init=False)

    def __post_init__(self) -> None:
        keyring, instance = self.keyring, self.instance
        self.responder = responder_of(
            Credentials(keyring=keyring, unix_time_ns=TIME, instance=instance) if keyring else None,
            self.counters,
        )

    @classmethod
    def for_suite(cls, suite: Suite) -> "Door":
        """Return a door for initiators of a suite."""
        return cls() if suite is not Suite.CHECKSUM else cls(None)

    def ask(self, datagram: bytes, address: str = "peer:1", now: float = NOW) -> bytes | None:
        """Return the answer to an INIT, if it gets one."""
        return self.responder.receive_init(memoryview(datagram), address, now)

    def answer(self, datagram: bytes, address: str = "peer:1", now: float = NOW) -> bytes:
        """Return the answer that an INIT has to get."""
        answer = self.ask(datagram, address, now)
        assert answer is not None
        return answer

    def agree(self, initiator: Initiator, address: str = "peer:1", now: float = NOW) -> Agreement:
        """Let an initiator and the responder agree."""
        return initiator.receive_accept(memoryview(self.answer(initiator.datagram, address, now)))

    def ask_for_a_cookie(self, initiator: Initiator) -> bytes:
        """Let an initiator receive the RETRY that its INIT has to get; return it."""
        retry = self.answer(initiator.datagram)
        initiator.receive_retry(memoryview(retry), NOW)
        return retry

    def establish(self, agreement: Agreement, now: float = NOW) -> HalfOpen | None:
        """Let the first packet of a connection come."""
        packet = memoryview(first_packet(agreement))
        return self.responder.establish(agreement.peer_session_id, packet, now)

    def resets(self, session_id: int, agreement: Agreement) -> bool:
        """Return whether a connection believes the RESET that a packet of a session has to get."""
        reset = self.responder.reset_for(session_id, RESET_DATAGRAM_BYTES_MIN, NOW)
        assert reset is not None
        assert session_id_of(reset) == session_id
        return agreement.is_reset(parse_retry_or_reset(reset))

    def drops(self) -> dict[Drop, int]:
        return {reason: n for reason, n in self.counters.drops.items() if n}

    def exhaust(self, now: float = NOW) -> None:
        """Let so many INITs of nobody come that a cookie is asked for."""
        forged = replace(initiator_of().init, sealed=bytes(104)).pack()
        if self.keyring is None:
            forged = initiator_of(Suite.CHECKSUM, session_id=99).datagram
        answers = [self.ask(forged, f"flood:{n}", now) for n in range(INITS_BURST + 1)]
        assert answers[-1] is not None
        assert answers[-1][0] == RETRY
        self.counters.retries_sent = 0


def responder_of(credentials: Credentials | None, counters: Counters) -> Responder:
    """Return a responder whose sources are the hosts of addresses."""
    random = Random(1)
    return Responder(
        LIMITS,
        credentials,
        counters=counters,
        random_bytes=random.randbytes,
        new_session_id=lambda: random.getrandbits(32) | 1,
        source_of=lambda address: str(address).split(":")[0],
        workspace=Workspace(),
    )


def first_packet(agreement: Agreement) -> bytes:
    """Return the packet that opens a connection."""
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, agreement.peer_session_id, 0)
    return bytes(agreement.sealing.seal(bytearray(header + pack_ping())))


# Who is let in.


@pytest.mark.parametrize(
    ("keyring", "suite", "key", "reason"),
    [
        (Keyring([RUN_KEY]), Suite.CHECKSUM, WORKER_KEY, Drop.OTHER_SUITE),
        (None, Suite.AES, WORKER_KEY, Drop.OTHER_SUITE),
        (None, Suite.CHACHA, WORKER_KEY, Drop.OTHER_SUITE),
        (Keyring([RUN_KEY]), Suite.AES, OTHER_RUN_KEY.worker_key("worker"), Drop.UNKNOWN_KEY),
        (Keyring([RUN_KEY]), Suite.AES, replace(WORKER_KEY, secret=b"f" * 32), Drop.NOT_AUTHENTIC),
        (Keyring([RUN_KEY], denied=["worker"]), Suite.AES, WORKER_KEY, Drop.DENIED),
    ],
)
def test_who_is_not_let_in_is_not_answered_and_leaves_nothing(
    keyring: Keyring | None, suite: Suite, key: WorkerKey, reason: Drop
) -> None:
    door, untouched = Door(keyring), Door(keyring)
    datagram = initiator_of(suite, key=key).datagram

    assert door.ask(datagram) is None
    assert door.drops() == {reason: 1}
    assert len(door.responder) == 0
    assert replays_of(door.responder) == replays_of(untouched.responder)
    refused = door.counters.refused.get(reason)
    assert (refused is None) == (reason is Drop.NOT_AUTHENTIC)  # as any damaged packet
    if refused is not None:
        assert refused.key_id == (bytes(KEY_ID_BYTES) if suite is Suite.CHECKSUM else key.key_id)
        assert refused.name == ("worker" if reason is Drop.DENIED else "")


def test_a_name_that_is_not_the_keys_is_refused() -> None:
    door = Door()
    liar = replace(WORKER_KEY, name="somebody-else")

    with pytest.raises(InvalidDatagramError, match=naming("name", "key")):
        door.ask(initiator_of(key=liar).datagram)
    assert len(door.responder) == 0


@SUITES
@given(data=st.data())
def test_no_byte_of_an_init_can_be_changed(suite: Suite, data: st.DataObject) -> None:
    door = Door.for_suite(suite)
    datagram = bytearray(initiator_of(suite).datagram)
    at = data.draw(st.integers(1, 175))
    datagram[at] ^= data.draw(st.integers(1, 255))

    try:
        answer = door.ask(bytes(datagram))
    except InvalidDatagramError:
        answer = None

    # The version is the endpoint's to look at, and no part of what this side hashes. A cookie
    # comes later than what is authenticated, and one that is not good counts as none.
    has_cookie = datagram[COOKIE_LENGTH_AT] == COOKIE_BYTES
    assert answer is None or at == 1 or has_cookie
    assert len(door.responder) == (answer is not None)


# Again.


@SUITES
def test_the_same_init_gets_the_same_answer_and_costs_nothing_more(suite: Suite) -> None:
    door, initiator = Door.for_suite(suite), initiator_of(suite)

    answers = {door.answer(initiator.datagram, now=NOW + n) for n in range(5)}

    assert len(answers) == 1
    assert len(door.responder) == 1
    assert door.counters.handshakes_answered == 5


@given(times=st.lists(st.integers(0, 20), max_size=30))
def test_only_what_is_newer_than_everything_before_is_new(times: list[int]) -> None:
    replays = Replays()

    for n, time in enumerate(times):
        assert replays.record_if_newer(b"key", time) == (time > max(times[:n], default=-1))


def test_the_keys_remembered_are_bounded_and_the_one_unused_for_longest_is_forgotten() -> None:
    replays = Replays()
    for n in range(REPLAYS_MAX):
        assert replays.record_if_newer(n.to_bytes(4), 5)
    assert replays.record_if_newer((0).to_bytes(4), 6)

    assert replays.record_if_newer(b"one more", 5)

    assert not replays.record_if_newer((0).to_bytes(4), 6)
    assert replays.record_if_newer((1).to_bytes(4), 5), "it is forgotten"


# Memory.


@SUITES
def test_half_open_connections_are_bounded_and_the_oldest_gives_way(suite: Suite) -> None:
    door = Door.for_suite(suite)
    agreements = []
    for n in range(HALF_OPEN_MAX + 1):
        now = NOW + n / INITS_PER_SECOND
        key = RUN_KEY.worker_key(f"worker-{n}")
        initiator = initiator_of(suite, session_id=n + 1, seed=n, key=key)
        agreements.append(door.agree(initiator, now=now))

    established = [door.establish(each, now) is not None for each in agreements[:2]]

    assert len(door.responder) == HALF_OPEN_MAX - 1
    assert established == [False, True]


def test_one_key_cannot_push_out_the_half_open_connections_of_others() -> None:
    door = Door()
    honest = door.agree(initiator_of(key=RUN_KEY.worker_key("another")), "peer:2")
    agreements = [
        door.agree(initiator_of(session_id=n + 1, seed=n), now=NOW + n / INITS_PER_SECOND)
        for n in range(2 * HALF_OPEN_MAX)
    ]

    kept = [agreement.peer_session_id in door.responder for agreement in agreements]

    assert kept == [n >= len(kept) - HALF_OPEN_OF_KEY_MAX for n in range(len(kept))]
    assert honest.peer_session_id in door.responder
    assert answers_of(door.responder) == len(door.responder) == HALF_OPEN_OF_KEY_MAX + 1


@SUITES
def test_half_open_connections_are_forgotten_when_their_time_is_up(suite: Suite) -> None:
    door, initiator = Door.for_suite(suite), initiator_of(suite)
    agreement = door.agree(initiator)

    assert door.establish(agreement, NOW + HALF_OPEN_SECONDS_MAX) is None
    assert answers_of(door.responder) == len(door.responder) == 0


def test_a_packet_that_proves_nothing_leaves_it_half_open() -> None:
    door, initiator = Door(), initiator_of()
    agreement = door.agree(initiator)
    packet = bytearray(first_packet(agreement))
    packet[-1] ^= 1

    assert door.responder.establish(agreement.peer_session_id, memoryview(packet), NOW) is None
    assert door.drops() == {Drop.NOT_AUTHENTIC: 1}
    packet[-1] ^= 1
    assert door.responder.establish(agreement.peer_session_id, memoryview(packet), NOW)


@pytest.mark.parametrize("taken", [0, 1])
def test_of_several_inits_of_one_attempt_any_leads_in_and_the_others_are_forgotten(
    taken: int,
) -> None:
    """An initiator that is not answered for long makes a new INIT."""
    door = Door(None)
    agreements = [door.agree(initiator_of(Suite.CHECKSUM, seed=seed)) for seed in (1, 2)]
    door.agree(initiator_of(Suite.CHECKSUM, seed=3), "somebody else")
    assert len(door.responder) == 3

    assert door.establish(agreements[taken])

    assert answers_of(door.responder) == len(door.responder) == 1
    assert not door.establish(agreements[1 - taken])


def test_who_is_denied_later_does_not_stay_half_open() -> None:
    door = Door()
    door.agree(initiator_of())
    door.agree(initiator_of(key=RUN_KEY.worker_key("another")), "peer:2")

    door.responder.keyring = Keyring([RUN_KEY], denied=["worker"])
    door.responder.forget_denied()

    assert len(door.responder) == 1


# Cookies.


@SUITES
def test_under_load_a_cookie_is_asked_for_and_with_it_one_is_let_in(suite: Suite) -> None:
    door, initiator = Door.for_suite(suite), initiator_of(suite)
    door.exhaust()
    kept = len(door.responder)

    retry = door.ask_for_a_cookie(initiator)
    assert len(retry) < INIT_BYTES
    assert (retry[0], session_id_of(retry)) == (RETRY, 7)
    assert len(door.responder) == kept, "nothing is kept of an initiator without a cookie"
    agreement = door.agree(initiator)

    assert agreement.peer_session_id in door.responder
    assert door.counters.retries_sent == 1


@pytest.mark.parametrize(
    ("address", "later"), [("elsewhere:1", 0.0), ("peer:2", 0.0), ("peer:1", 2 * COOKIE_SECONDS)]
)
def test_a_cookie_of_another_address_or_time_is_as_none(address: str, later: float) -> None:
    door, initiator = Door(), initiator_of()
    door.exhaust()
    retry = door.ask_for_a_cookie(initiator)
    door.exhaust(NOW + later)

    another = door.answer(initiator.datagram, address, NOW + later)
    assert another[0] == RETRY
    assert parse_retry_or_reset(another) != parse_retry_or_reset(retry)
    assert door.drops()[Drop.COOKIE] == 1
    assert len(door.responder) == 0


def test_where_no_cookie_is_asked_for_a_wrong_one_does_no_harm() -> None:
    """As after a restart, or where somebody else has sent a RETRY."""
    door, initiator = Door(), initiator_of()
    initiator.receive_retry(memoryview(pack_retry(7, b"c" * 16)), NOW)

    agreement = door.agree(initiator)

    assert agreement.peer_session_id in door.responder
    assert door.drops() == {Drop.COOKIE: 1}


def test_a_source_with_cookies_cannot_use_up_what_another_one_has() -> None:
    door = Door()
    door.exhaust()
    forged = replace(initiator_of().init, sealed=bytes(104))
    forged = replace(forged, cookie=parse_retry_or_reset(door.answer(forged.pack(), "flood:1")))
    before = door.drops()[Drop.NOT_AUTHENTIC]

    for _ in range(SOURCE_INITS_BURST + 5):
        assert door.ask(forged.pack(), "flood:1") is None
    honest = initiator_of()
    door.ask_for_a_cookie(honest)

    assert door.drops()[Drop.NOT_AUTHENTIC] == before + SOURCE_INITS_BURST
    assert door.drops()[Drop.TOO_MANY] == 5
    assert door.ask(honest.datagram) is not None


def test_when_the_load_is_over_no_cookie_is_asked_for() -> None:
    door, initiator = Door(), initiator_of()
    door.exhaust()

    assert door.answer(initiator.datagram, now=NOW + 2 / INITS_PER_SECOND)[0] != RETRY


# RESETs.


@pytest.mark.parametrize(
    ("door", "believed"),
    [
        pytest.param(Door(), True, id="the same after a restart"),
        pytest.param(Door(Keyring([OTHER_RUN_KEY, RUN_KEY])), True, id="with a new key in front"),
        pytest.param(Door(instance="another"), False, id="another instance"),
        pytest.param(Door(Keyring([OTHER_RUN_KEY])), False, id="of another run"),
    ],
)
def test_the_token_of_a_reset_follows_from_the_oldest_run_key_and_the_instance(
    door: Door, believed: bool
) -> None:
    agreement = Door().agree(initiator_of())

    assert door.resets(agreement.peer_session_id, agreement) == believed


def test_a_run_key_that_was_taken_out_makes_no_tokens_any_more() -> None:
    door = Door(Keyring([OTHER_RUN_KEY, RUN_KEY]))
    door.responder.keyring = Keyring([OTHER_RUN_KEY])

    agreement = door.agree(initiator_of(key=OTHER_RUN_KEY.worker_key("worker")))

    doors = [Door(Keyring([key])) for key in (RUN_KEY, OTHER_RUN_KEY)]
    assert [door.resets(agreement.peer_session_id, agreement) for door in doors] == [False, True]


def test_where_no_session_outlives_the_process_nothing_is_reset() -> None:
    door = Door(instance="")
    agreement = door.agree(initiator_of(Suite.AES))

    assert agreement.reset_token == NO_TOKEN
    assert door.responder.reset_for(5, 1400, NOW) is None


def test_an_endpoint_that_only_dials_has_no_keyring_and_resets_nothing() -> None:
    credentials = Credentials(key=WORKER_KEY, unix_time_ns=TIME, instance=INSTANCE)
    responder = responder_of(credentials, Counters())

    assert responder.keyring is None
    assert responder.reset_for(5, 1400, NOW) is None
