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
    Role,
    Suite,
)
from gradwire_protocol.limits import (
    COOKIE_SECONDS,
    HALF_OPEN_MAX,
    HALF_OPEN_OF_KEY_MAX,
    HALF_OPEN_SECONDS_MAX,
    INITS_BURST,
    INITS_PER_SECOND,
    REPLAYS_MAX,
    RESET_DATAGRAM_BYTES_MIN,
    RESETS_PER_SECOND,
    SOURCE_INITS_BURST,
)
from gradwire_protocol.security.handshake import Agreement, Initiator
from gradwire_protocol.security.responder import Replays, Responder
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
from support.keyed import INSTANCE, OTHER_RUN_KEY, RUN_KEY, WORKER_KEY, TimeOfDay
from support.state import state_of
from support.wording import naming

SUITES = pytest.mark.parametrize("suite", Suite)
TIME = TimeOfDay()
"""Of all initiators: every INIT is newer than the one before."""


def initiator_of(
    suite: Suite = Suite.AES, *, session_id: int = 7, key: object = WORKER_KEY, seed: int = 3
) -> Initiator:
    """Return an attempt to connect."""
    credentials = Credentials(key=key, suite=suite, unix_time_ns=TIME)  # type: ignore[arg-type]
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
        random = Random(1)
        self.responder = Responder(
            LIMITS,
            Credentials(keyring=self.keyring, unix_time_ns=TIME, instance=self.instance)
            if self.keyring
            else None,
            counters=self.counters,
            random_bytes=random.randbytes,
            new_session_id=lambda: random.getrandbits(32) | 1,
            source_of=lambda address: str(address).split(":")[0],
            workspace=Workspace(),
        )

    @classmethod
    def for_suite(cls, suite: Suite) -> "Door":
        """Return one that lets in those who come with a suite."""
        return cls() if suite is not Suite.CHECKSUM else cls(None)

    def ask(self, datagram: bytes, address: str = "peer:1", now: float = NOW) -> bytes | None:
        """Return what an INIT is answered with."""
        return self.responder.receive_init(memoryview(datagram), address, now)

    def drops(self) -> dict[Drop, int]:
        """Return what was dropped, by reason."""
        return {reason: n for reason, n in self.counters.drops.items() if n}

    def exhaust(self, now: float = NOW) -> None:
        """Let so many INITs come, of nobody, that a cookie is asked for."""
        forged = replace(initiator_of().init, sealed=bytes(104)).pack()
        if self.keyring is None:
            forged = initiator_of(Suite.CHECKSUM, session_id=99).datagram
        answers = [self.ask(forged, f"flood:{n}", now) for n in range(INITS_BURST + 1)]
        assert answers[-1] is not None
        assert answers[-1][0] == RETRY
        self.counters.retries_sent = 0


def first_packet(agreement: Agreement) -> bytes:
    """Return the packet that opens a connection."""
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, agreement.peer_session_id, 0)
    return bytes(agreement.sealing.seal(bytearray(header + pack_ping())))


def agreement_of(door: Door, initiator: Initiator, address: str = "peer:1") -> Agreement:
    """Let an initiator and a responder agree."""
    accept = door.ask(initiator.datagram, address)
    assert accept is not None
    return initiator.receive_accept(memoryview(accept))


# Who is let in.


@SUITES
def test_who_has_a_key_is_let_in_and_known_by_its_name_and_role(suite: Suite) -> None:
    door, initiator = Door.for_suite(suite), initiator_of(suite)

    agreement = agreement_of(door, initiator)
    assert agreement.peer_session_id in door.responder
    assert len(door.responder) == 1
    half_open = door.responder.establish(
        agreement.peer_session_id, memoryview(first_packet(agreement)), NOW
    )

    assert half_open is not None
    assert (half_open.address, half_open.session_id) == ("peer:1", agreement.peer_session_id)
    assert half_open.agreement.peer_session_id == 7
    assert half_open.agreement.limits == LIMITS
    identity = half_open.agreement.identity
    if suite is Suite.CHECKSUM:
        assert identity is None
    else:
        assert identity is not None
        assert (identity.name, identity.role) == ("worker", Role.WORKER)
    assert len(door.responder) == 0
    assert door.drops() == {}


@pytest.mark.parametrize(
    ("keyring", "suite"),
    [(Keyring([RUN_KEY]), Suite.CHECKSUM), (None, Suite.AES), (None, Suite.CHACHA)],
)
def test_with_and_without_keys_do_not_go_together(keyring: Keyring | None, suite: Suite) -> None:
    door = Door(keyring)

    assert door.ask(initiator_of(suite).datagram) is None
    assert door.drops() == {Drop.OTHER_SUITE: 1}


def test_a_key_of_another_run_is_unknown_at_no_cost() -> None:
    door = Door()
    stranger = initiator_of(key=OTHER_RUN_KEY.worker_key("worker"))

    assert door.ask(stranger.datagram) is None
    assert door.drops() == {Drop.UNKNOWN_KEY: 1}


def test_who_knows_a_key_id_but_not_its_secret_is_not_answered_and_leaves_nothing() -> None:
    door, untouched = Door(), Door()
    forger = replace(WORKER_KEY, secret=b"f" * 32)
    untouched.ask(initiator_of(key=OTHER_RUN_KEY.worker_key("worker")).datagram)

    assert door.ask(initiator_of(key=forger).datagram) is None
    assert door.drops() == {Drop.NOT_AUTHENTIC: 1}
    assert len(door.responder) == 0
    assert state_of(door.responder._replays) == state_of(untouched.responder._replays)


def test_who_is_denied_is_not_answered() -> None:
    door = Door(Keyring([RUN_KEY], denied=["worker"]))

    assert door.ask(initiator_of().datagram) is None
    assert door.drops() == {Drop.DENIED: 1}


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

    answers = {door.ask(initiator.datagram, now=NOW + n) for n in range(5)}

    assert len(answers) == 1
    assert answers != {None}
    assert len(door.responder) == 1
    assert door.counters.handshakes_answered == 5


@pytest.mark.parametrize("address", ["peer:1", "elsewhere:1"])
@pytest.mark.parametrize("when", ["established", "expired"])
def test_a_replayed_init_is_refused(when: str, address: str) -> None:
    door, initiator = Door(), initiator_of()
    agreement = agreement_of(door, initiator)
    now = NOW
    if when == "established":
        packet = memoryview(first_packet(agreement))
        assert door.responder.establish(agreement.peer_session_id, packet, now)
    else:
        now += HALF_OPEN_SECONDS_MAX

    assert door.ask(initiator.datagram, address, now) is None
    assert door.drops() == {Drop.REPLAYED: 1}
    assert len(door.responder) == 0


def test_an_init_from_another_address_is_a_replay_at_once() -> None:
    door, initiator = Door(), initiator_of()
    agreement_of(door, initiator)

    assert door.ask(initiator.datagram, "elsewhere:1") is None
    assert door.drops() == {Drop.REPLAYED: 1}
    assert len(door.responder) == 1


def test_an_older_init_is_refused_and_another_keys_are_not_affected() -> None:
    door = Door()
    older, newer = initiator_of(session_id=1), initiator_of(session_id=2)
    agreement_of(door, newer)

    assert door.ask(older.datagram) is None
    assert door.drops() == {Drop.REPLAYED: 1}
    agreement_of(door, initiator_of(key=RUN_KEY.worker_key("another")))


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
        accept = door.ask(initiator.datagram, now=now)
        assert accept is not None
        agreements.append(initiator.receive_accept(memoryview(accept)))

    established = [
        door.responder.establish(
            agreement.peer_session_id, memoryview(first_packet(agreement)), now
        )
        is not None
        for agreement in agreements[:2]
    ]

    assert len(door.responder) == HALF_OPEN_MAX - 1
    assert established == [False, True]


def test_one_key_cannot_push_out_the_half_open_connections_of_others() -> None:
    door = Door()
    honest = agreement_of(door, initiator_of(key=RUN_KEY.worker_key("another")), "peer:2")
    agreements = []
    for n in range(2 * HALF_OPEN_MAX):
        greedy = initiator_of(session_id=n + 1, seed=n)
        accept = door.ask(greedy.datagram, now=NOW + n / INITS_PER_SECOND)
        assert accept is not None
        agreements.append(greedy.receive_accept(memoryview(accept)))

    kept = [agreement.peer_session_id in door.responder for agreement in agreements]

    assert kept == [n >= len(kept) - HALF_OPEN_OF_KEY_MAX for n in range(len(kept))]
    assert honest.peer_session_id in door.responder
    assert len(door.responder._answered) == len(door.responder) == HALF_OPEN_OF_KEY_MAX + 1


@SUITES
def test_half_open_connections_are_forgotten_when_their_time_is_up(suite: Suite) -> None:
    door, initiator = Door.for_suite(suite), initiator_of(suite)
    agreement = agreement_of(door, initiator)
    packet = memoryview(first_packet(agreement))

    late = door.responder.establish(agreement.peer_session_id, packet, NOW + HALF_OPEN_SECONDS_MAX)

    assert late is None
    assert len(door.responder) == 0
    assert door.responder._answered == {}


def test_a_packet_that_proves_nothing_leaves_it_half_open() -> None:
    door, initiator = Door(), initiator_of()
    agreement = agreement_of(door, initiator)
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
    initiators = [initiator_of(Suite.CHECKSUM, seed=seed) for seed in (1, 2)]
    agreements = [agreement_of(door, initiator) for initiator in initiators]
    agreement_of(door, initiator_of(Suite.CHECKSUM, seed=3), "somebody else")
    assert len(door.responder) == 3

    packet = memoryview(first_packet(agreements[taken]))
    assert door.responder.establish(agreements[taken].peer_session_id, packet, NOW)

    assert len(door.responder) == len(door.responder._answered) == 1
    other = memoryview(first_packet(agreements[1 - taken]))
    assert not door.responder.establish(agreements[1 - taken].peer_session_id, other, NOW)


def test_who_is_denied_later_does_not_stay_half_open() -> None:
    door = Door()
    agreement_of(door, initiator_of())
    agreement_of(door, initiator_of(key=RUN_KEY.worker_key("another")), "peer:2")

    door.responder.keyring = Keyring([RUN_KEY], denied=["worker"])
    door.responder.forget_denied()

    assert len(door.responder) == 1


def test_without_keys_nobody_is_denied() -> None:
    door = Door(None)
    agreement_of(door, initiator_of(Suite.CHECKSUM))

    door.responder.forget_denied()

    assert len(door.responder) == 1


# Cookies.


@SUITES
def test_under_load_a_cookie_is_asked_for_and_with_it_one_is_let_in(suite: Suite) -> None:
    door, initiator = Door.for_suite(suite), initiator_of(suite)
    door.exhaust()
    kept = len(door.responder)

    retry = door.ask(initiator.datagram)
    assert retry is not None
    assert len(retry) < INIT_BYTES
    assert (retry[0], session_id_of(retry)) == (RETRY, 7)
    assert len(door.responder) == kept, "nothing is kept of who has no cookie"
    initiator.receive_retry(memoryview(retry), NOW)
    agreement = agreement_of(door, initiator)

    assert agreement.peer_session_id in door.responder
    assert door.counters.retries_sent == 1


def test_the_answer_is_the_same_with_a_cookie_and_without() -> None:
    door, initiator = Door(), initiator_of()
    without = door.ask(initiator.datagram)
    door.exhaust()
    retry = door.ask(initiator.datagram)
    assert retry is not None
    initiator.receive_retry(memoryview(retry), NOW)

    assert door.ask(initiator.datagram) == without
    assert len(door.responder) == 1


@pytest.mark.parametrize(
    ("address", "later"), [("elsewhere:1", 0.0), ("peer:2", 0.0), ("peer:1", 2 * COOKIE_SECONDS)]
)
def test_a_cookie_of_another_address_or_time_is_as_none(address: str, later: float) -> None:
    door, initiator = Door(), initiator_of()
    door.exhaust()
    retry = door.ask(initiator.datagram)
    assert retry is not None
    initiator.receive_retry(memoryview(retry), NOW)
    door.exhaust(NOW + later)

    another = door.ask(initiator.datagram, address, NOW + later)
    assert another is not None
    assert another[0] == RETRY
    assert parse_retry_or_reset(another) != parse_retry_or_reset(retry)
    assert door.drops()[Drop.COOKIE] == 1
    assert len(door.responder) == 0


def test_where_no_cookie_is_asked_for_a_wrong_one_does_no_harm() -> None:
    """As after a restart, or where somebody else has sent a RETRY."""
    door, initiator = Door(), initiator_of()
    initiator.receive_retry(memoryview(pack_retry(7, b"c" * 16)), NOW)

    agreement = agreement_of(door, initiator)

    assert agreement.peer_session_id in door.responder
    assert door.drops() == {Drop.COOKIE: 1}


def test_a_source_with_cookies_cannot_use_up_what_another_one_has() -> None:
    door = Door()
    door.exhaust()
    forged = replace(initiator_of().init, sealed=bytes(104))
    retry = door.ask(forged.pack(), "flood:1")
    assert retry is not None
    forged = replace(forged, cookie=parse_retry_or_reset(retry))
    before = door.drops()[Drop.NOT_AUTHENTIC]

    for _ in range(SOURCE_INITS_BURST + 5):
        assert door.ask(forged.pack(), "flood:1") is None
    honest = initiator_of()
    retry = door.ask(honest.datagram)
    assert retry is not None
    honest.receive_retry(memoryview(retry), NOW)

    assert door.drops()[Drop.NOT_AUTHENTIC] == before + SOURCE_INITS_BURST
    assert door.drops()[Drop.TOO_MANY] == 5
    assert door.ask(honest.datagram) is not None


def test_when_the_load_is_over_no_cookie_is_asked_for() -> None:
    door, initiator = Door(), initiator_of()
    door.exhaust()

    answer = door.ask(initiator.datagram, now=NOW + 2 / INITS_PER_SECOND)

    assert answer is not None
    assert answer[0] != RETRY


# RESETs.


def test_the_token_of_a_reset_is_that_of_the_handshake_whatever_happened_since() -> None:
    agreement = agreement_of(Door(), initiator_of())

    restarted = Door().responder
    reset = restarted.reset_for(agreement.peer_session_id, RESET_DATAGRAM_BYTES_MIN, NOW)

    assert reset is not None
    assert session_id_of(reset) == agreement.peer_session_id
    assert agreement.is_reset(parse_retry_or_reset(reset))


def test_a_new_run_key_in_front_leaves_the_tokens_as_they_are() -> None:
    agreement = agreement_of(Door(), initiator_of())

    rotated = Door(Keyring([OTHER_RUN_KEY, RUN_KEY])).responder
    reset = rotated.reset_for(agreement.peer_session_id, 1400, NOW)

    assert reset is not None
    assert agreement.is_reset(parse_retry_or_reset(reset))


def test_a_run_key_that_was_taken_out_makes_no_tokens_any_more() -> None:
    door = Door(Keyring([OTHER_RUN_KEY, RUN_KEY]))
    door.responder.keyring = Keyring([OTHER_RUN_KEY])

    agreement = agreement_of(door, initiator_of(key=OTHER_RUN_KEY.worker_key("worker")))

    old, new = (
        Door(Keyring([key])).responder.reset_for(agreement.peer_session_id, 1400, NOW)
        for key in (RUN_KEY, OTHER_RUN_KEY)
    )
    assert old is not None
    assert new is not None
    assert not agreement.is_reset(parse_retry_or_reset(old))
    assert agreement.is_reset(parse_retry_or_reset(new))


@pytest.mark.parametrize(
    "door", [Door(instance="another"), Door(Keyring([OTHER_RUN_KEY]))], ids=["instance", "run"]
)
def test_another_master_gives_away_no_token_of_ours(door: Door) -> None:
    agreement = agreement_of(Door(), initiator_of())

    reset = door.responder.reset_for(agreement.peer_session_id, 1400, NOW)

    assert reset is not None
    assert not agreement.is_reset(parse_retry_or_reset(reset))


def test_a_packet_that_is_hardly_larger_than_a_reset_gets_none() -> None:
    responder = Door().responder

    assert responder.reset_for(5, RESET_DATAGRAM_BYTES_MIN - 1, NOW) is None
    reset = responder.reset_for(5, RESET_DATAGRAM_BYTES_MIN, NOW)
    assert reset is not None
    assert len(reset) < RESET_DATAGRAM_BYTES_MIN


def test_resets_are_few() -> None:
    door = Door()

    for n in range(1000):
        door.responder.reset_for(5, 1400, NOW + n / 1000)

    assert RESETS_PER_SECOND <= door.counters.resets_sent <= 2 * RESETS_PER_SECOND


def test_where_no_session_outlives_the_process_nothing_is_reset() -> None:
    door = Door(instance="")
    agreement = agreement_of(door, initiator_of(Suite.AES))

    assert agreement.reset_token == NO_TOKEN
    assert door.responder.reset_for(5, 1400, NOW) is None


def test_without_keys_every_master_can_reset_the_sessions_of_the_one_before() -> None:
    agreement = agreement_of(Door(None), initiator_of(Suite.CHECKSUM))

    reset = Door(None).responder.reset_for(agreement.peer_session_id, 1400, NOW)
    other = Door(None).responder.reset_for(agreement.peer_session_id + 1, 1400, NOW)

    assert reset is not None
    assert agreement.is_reset(parse_retry_or_reset(reset))
    assert other is not None
    assert not agreement.is_reset(parse_retry_or_reset(other))


def test_an_endpoint_that_only_dials_has_no_keyring_and_resets_nothing() -> None:
    door = Door(None)
    responder = Responder(
        LIMITS,
        Credentials(key=WORKER_KEY, unix_time_ns=TIME, instance=INSTANCE),
        counters=door.counters,
        random_bytes=Random(1).randbytes,
        new_session_id=lambda: 5,
        source_of=lambda address: address,
        workspace=Workspace(),
    )

    assert responder.keyring is None
    assert responder.reset_for(5, 1400, NOW) is None
