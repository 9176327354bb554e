"""Many connections of an endpoint: every one has its turn, and its timers."""

import sys

from gradwire_protocol import Connection, ConnectionConfig, Endpoint, Priority
from gradwire_protocol.endpoint import TIMERS_SPARE
from gradwire_protocol.limits import BURST_PACKETS_MAX
from support.endpoints import NOW, ask, events_of, first_packet, init_of, listening
from support.pair import Pair, Puppet


def connected(n: int) -> tuple[Endpoint, list[Connection]]:
    """Return an endpoint with open connections of which all have been served."""
    endpoint = listening(connections_max=n)
    for i in range(1, n + 1):
        [accept] = ask(endpoint, init_of(i), f"peer {i}")
        ask(endpoint, first_packet(init_of(i), accept), f"peer {i}")
    connections = [connection for connection, _ in events_of(endpoint)]
    endpoint.handle_timer(NOW + 1.0)
    assert endpoint.datagrams_to_send(NOW + 1.0)
    assert endpoint.datagrams_to_send(NOW + 1.0) == []
    return endpoint, connections


def test_every_connection_has_its_turn_in_the_order_they_asked() -> None:
    endpoint, connections = connected(3)
    for connection in reversed(connections):
        for number in range(20):
            connection.send(0, number, 1, bytes(1300), Priority.UPDATE)

    addresses = [address for _, address in endpoint.datagrams_to_send(NOW + 2.0)]

    burst = len(addresses) // 3
    assert burst <= BURST_PACKETS_MAX
    assert addresses == ["peer 3"] * burst + ["peer 2"] * burst + ["peer 1"] * burst


def test_a_connection_with_more_than_a_burst_has_its_turn_again() -> None:
    puppet = Puppet()
    puppet.connection.send(0, 0, 1, b"x", Priority.UPDATE)
    puppet.receive()
    puppet.now += 0.0002  # a round trip so short that pacing does not come into it
    puppet.acknowledge()
    puppet.wait(puppet.now + 1.0)
    puppet.connection.send(0, 1, 1, bytes(100_000), Priority.UPDATE)

    bursts = [len(puppet.endpoint.datagrams_to_send(puppet.now)) for _ in range(3)]

    assert bursts == [BURST_PACKETS_MAX, BURST_PACKETS_MAX, 0], "the congestion window holds 32"


def test_the_next_timer_is_the_earliest_of_all_connections() -> None:
    endpoint, connections = connected(3)
    timers = [connection.next_timer() for connection in connections]

    assert endpoint.next_timer() == min(t for t in timers if t is not None)


def test_a_timer_that_has_moved_fires_only_where_it_is_now() -> None:
    endpoint, [connection] = connected(1)
    keepalive_at = endpoint.next_timer()
    assert keepalive_at is not None
    connection.send(0, 0, 1, b"x", Priority.UPDATE)
    endpoint.datagrams_to_send(NOW + 2.0)
    probe_at = endpoint.next_timer()
    assert probe_at is not None
    assert probe_at < keepalive_at

    endpoint.handle_timer(probe_at - 0.001)
    assert endpoint.datagrams_to_send(probe_at - 0.001) == []
    endpoint.handle_timer(probe_at)

    assert len(endpoint.datagrams_to_send(probe_at)) == 1
    assert endpoint.next_timer() == connection.next_timer()


def test_timers_that_were_overtaken_do_not_pile_up() -> None:
    """Behind the timer of a quiet connection; each holds a reference to its own connection."""
    pair = Pair(config=ConnectionConfig(keepalive_seconds=1000.0, idle_timeout_seconds=3600.0))
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
