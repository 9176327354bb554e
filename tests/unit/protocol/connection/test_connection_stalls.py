"""Paths that carry small packets and swallow large ones: smaller ones are sent, or it ends."""

import re
from dataclasses import replace

import pytest

from gradwire_protocol import (
    CloseCode,
    Connected,
    Disconnected,
    MessageDelivered,
    Priority,
    State,
)
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MIN,
    MESSAGE_BYTES_MAX,
    STALL_IDLE_TIMEOUTS,
    WINDOW_BYTES_MIN,
)
from support.endpoints import PLAIN
from support.network import Link
from support.pair import INITIATOR, Pair, Passing
from support.wording import naming

HASTY = replace(PLAIN, idle_timeout_seconds=3.0)
PATIENCE = STALL_IDLE_TIMEOUTS * HASTY.idle_timeout_seconds


def narrow(pair: Pair, datagram_bytes: int) -> Pair:
    """Let the wire lose whatever is larger, without a word."""
    pair.lets_pass = lambda passing: len(passing.datagram) <= datagram_bytes
    return pair


# Narrower than was thought.


@pytest.mark.parametrize("size", [1300, 5000, 50_000, 1_000_000])
def test_what_was_cut_too_large_is_cut_anew_and_arrives(size: int) -> None:
    pair = narrow(Pair(), DATAGRAM_BYTES_MIN).connect()
    payload = pair.network.random.randbytes(size)

    pair.initiator.send(payload)
    pair.network.run(lambda: pair.initiator.delivered == [(0, 0)], seconds=10)

    assert pair.responder.payloads == [payload]
    assert pair.initiator.endpoint.counters.black_holes == 1


def test_a_path_that_becomes_narrow_half_way_costs_little() -> None:
    pair = Pair(config=HASTY).connect()
    payload = pair.network.random.randbytes(MESSAGE_BYTES_MAX)

    pair.initiator.send(payload)
    pair.network.run_for(0.05)
    narrow(pair, DATAGRAM_BYTES_MIN)
    pair.network.run(lambda: pair.initiator.delivered == [(0, 0)], seconds=10)

    assert pair.responder.payloads == [payload]
    assert pair.initiator.endpoint.counters.stalls == 0


def test_after_a_while_a_path_may_have_become_wider() -> None:
    pair = narrow(Pair(), DATAGRAM_BYTES_MIN).connect()
    pair.initiator.send(bytes(50_000))
    pair.network.run_for(10)
    pair.lets_pass = lambda _: True
    begun = pair.network.now

    sizes = []
    for _ in range(2):
        pair.initiator.send(bytes(50_000))
        pair.network.run_for(100)
        sizes.append(max(len(p.datagram) for p in pair.wire if p.at >= begun))

    assert sizes[0] == 1400, "a probe, when the time has come"
    assert pair.initiator.delivered == [(0, 0), (0, 1), (0, 2)]


# Too narrow for anything.


def test_a_path_that_swallows_all_but_small_packets_ends_the_connection_and_both_hear_why() -> None:
    pair = Pair().connect()
    begun = pair.network.now
    narrow(pair, 1100)

    pair.initiator.send(bytes(50_000))
    pair.network.run(lambda: pair.initiator.connection.state is not State.OPEN, seconds=100)
    lasted = pair.network.now - begun
    pair.network.run_for(10)

    [_, ended] = pair.initiator.events
    assert isinstance(ended, Disconnected)
    assert (ended.code, ended.by_peer) == (CloseCode.STALLED, False)
    assert ended.reason == naming("arrived", "1200 bytes")
    [seconds] = map(int, re.findall(r"(\d+) seconds", ended.reason))
    assert 60 <= seconds < 70
    assert pair.responder.events[1:] == [Disconnected(ended.code, ended.reason, by_peer=True)]
    assert 60 <= lasted <= 100
    assert pair.initiator.endpoint.counters.stalls == 1
    assert pair.initiator.endpoint.counters.idle_timeouts == 0
    assert len(pair.initiator.endpoint) == len(pair.responder.endpoint) == 0


def test_a_message_that_stops_half_way_ends_the_connection_too() -> None:
    pair = Pair(config=HASTY).connect()

    pair.initiator.send(bytes(MESSAGE_BYTES_MAX))
    pair.network.run_for(0.05)
    narrow(pair, 1100)
    pair.network.run_for(3 * PATIENCE)

    assert len(pair.responder.payloads) == 0
    assert [type(event) for event in pair.initiator.events] == [Connected, Disconnected]
    assert pair.initiator.endpoint.counters.stalls == 1


def test_small_messages_that_arrive_do_not_hide_the_one_that_does_not() -> None:
    pair = Pair(config=HASTY).connect()
    narrow(pair, 1100)
    pair.initiator.send(bytes(5000))

    for _ in range(int(3 * PATIENCE / 0.1)):
        pair.initiator.send(b"small", stream=1)
        pair.network.run_for(0.1)

    assert {stream for stream, _ in pair.initiator.delivered} == {1}
    assert isinstance(pair.initiator.events[-1], Disconnected)
    assert pair.initiator.endpoint.counters.stalls == 1


# Not narrow at all.


def test_a_slow_path_is_not_taken_for_one_that_swallows() -> None:
    pair = Pair(config=HASTY).connect()
    budget, since = 3000.0, pair.network.now

    def polices(passing: Passing) -> bool:
        nonlocal budget, since
        budget, since = min(3000.0, budget + 3000.0 * (passing.at - since)), passing.at
        fits = passing.source != INITIATOR or len(passing.datagram) <= budget
        budget -= len(passing.datagram) if fits and passing.source == INITIATOR else 0
        return fits

    pair.lets_pass = polices
    begun = pair.network.now
    numbers = [pair.initiator.send(bytes(20_000)) for _ in range(10)]
    pair.network.run(lambda: len(pair.responder.payloads) == len(numbers), seconds=1000)

    assert pair.network.now - begun > 10 * PATIENCE
    assert pair.initiator.endpoint.counters.stalls == 0


def test_a_blackout_shorter_than_the_idle_timeout_is_lived_through() -> None:
    pair = Pair(Link(delay=0.05), config=HASTY).connect()
    pair.initiator.send(bytes(1_000_000))
    pair.network.run_for(0.2)

    pair.lets_pass = lambda _: False
    pair.network.run_for(2.5)
    pair.lets_pass = lambda _: True
    pair.network.run_for(60.0)

    assert pair.initiator.events == [Connected(), MessageDelivered(0, 0)]


def test_a_message_that_waits_for_credit_is_not_stuck() -> None:
    pair = Pair(config=replace(HASTY, window_bytes=WINDOW_BYTES_MIN)).connect()
    pair.responder.releases = False

    for _ in range(2):
        pair.initiator.send(bytes(MESSAGE_BYTES_MAX), priority=Priority.SNAPSHOT)
    pair.network.run_for(10 * PATIENCE)
    assert pair.initiator.events == [Connected(), MessageDelivered(0, 0)]
    pair.responder.release()
    pair.network.run_for(60.0)

    assert pair.initiator.events[1:] == [MessageDelivered(0, 0), MessageDelivered(0, 1)]
