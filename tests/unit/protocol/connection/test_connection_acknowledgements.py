"""What a connection says about the packets it received, and when."""

from itertools import pairwise

import pytest

from gradwire_protocol.connection.train import ECN_CAPABLE, ECN_MARKED
from gradwire_protocol.limits import ACK_DELAY_SECONDS_MAX, ACK_EVERY, ACKS_UNASKED_MAX
from gradwire_protocol.wire.frames import Ack, Ping, pack_ping
from gradwire_protocol.wire.packets import TRANSPORT
from support.network import Link
from support.pair import FRAGMENT_BYTES, RESPONDER, Pair, data_frame, kinds_of
from support.puppet import Puppet


def test_a_packet_in_order_is_acknowledged_after_five_milliseconds() -> None:
    puppet = Puppet()
    received_at = puppet.now

    puppet.send(pack_ping())
    before = puppet.wait(received_at + ACK_DELAY_SECONDS_MAX - 0.0001)
    then = puppet.wait(received_at + ACK_DELAY_SECONDS_MAX)

    assert before == []
    assert [kinds_of(packet) for packet in then] == [["Ack"]]
    [[ack]] = then
    assert isinstance(ack, Ack)
    assert ack.ranges == [(0, puppet.next_number - 1)]
    assert ack.delay_seconds == pytest.approx(ACK_DELAY_SECONDS_MAX, abs=1e-5)


def test_a_certain_number_of_packets_is_acknowledged_at_once() -> None:
    puppet = Puppet()

    at_once = []
    for _ in range(2 * ACK_EVERY):
        puppet.send(pack_ping())
        at_once.append(len(puppet.receive()))

    assert at_once == ([0] * (ACK_EVERY - 1) + [1]) * 2


def test_a_gap_is_acknowledged_at_once() -> None:
    puppet = Puppet()
    missing = puppet.next_number

    puppet.send(pack_ping(), number=missing + 1)
    [[ack]] = puppet.receive()

    assert isinstance(ack, Ack)
    assert ack.ranges == [(missing + 1, missing + 1), (0, missing - 1)]


def test_a_completed_message_is_acknowledged_at_once() -> None:
    puppet = Puppet()
    total = FRAGMENT_BYTES + 1

    puppet.send(data_frame(bytes(FRAGMENT_BYTES), total=total))
    half = puppet.receive()
    puppet.send(data_frame(b"x", index=1))
    whole = puppet.receive()

    assert half == []
    assert [kinds_of(packet) for packet in whole] == [["Ack"]]


def test_marked_packets_are_acknowledged_at_once_and_counted() -> None:
    puppet = Puppet()

    puppet.deliver(puppet.pack(pack_ping()), ecn=ECN_CAPABLE)
    unmarked = puppet.receive()
    counts = []
    for _ in range(2):
        puppet.deliver(puppet.pack(pack_ping()), ecn=ECN_MARKED)
        [[ack]] = puppet.receive()
        assert isinstance(ack, Ack)
        counts.append(ack.marked)

    assert unmarked == []
    assert counts == [1, 2]
    assert puppet.endpoint.counters.packets_marked == 2


def test_acknowledgements_are_not_acknowledged_for_ever() -> None:
    pair = Pair().connect()
    pair.initiator.send(bytes(100_000))
    pair.responder.send(bytes(100_000))
    pair.network.run_for(1.0)
    sent = len(pair.wire)

    pair.network.run_for(8.0)

    assert len(pair.wire) == sent


def test_a_side_that_only_listens_asks_now_and_then_and_forgets_what_is_known() -> None:
    pair = Pair().connect()

    for _ in range(200):
        pair.initiator.send(b"x")
        pair.network.run_for(0.05)

    packets = [p.frames for p in pair.sent_by(RESPONDER) if p.packet_type == TRANSPORT]
    pings = [i for i, frames in enumerate(packets) if Ping() in frames]
    gaps = [b - a for a, b in pairwise(pings)]
    assert set(gaps) == {ACKS_UNASKED_MAX}
    assert pair.responder.endpoint.counters.packets_lost == 0
    assert pair.responder.connection.bytes_in_flight == 0


def test_a_gap_is_named_until_its_acknowledgement_is_acknowledged_and_no_longer() -> None:
    pair = Pair(Link(loss=0.2), seed=3).connect()

    for _ in range(400):
        pair.initiator.send(bytes(1000))
        pair.network.run_for(0.02)

    acks = [f for p in pair.sent_by(RESPONDER) for f in p.frames if isinstance(f, Ack)]
    lost = pair.initiator.endpoint.counters.packets_lost
    assert lost > 60
    assert max(len(ack.ranges) for ack in acks) < 20
