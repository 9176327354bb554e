"""Paths that carry small packets and swallow large ones: smaller ones are sent, or it ends."""

import re
from dataclasses import replace

from gradwire_protocol import (
    CloseCode,
    Connected,
    Disconnected,
    MessageDelivered,
    Priority,
    State,
)
from gradwire_protocol.limits import (
    MESSAGE_BYTES_MAX,
    STALL_IDLE_TIMEOUTS,
    WINDOW_BYTES_MIN,
)
from support.endpoints import PLAIN
from support.pair import INITIATOR, Pair, Passing
from support.wording import naming

HASTY = replace(PLAIN, idle_timeout_seconds=3.0)
PATIENCE = STALL_IDLE_TIMEOUTS * HASTY.idle_timeout_seconds


def narrow(pair: Pair, datagram_bytes: int) -> Pair:
    """Let the wire lose whatever is larger, without a word."""
    pair.lets_pass = lambda passing: len(passing.datagram) <= datagram_bytes
    return pair


# Too narrow for anything.


def test_a_path_that_swallows_all_but_small_packets_ends_the_connection_and_both_hear_why() -> None:
    pair = Pair(config=HASTY).connect()
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
    assert PATIENCE <= seconds < PATIENCE + 2
    assert pair.responder.events[1:] == [Disconnected(ended.code, ended.reason, by_peer=True)]
    assert PATIENCE <= lasted <= 2 * PATIENCE
    assert pair.initiator.endpoint.counters.stalls == 1
    assert pair.initiator.endpoint.counters.idle_timeouts == 0
    assert len(pair.initiator.endpoint) == len(pair.responder.endpoint) == 0


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
    numbers = [pair.initiator.send(bytes(20_000)) for _ in range(5)]
    pair.network.run(lambda: len(pair.responder.payloads) == len(numbers), seconds=1000)

    assert pair.network.now - begun > 4 * PATIENCE
    assert pair.initiator.endpoint.counters.stalls == 0


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
