"""Turns among connections, and the pace of the link they share."""

from collections import Counter
from gc import collect
from math import inf
from random import Random
from weakref import ref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_protocol import Connection, ConnectionConfig, Counters, Priority
from gradwire_protocol.connection.fair_queue import (
    DRAIN_GAIN,
    FORGET_GROWTHS,
    GROWTH,
    GROWTH_SECONDS,
    LEARNING_SECONDS_MIN,
    FairQueue,
    LinkPacer,
)
from gradwire_protocol.limits import GIB, TRAIN_BYTES_MAX
from gradwire_protocol.recovery.pacer import BURST_SECONDS
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.security.handshake import Agreement
from gradwire_protocol.wire.packets import TransportLimits
from support.tiers import examples

START = 1000.0


def connection_to(peer: str, datagram_bytes: int = 1400) -> Connection:
    """Return an open connection that nothing but its window holds back: 4 MiB."""
    config = ConnectionConfig(
        datagram_bytes=datagram_bytes, datagram_bytes_max=datagram_bytes, lossless=True
    )
    connection = Connection(
        config=config,
        session_id=1,
        address=peer,
        counters=Counters(),
        random_bytes=Random(1).randbytes,
        on_activity=lambda *_: None,
    )
    limits = TransportLimits(GIB, datagram_bytes, 30.0)
    connection.establish(Agreement(2, limits, Checksum(b"there"), Checksum(b"back")), START)
    return connection


def queue(connection: Connection, *sizes: int) -> None:
    for number, size in enumerate(sizes):
        connection.send(0, number, 1, bytes(size), Priority.UPDATE)


def turns_of(*connections: Connection) -> FairQueue:
    turns = FairQueue()
    for connection in connections:
        turns.enqueue(connection)
    return turns


def drained(turns: FairQueue) -> list[object]:
    """Let everything leave; return where the trains went, in their order."""
    addresses = []
    while (train := turns.next_train(START)[0]) is not None:
        addresses.append(train.address)
    return addresses


def take_turns(turns: FairQueue, n: int) -> Counter[object]:
    """Let so many trains leave; return the bytes that went to each address."""
    sent: Counter[object] = Counter()
    for _ in range(n):
        train, _ = turns.next_train(START)
        assert train is not None
        sent[train.address] += train.size
    return sent


# Turns.


def test_who_has_nothing_to_send_is_done() -> None:
    first, second = connection_to("first"), connection_to("second")
    turns = turns_of(first, second)

    assert turns.next_train(START) == (None, [first, second])
    assert len(turns) == 0


def test_turns_go_round_in_the_order_they_were_asked_for() -> None:
    connections = [connection_to(peer) for peer in "abc"]
    for connection in connections:
        queue(connection, 200_000)
    turns = turns_of(*connections)

    order = drained(turns)

    assert [*dict.fromkeys(order)] == ["a", "b", "c"]
    assert Counter(order) == dict.fromkeys("abc", len(order) // 3)


@settings(max_examples=examples(60))
@given(
    flows=st.lists(
        st.tuples(
            st.sampled_from([1200, 1400, 4000, 8900]),
            st.sampled_from([100, 1000, 2000, 3000, 20_000, 300_000]),
        ),
        min_size=2,
        max_size=5,
    ),
    trains=st.integers(20, 200),
)
def test_connections_get_the_same_bytes_whatever_trains_they_send(
    flows: list[tuple[int, int]], trains: int
) -> None:
    """Trains are of one small message or of 64 kB, in small datagrams or in large ones."""
    connections = [connection_to(str(i), size) for i, (size, _) in enumerate(flows)]
    for connection, (_, size) in zip(connections, flows, strict=True):
        queue(connection, *[size] * min(500, 2 * 2**20 // size))
    turns = turns_of(*connections)
    sent = Counter({connection.address: 0 for connection in connections})

    for _ in range(trains):
        train, done = turns.next_train(START)
        if train is None or done:
            break
        sent[train.address] += train.size
        assert max(sent.values()) - min(sent.values()) <= 2 * TRAIN_BYTES_MAX


def test_who_is_done_is_forgotten() -> None:
    connection = connection_to("peer")
    queue(connection, 10_000)
    turns = turns_of(connection)
    drained(turns)
    gone = ref(connection)

    del connection
    collect()

    assert gone() is None


def test_who_has_a_message_goes_before_those_who_wait_unless_it_waits_already() -> None:
    first, second, third = (connection_to(peer) for peer in "abc")
    for connection in (first, second, third):
        queue(connection, 1000)
    turns = turns_of(first, second)

    turns.enqueue(third, first=True)
    turns.enqueue(second, first=True)

    assert drained(turns) == ["c", "a", "b"]


def test_who_always_has_another_message_does_not_stop_the_others() -> None:
    eager, patient = connection_to("eager"), connection_to("patient")
    queue(patient, 2 * 2**20)
    turns = turns_of(patient)
    sent: Counter[object] = Counter()
    for number in range(200):
        eager.send(0, number, 1, bytes(3000), Priority.UPDATE)
        turns.enqueue(eager, first=True)
        sent += take_turns(turns, 1)

    assert sent["patient"] >= sent["eager"] - TRAIN_BYTES_MAX


def test_who_comes_later_is_not_owed_what_others_have_had() -> None:
    first, second = connection_to("first"), connection_to("second")
    for connection in (first, second):
        queue(connection, 2 * 2**20)
    turns = turns_of(first)
    take_turns(turns, 20)

    turns.enqueue(second)
    sent = take_turns(turns, 20)

    assert abs(sent["first"] - sent["second"]) <= 2 * TRAIN_BYTES_MAX


# The pace of the link.


def run(
    link: LinkPacer, seconds: float, *, now: float = START, size: int = TRAIN_BYTES_MAX
) -> list[tuple[float, int]]:
    """Send trains as early as the pace lets them go; return when they left, and their sizes."""
    left, end = list[tuple[float, int]](), now + seconds
    while now < end:
        later = link.wait_until(now)
        if later is None:
            link.on_sent(size)
            left.append((now, size))
            now += 1e-6
        else:
            assert later > now, "a timer that does not move would spin"
            now = later
    return left


def through(link: LinkPacer, carries: float, seconds: float, *, now: float = START) -> None:
    """Let a link that carries so much a second take all it can, and be blocked in between."""
    end = now + seconds
    while now < end:
        link.on_blocked(now)
        for _ in range(10):
            link.on_sent(TRAIN_BYTES_MAX)
        now += 10 * TRAIN_BYTES_MAX / carries
    link.on_blocked(now)


@given(rate=st.floats(1e5, 1e10), size=st.integers(60, TRAIN_BYTES_MAX))
def test_a_configured_rate_is_kept_over_any_window(rate: float, size: int) -> None:
    link = LinkPacer(rate)

    left = run(link, min(1.0, 100 * size / rate), size=size)

    burst = max(2 * TRAIN_BYTES_MAX, rate * BURST_SECONDS)
    for i in range(0, len(left), 7):
        total = 0
        for end, bytes_sent in left[i : i + 300]:
            total += bytes_sent
            # A clock of 1000 seconds resolves 1e-13.
            assert total <= burst + rate * (end - left[i][0] + 1e-11) + 1


def test_a_configured_rate_is_neither_learned_nor_grown() -> None:
    link = LinkPacer(1e8)
    through(link, 1e7, 0.5)

    run(link, 5.0, now=START + 1)

    assert link.rate == 1e8


@pytest.mark.parametrize("carries", [1e7, 1e8, 1.25e9])
def test_a_link_that_is_full_again_and_again_shows_its_rate(carries: float) -> None:
    link = LinkPacer()

    through(link, carries, 0.5)

    assert link.rate == pytest.approx(DRAIN_GAIN * carries)


def test_a_rate_is_not_learned_where_nothing_was_sent() -> None:
    """A link that is down for a while would otherwise have the rate zero, and stay there."""
    link = LinkPacer()
    for i in range(10):
        link.on_blocked(START + i)
    assert link.rate == inf

    link.on_sent(10**6)
    link.on_blocked(START + 10)

    assert link.rate == pytest.approx(DRAIN_GAIN * 1e5)


@pytest.mark.parametrize(
    ("apart", "idle"), [(LEARNING_SECONDS_MIN / 4, False), (10.0, True)], ids=["short", "idle"]
)
def test_a_rate_is_not_learned_from_one_moment_or_while_there_is_nothing_to_send(
    apart: float, idle: bool
) -> None:
    link = LinkPacer()
    for i in range(3):
        link.on_blocked(START + i * apart)
        link.on_sent(10**6)
        if idle:
            link.on_idle()

    assert link.rate == inf


def full(carries: float = 1e6) -> LinkPacer:
    """Return the pacer of a link that was full just now."""
    link = LinkPacer()
    link.on_blocked(START - 1.0)
    link.on_sent(int(carries))
    link.on_blocked(START)
    assert link.rate == pytest.approx(DRAIN_GAIN * carries)
    return link


def test_a_learned_rate_grows_as_long_as_the_link_takes_everything() -> None:
    link = full()
    rates = []
    for i in range(4):
        link.wait_until(START + GROWTH_SECONDS * (i + 0.5))
        rates.append(link.rate / (DRAIN_GAIN * 1e6))

    assert rates == pytest.approx([1, GROWTH, GROWTH**2, GROWTH**3])


def test_a_learned_rate_that_grew_for_long_is_forgotten() -> None:
    link = full()
    rates = []
    for i in range(1, FORGET_GROWTHS + 2):
        link.wait_until(START + i * GROWTH_SECONDS)
        rates.append(link.rate)

    assert rates[-2] == pytest.approx(DRAIN_GAIN * 1e6 * GROWTH**FORGET_GROWTHS)
    assert rates[-1] == inf
    assert link.wait_until(START + 100) is None
