"""The sender: what the congestion window and the pace let go, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Priority
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.limits import (
    MESSAGE_BYTES_MAX,
    SENT_PACKETS_MAX,
    TRAIN_BYTES_MAX,
    TRAIN_PACKETS_MAX,
    charge_of,
)
from gradwire_protocol.recovery.pacer import BURST_SECONDS
from support.sending import DATAGRAM_BYTES, FRAGMENT_BYTES, START, Diary, FarEnd, Rig, payload_of


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


def test_an_acknowledgement_lets_as_many_fragments_go() -> None:
    rig = limited(10)

    rig.acknowledge((0, 3))

    assert len(rig.packets(START + 0.1)) == 4


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


@given(rate=st.floats(1e4, 1e8))
def test_whoever_comes_back_at_the_pacing_deadline_is_not_sent_away(rate: float) -> None:
    rig = Rig(controller=Diary(pacing_rate=rate))
    rig.push(200 * FRAGMENT_BYTES)
    rig.datagrams()
    ready_at = rig.sender.deadlines[2]
    assert ready_at is not None

    assert rig.datagrams(ready_at)


@given(rate=st.floats(1e4, 1e10), n=st.integers(1, 150))
def test_packets_leave_at_the_rate_in_trains_that_grow_with_it(rate: float, n: int) -> None:
    rig = Rig(controller=Diary(pacing_rate=rate))
    rig.push(n * FRAGMENT_BYTES)
    far = FarEnd(rig)

    far.run(lambda: len(far.sent) == n, rtt=0.0)

    burst = max(2 * DATAGRAM_BYTES, rate * BURST_SECONDS)
    for i in range(0, n, 5):
        for k in range(i, n, 3):
            took = far.sent[k][0] - far.sent[i][0]
            assert (k - i) * DATAGRAM_BYTES <= burst + rate * (took + 1e-11) + DATAGRAM_BYTES
    # Timers that are not worth it make trains longer, and nothing later than by one of them.
    took = far.sent[-1][0] - START
    assert took <= n * DATAGRAM_BYTES / rate + 0.001


def test_with_nothing_left_to_send_there_is_no_pacing_deadline() -> None:
    rig = Rig(controller=Diary(pacing_rate=1e6))
    rig.push(3 * FRAGMENT_BYTES)
    rig.packets()
    assert rig.sender.deadlines[2] is not None

    rig.packets(now=START + 1.0)

    assert rig.sender.deadlines[2] is None
