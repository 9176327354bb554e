"""The datagram path on networks of all kinds: goodput, latency, and what nothing may break.

Everything runs in virtual time over `SimulatedNetwork`; a test is one seed, and the same seed is
the same history. Where `Pair` is used, the invariants of `support.invariants` are checked after
every event.
"""

from dataclasses import replace

import pytest

from gradwire_protocol import (
    AddressChanged,
    CloseCode,
    Connected,
    ConnectionConfig,
    Disconnected,
    State,
)
from gradwire_protocol.delivery.shaped_message import fragment_bytes_of
from gradwire_protocol.wire.frames import Challenge
from support.endpoints import PLAIN
from support.flows import Sink, Source, goodput
from support.link import Link
from support.network import SimulatedNetwork
from support.pair import INITIATOR, Pair
from support.tiers import variants

MBIT = 1e6
RTT = 0.02
SEEDS = pytest.mark.seeds(3)


def one_flow(
    link: Link, config: ConnectionConfig = PLAIN, *, seed: int, back: Link | None = None
) -> tuple[SimulatedNetwork, Source, Sink]:
    """Return a source and its sink at the two ends of a link."""
    network = SimulatedNetwork(seed, link)
    if back is not None:
        network.set_link("sink", "source", back)
    sink = Sink(network, "sink", config)
    return network, Source(network, "source", "sink", config), sink


# Transfers.


@pytest.mark.parametrize("size", [1_024, 65_536, 300_000, 4_000_000])
def test_a_clean_path_carries_a_message_in_as_few_packets_as_it_takes(size: int) -> None:
    pair = Pair(Link(delay=0.01)).connect()
    sent = len(pair.sent_by(INITIATOR))
    pair.initiator.send(payload := bytes(range(256)) * (size // 256))
    pair.network.run(lambda: bool(pair.initiator.delivered), seconds=10)
    assert pair.responder.payloads == [payload]
    least = -(-len(payload) // fragment_bytes_of(PLAIN.datagram_bytes))
    assert len(pair.sent_by(INITIATOR)) - sent <= 1.05 * least + 1
    assert pair.initiator.endpoint.counters.fragments_retransmitted == 0


def transfer(link: Link, seed: int, n: int = 20) -> tuple[Pair, float]:
    """Return a pair that has carried so many messages of 64 KiB, and the seconds it took."""
    pair = Pair(link, seed=seed).connect()
    began = pair.network.now
    for _ in range(n):
        pair.initiator.send(pair.network.random.randbytes(65_536))
    pair.network.run(lambda: len(pair.initiator.delivered) == n, seconds=30)
    pair.invariants.check_all_arrived()
    return pair, pair.network.now - began


# Latency.


def waits_for_messages(seed: int) -> list[float]:
    """Return how long each message of 20 KB takes, one every 100 ms, on a path that loses 1 %."""
    pair = Pair(Link(delay=RTT / 2, rate=20 * MBIT, loss=0.01), seed=seed).connect()
    network, took = pair.network, []
    for number in range(1, 151):
        began = network.now
        pair.initiator.send(network.random.randbytes(20_000))
        network.run(lambda: len(pair.responder.payloads) == number, seconds=10)  # noqa: B023
        took.append(network.now - began)
        network.run_for(max(0.1 - took[-1], 0.0))
    return took[50:]  # before that, nothing is known of the path


@SEEDS
def test_a_loss_costs_a_message_one_round_trip_more(seed: int) -> None:
    waits = sorted(waits_for_messages(seed))

    assert waits[50] <= RTT
    assert waits[90] <= 2.1 * RTT


# Goodput.


@pytest.mark.parametrize("rtt", variants(0.05, 0.02, 0.1))
@pytest.mark.parametrize(("loss", "share"), variants((0.01, 0.85), (0.03, 0.75)))
def test_random_loss_leaves_most_of_a_link(rtt: float, loss: float, share: float) -> None:
    link = Link(delay=rtt / 2, rate=200 * MBIT, loss=loss)
    network, _, sink = one_flow(link, seed=1)
    assert goodput(network, sink, settle=2.5, seconds=1.5) >= share * 200 * MBIT


def total_of(sources: list[Source]) -> tuple[int, int]:
    """Return how many packets were lost and how many fragments sent, by all together."""
    counters = [source.endpoint.counters for source in sources]
    lost = sum(c.packets_lost - c.packets_spuriously_lost for c in counters)
    return lost, sum(c.fragments_sent for c in counters)


@pytest.mark.deep("more of what paths do to datagrams")
def test_one_slow_destination_leaves_the_others_their_rate() -> None:
    def rate_of_others(*, slow: bool) -> float:
        network = SimulatedNetwork(1, Link(delay=0.01, rate=20 * MBIT))
        sinks = [Sink(network, f"sink{i}", PLAIN) for i in range(4)]
        sources = [Source(network, f"source{i}", f"sink{i}", PLAIN) for i in range(4)]
        if slow:
            network.set_link("source0", "sink0", Link(delay=0.01, rate=1 * MBIT))
        network.run_for(3.0)
        assert all(source.ended is None for source in sources)
        return sum(sink.total for sink in sinks[1:])

    assert rate_of_others(slow=True) >= 0.95 * rate_of_others(slow=False)


# Latency.


@SEEDS
@pytest.mark.parametrize("tail", [1, 2])
def test_a_lost_tail_costs_little_more_than_a_probe(seed: int, tail: int) -> None:
    rtt = 0.05
    pair = Pair(Link(delay=rtt / 2), seed=seed).connect()
    size = 20 * fragment_bytes_of(PLAIN.datagram_bytes)
    for _ in range(20):  # the path is known by then
        pair.initiator.send(bytes(size))
        pair.network.run_for(0.2)
    first = pair.initiator.endpoint.counters.fragments_sent
    lost: list[int] = []

    def drop_the_tail(passing: object) -> bool:
        counters = pair.initiator.endpoint.counters
        if counters.fragments_sent == first + 20 and len(lost) < tail and passing in tails():
            lost.append(1)
            return False
        return True

    def tails() -> list[object]:
        return list(pair.sent_by(INITIATOR)[-tail:])

    began = pair.network.now
    pair.lets_pass = drop_the_tail
    pair.initiator.send(bytes(size))
    pair.network.run(lambda: len(pair.responder.messages) == 21, seconds=5)
    assert pair.network.now - began <= 2.5 * rtt + 0.03


@pytest.mark.deep("more of what paths do to datagrams")
@pytest.mark.seeds(1)
def test_a_small_message_does_not_wait_for_large_ones(seed: int) -> None:
    rtt = 0.02
    config = replace(PLAIN, window_bytes=64 * 2**20)
    pair = Pair(Link(delay=rtt / 2, rate=100 * MBIT), config, seed=seed).connect()
    for number in range(15):
        pair.initiator.send(bytes(4_000_000), stream=1, number=number)
    took = []
    for number in range(100):
        pair.network.run_for(0.03)
        began = pair.network.now
        pair.initiator.send(bytes(4_096), stream=2, number=number)
        so_far = len(pair.responder.messages)
        pair.network.run(
            lambda: any(
                (heard.stream, heard.number) == (2, number)  # noqa: B023
                for heard in pair.responder.messages[so_far:]  # noqa: B023
            ),
            seconds=5,
        )
        took.append(pair.network.now - began)
    assert len(pair.responder.messages) < 115, "the large ones were there before the small ones"
    assert sorted(took)[98] <= 2 * rtt + 0.02


# Interruptions.


@SEEDS
def test_black_outs_delay_and_break_nothing(seed: int) -> None:
    link = Link(delay=0.015, rate=10 * MBIT, blackhole=(2.0, 5.0))
    pair = Pair(link, seed=seed).connect()
    for _ in range(10):
        pair.initiator.send(bytes(1_000_000))
    pair.network.run(lambda: len(pair.initiator.delivered) == 10, seconds=60)
    assert {pair.initiator.connection.state, pair.responder.connection.state} == {State.OPEN}
    pair.invariants.check_all_arrived()


@SEEDS
def test_after_a_long_silence_both_sides_know_and_can_begin_anew(seed: int) -> None:
    pair = Pair(Link(delay=0.01), seed=seed).connect()
    pair.initiator.send(bytes(100_000))
    pair.lets_pass = lambda _: False
    pair.network.run_for(45.0)
    for side in (pair.initiator, pair.responder):
        ends = [event for event in side.events if isinstance(event, Disconnected)]
        assert [end.code for end in ends] == [CloseCode.IDLE]
    pair.lets_pass = lambda _: True
    pair.dial()
    pair.network.run(lambda: pair.initiator.events.count(Connected()) == 2, seconds=5)


@SEEDS
def test_a_peer_that_moves_every_few_seconds_is_followed(seed: int) -> None:
    pair = Pair(Link(delay=0.01, rate=20 * MBIT), seed=seed).connect()
    for _ in range(12):
        pair.initiator.send(bytes(1_000_000))
    moves = 0
    while len(pair.initiator.delivered) < 12:
        pair.network.run_for(1.0 if not moves else 2.0)
        moves += 1
        pair.network.move(pair.initiator.host, f"{INITIATOR}{moves}")
    followed = [e for e in pair.responder.events if isinstance(e, AddressChanged)]
    assert len(followed) >= moves - 1 >= 1
    assert any(p.has(Challenge) for p in pair.wire)
    pair.invariants.check_all_arrived()


# The size of datagrams.


def test_datagrams_grow_to_what_the_path_carries() -> None:
    config = ConnectionConfig()
    pair = Pair(Link(delay=0.01, mtu=9_000), config).connect()
    window = pair.initiator.connection.sender.recovery.controller.window_bytes
    pair.network.run_for(5.0)
    assert pair.initiator.connection.sender.sizes.current == 8_900
    assert pair.initiator.connection.sender.recovery.controller.window_bytes >= window


def test_a_lost_probe_is_no_congestion() -> None:
    pair = Pair(Link(delay=0.01, mtu=1_500), ConnectionConfig()).connect()
    pair.network.run_for(5.0)
    assert pair.initiator.connection.sender.sizes.current == 1_452
    assert pair.initiator.endpoint.counters.packets_lost == 0


@SEEDS
def test_a_path_that_becomes_narrow_is_noticed(seed: int) -> None:
    pair = Pair(Link(delay=0.01, mtu=9_000, rate=50 * MBIT), ConnectionConfig(), seed=seed)
    pair.connect()
    for _ in range(20):
        pair.initiator.send(pair.network.random.randbytes(500_000))
    pair.network.run_for(0.5)
    pair.network.link = Link(delay=0.01, mtu=1_300, rate=50 * MBIT)
    pair.network.run(lambda: len(pair.initiator.delivered) == 20, seconds=30)
    assert pair.initiator.connection.sender.sizes.current == 1_200
    assert pair.initiator.endpoint.counters.black_holes == 1
    pair.invariants.check_all_arrived()
