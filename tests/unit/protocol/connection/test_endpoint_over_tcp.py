"""An endpoint over something that loses no packet and then is gone as a whole, as TCP."""

from random import Random

from gradwire_protocol import (
    CloseCode,
    ConnectionConfig,
    Disconnected,
    Drop,
    Endpoint,
    State,
)
from gradwire_protocol.limits import MIB
from support.endpoints import (
    NOW,
    PLAIN,
    ask,
    dialling,
    drops,
    events_of,
    first_packet,
    init_of,
    listening,
    sent_by,
)
from support.network import Link
from support.pair import Pair

OVER_TCP = ConnectionConfig().over_tcp


def opened(endpoint: Endpoint, session_id: int, address: str) -> None:
    init = init_of(session_id)
    [accept] = ask(endpoint, init, address)
    ask(endpoint, first_packet(init, accept), address)


# The end.


def test_what_was_reached_there_is_lost_and_nothing_else() -> None:
    endpoint = listening()
    opened(endpoint, 5, "here")
    opened(endpoint, 6, "there")
    here, there = endpoint.connections()
    events_of(endpoint)

    endpoint.disconnect_address("here", "the line is cut")

    assert events_of(endpoint) == [
        (here, Disconnected(CloseCode.LOST, "the line is cut", by_peer=False))
    ]
    assert sent_by(endpoint) == []
    assert list(endpoint.connections()) == [there]
    assert (here.state, there.state) == (State.CLOSED, State.OPEN)


def test_who_was_still_dialling_has_reached_nobody() -> None:
    endpoint = dialling()
    connection = endpoint.connect("master", NOW)
    sent_by(endpoint)

    endpoint.disconnect_address("master", "connection refused")

    assert events_of(endpoint) == [
        (connection, Disconnected(CloseCode.UNREACHABLE, "connection refused", by_peer=False))
    ]
    assert sent_by(endpoint) == []
    assert len(endpoint) == 0


def test_who_was_saying_goodbye_is_gone_without_a_word() -> None:
    endpoint = listening()
    opened(endpoint, 5, "here")
    [connection] = endpoint.connections()
    events_of(endpoint)
    connection.close(64, "enough", NOW)
    sent_by(endpoint)

    endpoint.disconnect_address("here", "the line is cut")
    endpoint.handle_timer(NOW + 100.0)

    assert events_of(endpoint) == []
    assert sent_by(endpoint, NOW + 100.0) == []
    assert len(endpoint) == 0
    assert endpoint.next_timer() is None


# Two endpoints of one owner.


def test_connections_of_another_endpoint_count_against_the_same_number() -> None:
    one = listening(connections_max=2)
    other = Endpoint(
        PLAIN,
        random_bytes=Random(3).randbytes,
        connections_max=2,
        counters=one.counters,
        connections_elsewhere=lambda: len(one),
    )
    opened(one, 5, "first")
    [accept] = ask(other, init_of(6), "second")
    opened(one, 7, "third")

    [close] = ask(other, first_packet(init_of(6), accept), "second")
    answer = ask(other, init_of(8), "fourth")

    assert close
    assert answer == []
    assert (len(one), len(other)) == (2, 0)
    assert drops(one) == {Drop.FULL: 2}
    assert one.counters.connections_opened == 2


# Pace.


def test_on_a_slow_line_with_a_long_queue_nothing_is_sent_twice() -> None:
    """What TCP makes of a slow network: everything arrives, if half a minute later."""
    pair = Pair(Link(rate=1e6, queue_bytes=100 * MIB), OVER_TCP).connect()
    for side in (pair.initiator, pair.responder):
        for _ in range(4):
            side.send(bytes(MIB))

    pair.network.run(lambda: len(pair.initiator.delivered) == len(pair.responder.delivered) == 4,
             seconds=200)  # fmt: skip

    for side in (pair.initiator, pair.responder):
        counters = side.endpoint.counters
        assert counters.fragments_retransmitted == 0
        assert counters.packets_lost == 0
        assert counters.probe_timeouts == 0
        assert side.connection.rtt is not None
