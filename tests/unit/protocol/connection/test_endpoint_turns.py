"""Many connections of an endpoint: every one has its turn, and its timers."""

from dataclasses import replace
from random import Random

import pytest

from gradwire_protocol import Connection, ConnectionConfig, Endpoint, Priority
from gradwire_protocol.limits import TRAIN_BYTES_MAX
from support.endpoints import (
    NOW,
    PLAIN,
    ask,
    events_of,
    first_packet,
    init_of,
    sent_by,
)

HEEDLESS = replace(PLAIN, lossless=True)


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
