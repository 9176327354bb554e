"""What a connection says about the packets it received, and when."""

import pytest

from gradwire_protocol.connection.train import ECN_CAPABLE, ECN_MARKED
from gradwire_protocol.limits import ACK_DELAY_SECONDS_MAX
from gradwire_protocol.wire.frames import Ack, pack_ping
from support.pair import FRAGMENT_BYTES, Pair, data_frame, kinds_of
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
