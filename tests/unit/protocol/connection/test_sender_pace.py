"""The sender: what the congestion window and the pace let go, and when."""

import pytest

from gradwire_protocol import Priority
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.limits import (
    MESSAGE_BYTES_MAX,
    SENT_PACKETS_MAX,
    TRAIN_BYTES_MAX,
    TRAIN_PACKETS_MAX,
    charge_of,
)
from support.sending import DATAGRAM_BYTES, FRAGMENT_BYTES, START, Diary, Rig, payload_of


def limited(window_packets: int) -> Rig:
    """Return a rig with a window of so many packets, filled to the last."""
    rig = Rig(controller=Diary(window_bytes=window_packets * DATAGRAM_BYTES))
    rig.push(100 * FRAGMENT_BYTES)
    assert len(rig.datagrams()) == window_packets
    return rig


def test_the_congestion_window_holds_fragments_back_and_nothing_else() -> None:
    rig = limited(10)
    assert rig.in_flight == rig.controller.window_bytes

    rig.push(100)  # nor does a short message slip through with an acknowledgement
    rig.receive(0)

    assert rig.kinds() == [["Ack"]]
    assert rig.sender.deadlines[2] is None, "no timer opens the window"


def test_no_train_leaves_while_too_many_packets_are_unaccounted_for() -> None:
    rig = Rig()
    payload = payload_of(0, MESSAGE_BYTES_MAX)
    message = ShapedMessage.of(0, 0, 1, payload, FRAGMENT_BYTES)
    while rig.sender.queue.bytes_queued < SENT_PACKETS_MAX * FRAGMENT_BYTES + MESSAGE_BYTES_MAX:
        rig.sender.enqueue(message, Priority.UPDATE)
    while rig.sender.next_packets(START) is not None:
        pass

    assert 0 <= rig.sender.recovery.sent.next_number - SENT_PACKETS_MAX < TRAIN_PACKETS_MAX
    rig.acknowledge((0, 0))
    assert rig.sender.next_packets(START + 0.1) is None
    rig.acknowledge((0, TRAIN_PACKETS_MAX))
    assert rig.sender.next_packets(START + 0.1) is not None


def test_the_controller_hears_of_every_train_and_whether_more_waits() -> None:
    rig = Rig(controller=Diary(window_bytes=50 * DATAGRAM_BYTES))
    rig.push(60 * FRAGMENT_BYTES)
    rig.datagrams()
    rig.acknowledge((0, 49))
    rig.datagrams(START + 0.1)

    train = TRAIN_BYTES_MAX // DATAGRAM_BYTES
    assert rig.controller.sent == [
        (train * DATAGRAM_BYTES, 0, False),
        ((50 - train) * DATAGRAM_BYTES, train * DATAGRAM_BYTES, False),
        (10 * DATAGRAM_BYTES, 0, True),
    ]


def test_waiting_for_credit_is_not_the_fault_of_the_network() -> None:
    rig = Rig()
    rig.push(FRAGMENT_BYTES, 2 * FRAGMENT_BYTES)
    rig.sender.queue.credit = charge_of(2 * FRAGMENT_BYTES)

    rig.datagrams()

    assert rig.controller.sent == [(DATAGRAM_BYTES, 0, True)]


def test_pacing_holds_fragments_back_until_a_deadline() -> None:
    rig = Rig(controller=Diary(pacing_rate=1e6))
    rig.push(20 * FRAGMENT_BYTES)
    at_once = rig.packets()
    ready_at = rig.sender.deadlines[2]
    assert len(at_once) == 2
    assert ready_at is not None
    assert ready_at == pytest.approx(START + 2 * DATAGRAM_BYTES / 1e6)

    assert rig.packets(now=START + (ready_at - START) / 2) == []
    assert len(rig.packets(now=ready_at)) == 2
