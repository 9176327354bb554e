"""Many connections of an endpoint: every one has its turn, and its timers."""

import sys
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from gradwire_protocol import Connection, ConnectionConfig, Endpoint, Priority
from gradwire_protocol.connection.timers import TIMERS_SPARE
from gradwire_protocol.limits import BURST_PROBE_PACKETS_MIN, TRAIN_BYTES_MAX
from support.endpoints import (
    NOW,
    PLAIN,
    ask,
    events_of,
    first_packet,
    init_of,
    sent_by,
)
from support.pair import Pair
from support.puppet import Puppet

HEEDLESS = replace(PLAIN, congestion="static")


def connected(
    n: int, config: ConnectionConfig = PLAIN, *, link_rate: float | None = None
) -> tuple[Endpoint, list[Connection]]:
    """Return an endpoint with open connections of which all have been served."""
    endpoint = Endpoint(
        config, random_bytes=Random(1).randbytes, connections_max=n, link_rate=link_rate
    )
    for i in range(1, n + 1):
        [accept] = ask(endpoint, init_of(i), f"peer {i}")
        ask(endpoint, first_packet(init_of(i), accept), f"peer {i}")
    connections = [connection for connection, _ in events_of(endpoint)]
    endpoint.handle_timer(NOW + 1.0)
    assert len(sent_by(endpoint, NOW + 1.0)) == n
    return endpoint, connections


def load(connections: list[Connection], size: int) -> None:
    """Give each connection a message of so many bytes to send."""
    for connection in connections:
        connection.send(0, 0, 1, bytes(size), Priority.UPDATE)


def test_every_connection_has_its_turn_in_the_order_they_asked() -> None:
    endpoint, connections = connected(3)
    for connection in reversed(connections):
        for number in range(20):
            connection.send(0, number, 1, bytes(1300), Priority.UPDATE)

    addresses = [address for _, address in sent_by(endpoint, NOW + 2.0)]

    assert addresses == ["peer 3"] * 20 + ["peer 2"] * 20 + ["peer 1"] * 20


def test_connections_with_much_to_send_get_their_shares_in_turn() -> None:
    endpoint, connections = connected(3, HEEDLESS)
    load(connections, 1_000_000)

    shares: Counter[object] = Counter()
    while (train := endpoint.next_train(NOW + 2.0)) is not None:
        shares[train.address] += train.size
        if max(shares.values()) < 1_000_000:
            behind = min(shares[f"peer {i}"] for i in (1, 2, 3))
            assert max(shares.values()) - behind <= 2 * TRAIN_BYTES_MAX

    assert set(shares.values()) == {max(shares.values())}


def test_a_new_connection_does_not_wait_until_the_others_have_sent_everything() -> None:
    endpoint, connections = connected(3, HEEDLESS)
    load(connections[:2], 1_000_000)
    endpoint.next_train(NOW + 2.0)

    connections[2].send(0, 0, 1, b"short", Priority.UPDATE)
    trains = [endpoint.next_train(NOW + 2.0) for _ in range(6)]

    assert "peer 3" in [train.address for train in trains if train is not None]


# All together.


def test_all_connections_together_send_no_faster_than_their_link() -> None:
    rate = 1e7
    endpoint, connections = connected(3, HEEDLESS, link_rate=rate)
    load(connections, 200_000)

    now, sent, waits = NOW + 2.0, 0, 0
    while any(connection.bytes_in_flight < 200_000 for connection in connections):
        train = endpoint.next_train(now)
        if train is not None:
            sent += train.size
            assert sent <= 2 * TRAIN_BYTES_MAX + rate * (now - NOW - 2.0)
            continue
        timer = endpoint.next_timer()
        assert timer is not None
        assert timer > now
        now, waits = timer, waits + 1
        endpoint.handle_timer(now)

    assert waits > 0
    assert sent >= rate * (now - NOW - 2.0), "and no slower"


def test_an_endpoint_that_waits_for_its_link_answers_handshakes() -> None:
    endpoint, connections = connected(3, HEEDLESS, link_rate=1e6)
    connections[0].send(0, 0, 1, bytes(1_000_000), Priority.UPDATE)
    sent_by(endpoint, NOW + 2.0)
    connections[1].close(64, "enough", NOW + 2.0)
    endpoint.connections_max = 9

    assert len(ask(endpoint, init_of(5), now=NOW + 2.0)) == 1


def test_what_a_socket_took_until_it_was_full_is_what_the_link_takes() -> None:
    endpoint, connections = connected(2, HEEDLESS)
    load(connections, 10**6)
    now = NOW + 2.0

    endpoint.on_blocked(now)
    trains = [endpoint.next_train(now) for _ in range(5)]
    endpoint.on_blocked(now + 0.1)
    more = sum(len(datagram) for datagram, _ in sent_by(endpoint, now + 0.1))

    taken = sum(train.size for train in trains if train is not None)
    assert 0.9 * taken < 0.1 * endpoint.link.rate <= taken
    assert more <= 2 * TRAIN_BYTES_MAX
    assert endpoint.next_timer() == pytest.approx(now + 0.1, abs=0.1)


# Timers.


def test_the_next_timer_is_the_earliest_of_all_connections() -> None:
    endpoint, connections = connected(3)
    timers = [connection.next_timer() for connection in connections]

    assert endpoint.next_timer() == min(t for t in timers if t is not None)


def test_a_timer_that_has_moved_fires_only_where_it_is_now() -> None:
    endpoint, [connection] = connected(1)
    keepalive_at = endpoint.next_timer()
    assert keepalive_at is not None
    connection.send(0, 0, 1, b"x", Priority.UPDATE)
    sent_by(endpoint, NOW + 2.0)
    probe_at = endpoint.next_timer()
    assert probe_at is not None
    assert probe_at < keepalive_at

    endpoint.handle_timer(probe_at - 0.001)
    assert sent_by(endpoint, probe_at - 0.001) == []
    endpoint.handle_timer(probe_at)

    assert len(sent_by(endpoint, probe_at)) == BURST_PROBE_PACKETS_MIN
    assert endpoint.next_timer() == connection.next_timer()


def test_timers_that_were_overtaken_do_not_pile_up() -> None:
    """Behind the timer of a quiet connection; each holds a reference to its own connection."""
    pair = Pair(config=replace(PLAIN, keepalive_seconds=1000.0, idle_timeout_seconds=3600.0))
    pair.connect().connect()
    quiet, busy = pair.initiator.connections
    references = sys.getrefcount(busy)

    most = 0
    for _ in range(300):
        pair.initiator.send(b"x")
        pair.network.run_for(0.1)
        most = max(most, sys.getrefcount(busy) - references)

    assert most <= 2 * len(pair.initiator.endpoint) + TIMERS_SPARE
    timers = [connection.next_timer() for connection in (quiet, busy)]
    assert pair.initiator.endpoint.next_timer() == min(t for t in timers if t is not None)


def test_a_closed_connection_is_forgotten_with_its_timers() -> None:
    puppet = Puppet()

    puppet.connection.close(64, "enough", puppet.now)
    puppet.wait(puppet.now + 10.0)

    assert list(puppet.endpoint.connections()) == []
    assert puppet.endpoint.next_timer() is None
