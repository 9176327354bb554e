"""How a connection begins, what keeps it alive, and how it ends."""

from dataclasses import replace

import pytest

from gradwire_protocol import (
    CloseCode,
    Connected,
    ConnectionConfig,
    Disconnected,
    Drop,
    Priority,
    State,
    UsageError,
)
from gradwire_protocol.wire.frames import Close, Ping, pack_close, pack_ping
from gradwire_protocol.wire.packets import INIT
from support.endpoints import PLAIN, hand_over
from support.pair import INITIATOR, RESPONDER, Pair, data_frame, heard
from support.puppet import Puppet
from support.wording import naming

# How it begins.


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["INIT", "ACCEPT", "first packet"])
def test_a_datagram_lost_in_the_handshake_is_made_up_for(lost: int) -> None:
    pair = Pair()
    pair.lets_pass = lambda passing: pair.wire.index(passing) != lost

    pair.connect()

    assert pair.initiator.events == pair.responder.events == [Connected()]
    assert pair.responder.endpoint.counters.connections_opened == 1


def test_a_repeated_accept_changes_nothing() -> None:
    pair = Pair()
    begun = pair.network.now
    pair.lets_pass = lambda passing: passing.packet_type == INIT or passing.at > begun + 0.6
    pair.dial()
    pair.network.run_for(0.6)
    accepts = [p.datagram for p in pair.sent_by(RESPONDER)]
    assert len(accepts) == 2
    assert accepts[0] == accepts[1]

    for accept in accepts:
        hand_over(pair.initiator.endpoint, [accept], RESPONDER, pair.network.now)
        pair.network.turn(pair.initiator.host)
    pair.network.run_for(1.0)

    assert pair.initiator.events == pair.responder.events == [Connected()]
    assert pair.initiator.endpoint.counters.drops[Drop.DUPLICATE] == 1


def test_nobody_there_is_reported_exactly_when_the_time_is_up() -> None:
    pair = Pair(config=replace(PLAIN, connect_timeout_seconds=5.0))
    pair.lets_pass = lambda _: False
    pair.dial()

    pair.network.run_for(4.999)
    assert pair.initiator.events == []
    pair.network.run_for(0.001)

    assert pair.initiator.events == [
        Disconnected(CloseCode.UNREACHABLE, naming("no answer", 5), by_peer=False)
    ]
    assert pair.initiator.connection.state is State.CLOSED
    assert len(pair.initiator.endpoint) == 0


def test_closing_while_connecting_ends_it_without_a_word() -> None:
    pair = Pair().dial()
    sent = len(pair.wire)

    pair.initiator.close(64, "changed my mind")
    pair.network.run_for(60.0)

    assert pair.initiator.connection.state is State.CLOSED
    assert pair.initiator.events == pair.responder.events == []
    assert len(pair.initiator.endpoint) == 0
    assert [p.source for p in pair.wire[sent:]] == [RESPONDER], "one ACCEPT, and nothing after it"


def test_datagrams_are_as_large_as_the_smaller_side_says() -> None:
    pair = Pair(
        config=ConnectionConfig(datagram_bytes=1200, datagram_bytes_max=1200),
        responder_config=ConnectionConfig(datagram_bytes=8900),
    ).connect()

    pair.initiator.send(bytes(50_000))
    pair.responder.send(bytes(50_000))
    pair.network.run_for(1.0)

    assert len(pair.initiator.messages) == len(pair.responder.messages) == 1
    assert max(len(p.datagram) for p in pair.sent_by(INITIATOR)) == 1200
    assert max(len(p.datagram) for p in pair.sent_by(RESPONDER)) == 1200


# Signs of life.


def test_a_quiet_peer_is_asked_for_a_sign_of_life_exactly_when_it_is_time() -> None:
    puppet = Puppet(replace(PLAIN, keepalive_seconds=5.0))
    quiet_since = puppet.now - 0.01

    before = puppet.wait(quiet_since + 4.999)
    then = puppet.wait(quiet_since + 5.0)

    assert before == []
    assert then == [[Ping()]]


@pytest.mark.parametrize(("own", "peers"), [(20.0, 30.0), (30.0, 20.0)])
def test_a_silent_peer_is_given_up_exactly_at_the_smaller_idle_timeout(
    own: float, peers: float
) -> None:
    puppet = Puppet(replace(PLAIN, idle_timeout_seconds=own), idle_timeout_seconds=peers)
    connection, silent_since = puppet.connection, puppet.now - 0.01
    puppet.events()

    puppet.wait(silent_since + 19.999)
    assert puppet.events() == []
    sent = puppet.wait(silent_since + 20.0)

    assert sent == [], "who is gone is told nothing"
    assert puppet.events() == [
        Disconnected(CloseCode.IDLE, naming("nothing heard", 20.0), by_peer=False)
    ]
    assert connection.state is State.CLOSED
    assert connection.next_timer() is None
    assert puppet.endpoint.counters.idle_timeouts == 1
    assert len(puppet.endpoint) == 0


def test_a_duplicate_is_no_sign_of_life() -> None:
    puppet = Puppet()
    silent_since = puppet.now - 0.01
    old = puppet.pack(pack_ping(), number=0)
    puppet.events()
    puppet.wait(silent_since + 15.0)

    puppet.deliver(old)
    puppet.wait(silent_since + 30.0)

    assert [type(event) for event in puppet.events()] == [Disconnected]


# How it ends.


def test_a_close_is_said_three_times_a_probe_timeout_apart_and_then_it_is_over() -> None:
    puppet = Puppet()
    connection = puppet.connection
    puppet.events()
    closed_at, probe_timeout = puppet.now, 0.305  # before the first sample of the round trip
    connection.send(0, 0, 1, b"never sent", Priority.CONTROL)

    connection.close(64, "enough", puppet.now)
    said = [(puppet.now - closed_at, packet) for packet in puppet.receive()]
    while (timer := puppet.endpoint.next_timer()) is not None:
        packets = puppet.wait(timer)
        said += [(puppet.now - closed_at, packet) for packet in packets]

    assert [packet for _, packet in said] == [[Close(64, "enough")]] * 3
    assert [when for when, _ in said] == pytest.approx([0, probe_timeout, 2 * probe_timeout])
    assert puppet.now - closed_at == pytest.approx(3 * probe_timeout)
    assert connection.state is State.CLOSED
    assert puppet.events() == [], "closing a connection oneself brings no event"
    assert len(puppet.endpoint) == 0


def test_who_was_told_that_it_is_over_is_silent_and_forgets_it_a_little_later() -> None:
    puppet = Puppet()
    connection = puppet.connection
    puppet.events()
    told_at = puppet.now

    puppet.send(pack_close(64, "enough"))
    connection.send(0, 0, 1, b"too late", Priority.CONTROL)
    puppet.send(data_frame(b"too late"))
    sent, states = [], []
    for seconds in (0.914, 0.916):  # three probe timeouts are 0.915 seconds
        sent += puppet.wait(told_at + seconds)
        states.append((connection.state, len(puppet.endpoint)))

    assert sent == []
    assert states == [(State.DRAINING, 1), (State.CLOSED, 0)]
    assert puppet.events() == [Disconnected(64, "enough", by_peer=True)]


@pytest.mark.parametrize("code", [-1, 2**16])
def test_a_code_that_does_not_fit_its_field_is_refused_and_nothing_ends(code: int) -> None:
    puppet = Puppet()

    with pytest.raises(UsageError, match=naming("code", code, "2^16")):
        puppet.connection.close(code, "enough", puppet.now)

    assert puppet.connection.state is State.OPEN
    assert puppet.receive() == []


def test_late_packets_of_a_closed_connection_are_no_strangers_for_a_while() -> None:
    puppet = Puppet()
    drops = puppet.endpoint.counters.drops
    puppet.connection.close(64, "enough", puppet.now)

    puppet.send(data_frame(b"late"))
    assert drops[Drop.UNKNOWN_SESSION] == 0
    puppet.wait(puppet.now + 10.0)
    puppet.send(data_frame(b"later"))

    assert drops[Drop.UNKNOWN_SESSION] == 1
    assert [type(event) for event in puppet.events()] == [Connected]


def test_what_stands_behind_a_close_is_not_looked_at() -> None:
    puppet = Puppet().opened()

    puppet.send(data_frame(b"in time"), pack_close(0, ""), data_frame(b"too late", number=1))

    first, *others = puppet.events()
    assert heard(first) == (0, 0, 1, b"in time")
    assert others == [Disconnected(CloseCode.NONE, "", by_peer=True)]
