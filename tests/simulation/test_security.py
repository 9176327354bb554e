"""Sealed connections on networks of all kinds, some of them hostile; and who is let in.

`test_attacker` lets an attacker do as he likes; here, each attack has its test.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    Disconnected,
    Drop,
    Endpoint,
    Priority,
    RunKey,
    State,
    Suite,
)
from gradwire_protocol.limits import (
    AMPLIFICATION_MAX,
    EPOCH_PACKETS_BITS,
    HALF_OPEN_SECONDS_MAX,
    INITS_PER_SECOND,
    RESET_DATAGRAM_BYTES_MIN,
    RESETS_PER_SECOND,
)
from gradwire_protocol.wire.frames import pack_ack, pack_ping
from gradwire_protocol.wire.packets import (
    ACCEPT,
    INIT,
    RESET,
    RETRY,
    RETRY_OR_RESET_BYTES,
    TRANSPORT,
    TRANSPORT_HEADER,
    pack_reset,
)
from support.acks import ack
from support.endpoints import ask, drops, sent_by
from support.insides import go_on_from, keys_of
from support.keyed import (
    OTHER_RUN_KEY,
    RUN_KEY,
    SEALED_SUITES,
    dialling_with,
    listening_with,
)
from support.network import Link
from support.pair import INITIATOR, RESPONDER, Pair, Passing, Side
from support.tiers import examples
from support.wording import naming

SEEDS = pytest.mark.seeds(3)
SEALED = pytest.mark.parametrize("suite", SEALED_SUITES)
ALL_SUITES = pytest.mark.parametrize("suite", [Suite.CHECKSUM, *SEALED_SUITES])
EPOCH = 2**EPOCH_PACKETS_BITS
ATTACKER = "attacker"


def connected(pair: Pair) -> bool:
    """Return whether both sides say that they are connected."""
    return all(Connected() in side.events for side in (pair.initiator, pair.responder))


def ends(side: Side) -> list[tuple[int, bool]]:
    """Return how connections ended: code, and whether by the peer."""
    return [(e.code, e.by_peer) for e in side.events if isinstance(e, Disconnected)]


def of_type(pair: Pair, packet_type: int) -> list[Passing]:
    """Return the packets of a type that were sent."""
    return [passing for passing in pair.wire if passing.packet_type == packet_type]


# Handshakes.


@SEEDS
@ALL_SUITES
def test_handshakes_succeed_on_a_path_that_loses_a_third(suite: Suite, seed: int) -> None:
    took = []
    for attempt in range(50):
        link = Link(delay=0.0075, loss=0.3, loss_burst=1.5, loss_burst_max=3)
        pair = Pair(link, suite=suite, seed=50 * seed + attempt).dial()
        began = pair.network.now
        pair.network.run(lambda: connected(pair), seconds=10)  # noqa: B023
        took.append(pair.network.now - began)
        pair.network.run_for(10.0)
        assert pair.responder.endpoint.half_open == 0
    assert sorted(took)[47] < 5.0


@SEALED
def test_what_is_said_arrives_and_cannot_be_read_on_the_way(suite: Suite) -> None:
    pair = Pair(Link(loss=0.05, reordering=0.1, duplication=0.1), suite=suite).connect()
    secrets = [b"the loss is falling " * n for n in (1, 100, 5000)]

    for payload in secrets:
        pair.initiator.send(payload)
        pair.responder.send(payload)
    pair.network.run_for(20.0)

    pair.invariants.check_all_arrived()
    assert sorted(pair.responder.payloads) == sorted(pair.initiator.payloads) == sorted(secrets)
    assert not any(b"the loss" in passing.datagram for passing in pair.wire)
    assert pair.responder.connection.identity is not None
    assert pair.responder.connection.identity.name == INITIATOR


# Amplification.


def forged_inits(count: int, *, run_key: RunKey) -> list[bytes]:
    """Return INITs of somebody who knows a key's id and not its secret."""
    forger = replace(run_key.worker_key("worker"), secret=b"f" * 32)
    endpoint = dialling_with(forger)
    for n in range(count):
        endpoint.connect(f"address {n}", 1000.0)
    return [datagram for datagram, _ in sent_by(endpoint, 1000.0)]


def answers_to(
    endpoint: Endpoint, inits: list[bytes], *, seconds: float, now: float = 1000.0
) -> list[bytes]:
    """Return all that INITs from an address that is not their sender's are answered with."""
    answers = []
    for n, init in enumerate(inits):
        answers += ask(endpoint, init, "spoofed", now + n * seconds / len(inits))
    return answers


@pytest.mark.parametrize("run_key", [RUN_KEY, OTHER_RUN_KEY], ids=["its id", "no key at all"])
def test_who_has_no_key_is_not_answered_and_nothing_is_kept_of_him(run_key: RunKey) -> None:
    endpoint = listening_with(RUN_KEY)
    inits = forged_inits(INITS_PER_SECOND, run_key=run_key)

    assert answers_to(endpoint, inits, seconds=2.0) == []
    assert endpoint.half_open == 0
    assert len(endpoint) == 0
    assert sum(drops(endpoint).values()) == len(inits)


def test_under_load_an_address_that_is_spoofed_gets_little_and_nothing_is_kept_of_it() -> None:
    endpoint = listening_with(RUN_KEY)
    inits = forged_inits(10 * INITS_PER_SECOND, run_key=RUN_KEY)

    answers = answers_to(endpoint, inits, seconds=1.0)

    assert {answer[0] for answer in answers} == {RETRY}
    assert sum(map(len, answers)) <= sum(map(len, inits)) * RETRY_OR_RESET_BYTES / len(inits[0])
    assert len(inits[0]) / 10 > RETRY_OR_RESET_BYTES
    assert endpoint.half_open == 0


def test_under_load_who_has_a_key_still_comes_in() -> None:
    pair = Pair(suite=Suite.AES)
    flood = forged_inits(200, run_key=pair.run_key)
    for n in range(2000):
        pair.network.after(n / 1000, lambda n=n: pair.network.send(f"{ATTACKER}{n % 50}", RESPONDER,
                           flood[n % len(flood)]))  # type: ignore[misc]  # fmt: skip
    pair.network.run_for(1.0)

    pair.dial()
    pair.network.run(lambda: connected(pair), seconds=2.0)

    assert of_type(pair, RETRY)


@ALL_SUITES
def test_no_answer_in_a_whole_handshake_is_larger_than_what_asked_for_it(suite: Suite) -> None:
    pair = Pair(suite=suite).dial()
    pair.network.run(lambda: Connected() in pair.initiator.events, seconds=5)

    asked, answered = (
        sum(len(passing.datagram) for passing in pair.sent_by(side))
        for side in (INITIATOR, RESPONDER)
    )

    assert 0 < answered < AMPLIFICATION_MAX * asked


# Acknowledgements.


def lying(connection: Connection, *frames: bytes, now: float) -> bytes:
    """Return a packet that a worker who has changed his program sends."""
    [packet], _, _ = connection.sender.packet_with(b"".join(frames), now, eliciting=False)
    return bytes(packet)


def test_a_worker_that_acknowledges_what_was_never_sent_is_closed_and_told_why() -> None:
    pair = Pair(suite=Suite.AES).connect()
    acked = pack_ack(ack((10**6, 10**6)))

    packet = lying(pair.initiator.connection, acked, now=pair.network.now)
    pair.network.send(INITIATOR, RESPONDER, packet)
    pair.network.run_for(1.0)

    assert ends(pair.responder) == [(CloseCode.VIOLATION, False)]
    assert ends(pair.initiator) == [(CloseCode.VIOLATION, True)]


def test_who_cannot_seal_breaks_no_rule_and_is_dropped_without_a_word() -> None:
    pair = Pair(suite=Suite.AES).connect()
    session_id = pair.responder.connection.session_id
    acked = pack_ack(ack((10**6, 10**6)))
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, session_id, 10**6)
    before = len(pair.wire)

    for _ in range(10):
        pair.network.send(ATTACKER, RESPONDER, header + acked + bytes(16))
    pair.network.run_for(1.0)

    assert pair.responder.connection.state is State.OPEN
    assert drops(pair.responder.endpoint) == {Drop.NOT_AUTHENTIC: 10}
    assert not any(passing.target == ATTACKER for passing in pair.wire[before:])


# RESET.


@SEEDS
def test_after_a_restart_the_other_side_knows_within_three_seconds(seed: int) -> None:
    pair = Pair(Link(loss=0.1), suite=Suite.AES, seed=seed).connect()
    pair.network.run_for(pair.network.random.random())
    pair.restart_responder()
    restarted = pair.network.now

    pair.initiator.send(bytes(20_000))
    pair.network.run(lambda: bool(ends(pair.initiator)), seconds=3.0)

    assert ends(pair.initiator) == [(CloseCode.RESET, True)]
    assert pair.network.now - restarted <= 3.0
    pair.dial()
    pair.network.run(lambda: Connected() in pair.responder.events, seconds=5.0)
    pair.initiator.send(b"again")
    pair.network.run(lambda: pair.responder.payloads == [b"again"], seconds=5.0)


def test_a_forged_reset_changes_nothing() -> None:
    pair = Pair(suite=Suite.AES).connect()
    session_ids = [side.connection.session_id for side in (pair.initiator, pair.responder)]

    for n in range(100):
        token = pair.network.random.randbytes(16) if n else bytes(16)
        reset = pack_reset(session_ids[n % 2], token)
        pair.network.send(RESPONDER, INITIATOR, reset)
        pair.network.send(INITIATOR, RESPONDER, reset)
    pair.network.run_for(1.0)
    pair.initiator.send(b"still here")
    pair.network.run(lambda: pair.responder.payloads == [b"still here"], seconds=1.0)

    assert ends(pair.initiator) == ends(pair.responder) == []


def reset_of(pair: Pair, connection: Connection) -> bytes:
    """Restart the responder; return the RESET that it answers a connection with, and kill it."""
    pair.lets_pass = lambda passing: passing.packet_type != RESET
    pair.restart_responder()
    connection.send(0, 0, 1, bytes(2_000), Priority.UPDATE)
    pair.network.turn(pair.initiator.host)
    pair.network.run_for(0.1)
    pair.network.kill(pair.responder.host)
    pair.lets_pass = lambda _: True
    begins = pack_reset(connection.sender.peer_session_id, bytes(16))[:8]
    return next(p.datagram for p in of_type(pair, RESET) if p.datagram.startswith(begins))


def test_another_master_with_the_same_run_key_cannot_reset_ours() -> None:
    pair = Pair(suite=Suite.AES).connect()
    pair.restart_responder(instance="another")

    pair.initiator.send(bytes(20_000))
    pair.network.run_for(5.0)

    assert of_type(pair, RESET)
    assert pair.initiator.connection.state is State.OPEN
    pair.network.run_for(60.0)
    assert ends(pair.initiator) == [(CloseCode.IDLE, False)]


def test_resets_are_few_and_small_datagrams_get_none() -> None:
    pair = Pair(suite=Suite.AES)
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, 5, 0)
    began = pair.network.now

    for n in range(4 * RESETS_PER_SECOND):
        for size in (RESET_DATAGRAM_BYTES_MIN - 4, 1400):
            pair.network.after(n / RESETS_PER_SECOND / 2, lambda size=size: pair.network.send(
                f"{ATTACKER}{size}", RESPONDER, header.ljust(size, b"\0")))  # type: ignore[misc]  # fmt: skip
    pair.network.run_for(3.0)

    resets = of_type(pair, RESET)
    assert {reset.target for reset in resets} == {f"{ATTACKER}1400"}
    for second in range(3):
        first = [reset for reset in resets if reset.at - began <= second]
        assert len(first) <= RESETS_PER_SECOND * (1 + second)
    assert len(resets) > 2 * RESETS_PER_SECOND


# Epochs.


@SEEDS
@SEALED
def test_a_new_epoch_begins_unnoticed_whatever_is_lost_and_overtaken(
    suite: Suite, seed: int
) -> None:
    pair = Pair(suite=suite, seed=seed).connect()
    for side in (pair.initiator, pair.responder):
        go_on_from(side.connection, EPOCH - 50)
    pair.network.link = Link(loss=0.05, reordering=0.3, jitter=0.002, duplication=0.05)

    for _ in range(3):
        pair.initiator.send(pair.network.random.randbytes(200_000))
        pair.responder.send(pair.network.random.randbytes(200_000))
    pair.network.run(lambda: len(pair.initiator.delivered) == 3 == len(pair.responder.delivered),
                     seconds=30)  # fmt: skip

    pair.invariants.check_all_arrived()
    for side in (pair.initiator, pair.responder):
        assert drops(side.endpoint).get(Drop.NOT_AUTHENTIC, 0) == 0
        assert side.endpoint.counters.epochs_begun == 1
    numbers = {p.number for p in pair.wire if p.packet_type == TRANSPORT}
    assert any(EPOCH - 50 <= number < EPOCH for number in numbers)
    assert max(numbers) > EPOCH


def test_after_three_probe_timeouts_the_key_before_is_gone_on_both_sides() -> None:
    pair = Pair(suite=Suite.AES).connect()
    for side in (pair.initiator, pair.responder):
        go_on_from(side.connection, EPOCH - 2)
        side.send(bytes(5_000))
    sides = (pair.initiator, pair.responder)
    pair.network.run(
        lambda: all(side.endpoint.counters.epochs_begun == 1 for side in sides), seconds=1.0
    )

    for side in sides:
        assert keys_of(side.connection).cipher(EPOCH - 1) is not None
    timeout = max(side.connection.sender.recovery.probe_timeout for side in sides)
    pair.network.run_for(3 * timeout)

    for side in sides:
        keys = keys_of(side.connection)
        assert keys.cipher(EPOCH - 1) is None
        assert keys.cipher(EPOCH) is not None


# Replays and downgrades.


@pytest.mark.parametrize("source", [INITIATOR, ATTACKER])
@pytest.mark.parametrize("when", ["expired", "established"])
def test_a_replayed_init_is_not_answered(when: str, source: str) -> None:
    pair = Pair(suite=Suite.AES)
    pair.lets_pass = lambda passing: when == "established" or passing.packet_type == INIT
    pair.dial()
    pair.network.run_for(1.0)
    [init, *_] = of_type(pair, INIT)
    pair.network.kill(pair.initiator.host)
    pair.network.run_for(HALF_OPEN_SECONDS_MAX)
    pair.lets_pass = lambda _: True
    answered = len(of_type(pair, ACCEPT))

    for _ in range(10):
        pair.network.send(source, RESPONDER, init.datagram)
    pair.network.run_for(1.0)

    assert len(of_type(pair, ACCEPT)) == answered >= 1
    assert drops(pair.responder.endpoint)[Drop.REPLAYED] == 10
    assert pair.responder.endpoint.half_open == 0
    assert len(pair.responder.connections) == (when == "established")


@pytest.mark.parametrize(("at", "value"), [(1, 0), (1, 2), (2, 0), (2, 2), (2, 3), (3, 15)])
def test_an_init_that_was_changed_leads_to_no_connection(at: int, value: int) -> None:
    """Version, suite and cookie length: nobody can talk the two into something weaker."""
    pair = Pair(suite=Suite.AES)

    def change(passing: Passing) -> bool:
        if passing.source != INITIATOR or passing.packet_type != INIT:
            return True
        if passing.datagram[at] != value:
            changed = bytearray(passing.datagram)
            changed[at] = value
            pair.network.send(INITIATOR, RESPONDER, bytes(changed))
            return False
        return True

    pair.lets_pass = change
    pair.dial()
    pair.network.run_for(30.0)

    assert not of_type(pair, ACCEPT)
    assert len(pair.responder.endpoint) == 0
    assert ends(pair.initiator) == [(CloseCode.UNREACHABLE, False)]


# Whom the keyring admits.


def test_so_many_forgeries_end_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In life it takes hours at millions a second; the limit is that of the cipher."""
    monkeypatch.setattr("gradwire_protocol.security.sealed.FORGERIES_MAX", 50)
    pair = Pair(suite=Suite.AES).connect()
    header = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, pair.responder.connection.session_id, 99)

    for n in range(49):
        pair.network.send(ATTACKER, RESPONDER, header + bytes([n]) * 20)
    pair.network.run_for(1.0)
    assert ends(pair.responder) == []
    pair.network.send(ATTACKER, RESPONDER, header + b"x" * 20)
    pair.network.run_for(1.0)

    assert ends(pair.responder) == [(CloseCode.FORGERIES, False)]
    assert ends(pair.initiator) == [(CloseCode.FORGERIES, True)]


# Nonces.


def restart_and_dial(pair: Pair) -> None:
    """Let both sides forget everything and begin anew."""
    pair.restart_responder()
    pair.restart_initiator()
    pair.dial()


def come_close_to_the_next_epoch(pair: Pair) -> None:
    """Let whoever has nothing under way send the last packets of its epoch."""
    for side in (pair.initiator, pair.responder):
        for connection in side.connections[-1:]:
            if connection.state is State.OPEN:
                sent = connection.sender.recovery.sent
                last = ((sent.next_number >> EPOCH_PACKETS_BITS) + 1 << EPOCH_PACKETS_BITS) - 3
                if not sent.packets_in_flight and not sent.lost_packets:
                    go_on_from(connection, max(last, sent.next_number))


def say(pair: Pair, size: int) -> None:
    """Let both sides send something, as far as they are connected."""
    for side in (pair.initiator, pair.responder):
        if side.connections and side.connection.state is State.OPEN:
            side.send(bytes(size))


def move(pair: Pair) -> None:
    """Give the initiator another address."""
    host = pair.initiator.host
    pair.network.move(host, f"{host.address}'" if len(host.address) < 20 else INITIATOR)


STEPS = st.sampled_from(
    [
        Pair.dial,
        Pair.restart_responder,
        restart_and_dial,
        come_close_to_the_next_epoch,
        move,
        lambda pair: say(pair, 100),
        lambda pair: say(pair, 30_000),
        lambda pair: pair.network.run_for(0.02),
        lambda pair: pair.network.run_for(1.0),
        lambda pair: pair.network.run_for(5.0),
    ]
)


@settings(max_examples=examples(40))
@given(
    steps=st.lists(STEPS, max_size=25),
    suite=st.sampled_from(SEALED_SUITES),
    seed=st.integers(0, 99),
    loss=st.sampled_from([0.0, 0.1]),
)
def test_no_two_packets_ever_have_key_and_nonce_in_common(
    steps: list[Callable[[Pair], object]], suite: Suite, seed: int, loss: float
) -> None:
    """Over restarts, epochs and changes of address; `Invariants` says so at the first one."""
    pair = Pair(Link(loss=loss), suite=suite, seed=seed, connections_max=100).dial()
    pair.network.run_for(0.5)

    for step in steps:
        step(pair)
    say(pair, 5_000)
    pair.network.run_for(1.0)

    packets = [passing for passing in pair.wire if passing.packet_type == TRANSPORT]
    assert len(pair.invariants.used) == len(packets)


def test_the_nonces_of_a_suite_are_looked_at_at_all() -> None:
    """Or the property above would be empty."""
    pair = Pair(suite=Suite.AES).connect()
    used = pair.invariants.used

    assert len(used) == sum(passing.packet_type == TRANSPORT for passing in pair.wire) > 0
    key, number = next(iter(used))
    assert len(key) == 32
    assert number == 0
    pair.initiator.connection.sender.recovery.sent.next_number -= 1
    with pytest.raises(RuntimeError, match=naming("packet number", "reused")):
        lying(pair.initiator.connection, pack_ping(), now=pair.network.now)
