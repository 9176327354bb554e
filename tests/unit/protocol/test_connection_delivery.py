"""Messages over a connection, their acknowledgements, and the credit they need."""

from itertools import pairwise

import pytest

from gradwire_protocol import (
    CloseCode,
    Connected,
    ConnectionConfig,
    Disconnected,
    MessageDelivered,
    MessageReceived,
    Priority,
    UsageError,
)
from gradwire_protocol.frames import Ack, Close, Credit, Data, Ping, pack_credit, pack_ping
from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    ACK_EVERY,
    BURST_PACKETS_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGE_OVERHEAD_BYTES,
    WINDOW_BYTES_MIN,
)
from gradwire_protocol.packets import TRANSPORT
from support.network import Link
from support.pair import INITIATOR, RESPONDER, Pair, Passing, Puppet, data_frame, kinds_of

# Messages.


def test_a_message_arrives_and_its_sender_hears_of_it() -> None:
    pair = Pair().connect()

    pair.initiator.send(bytes(range(256)) * 40, stream=3, number=5)
    pair.network.run_for(1.0)

    charge = 256 * 40 + MESSAGE_OVERHEAD_BYTES
    assert pair.responder.events[1:] == [
        MessageReceived(3, 5, 1, bytearray(bytes(range(256)) * 40), charge)
    ]
    assert pair.initiator.events[1:] == [MessageDelivered(3, 5)]
    assert pair.initiator.connection.bytes_queued == 0


@pytest.mark.parametrize("size", [1, 1360, 1361, MESSAGE_BYTES_MAX])
def test_messages_of_every_size_arrive(size: int) -> None:
    pair = Pair().connect()
    payload = pair.network.random.randbytes(size)

    pair.initiator.send(payload)
    pair.network.run(lambda: MessageDelivered(0, 0) in pair.initiator.events, seconds=60)

    assert pair.responder.payloads == [payload]


@pytest.mark.parametrize("size", [0, MESSAGE_BYTES_MAX + 1])
def test_a_message_of_a_forbidden_size_is_refused_at_once(size: int) -> None:
    pair = Pair().connect()

    with pytest.raises(UsageError, match=f"message of {size} bytes; it is 1 to 4194304"):
        pair.initiator.send(bytes(size))

    assert pair.initiator.connection.bytes_queued == 0


def test_a_message_is_measured_in_bytes_whatever_its_elements_are() -> None:
    connection = Pair().connect().initiator.connection
    largest = memoryview(bytes(MESSAGE_BYTES_MAX)).cast("Q")
    too_large = memoryview(bytes(MESSAGE_BYTES_MAX + 8)).cast("Q")

    with pytest.raises(UsageError, match=f"message of {MESSAGE_BYTES_MAX + 8} bytes"):
        connection.send(0, 0, 1, too_large, Priority.UPDATE)
    connection.send(0, 0, 1, largest, Priority.UPDATE)

    assert connection.bytes_queued == MESSAGE_BYTES_MAX


@pytest.mark.parametrize(
    ("stream", "number", "kind"),
    [(-1, 0, 1), (2**16, 0, 1), (0, -1, 1), (0, 2**32, 1), (0, 0, -1), (0, 0, 2**16)],
)
def test_a_message_whose_name_does_not_fit_its_fields_is_refused_at_once(
    stream: int, number: int, kind: int
) -> None:
    connection = Puppet().connection

    with pytest.raises(UsageError, match=f"message {number} of kind {kind} in stream {stream};"):
        connection.send(stream, number, kind, b"x", Priority.UPDATE)

    assert connection.bytes_queued == 0


def test_a_message_may_have_the_largest_name_there_is() -> None:
    puppet = Puppet()

    puppet.connection.send(2**16 - 1, 2**32 - 1, 2**16 - 1, b"x", Priority.UPDATE)

    [[data]] = puppet.receive()
    assert isinstance(data, Data)
    assert (data.stream, data.number, data.kind) == (2**16 - 1, 2**32 - 1, 2**16 - 1)


def test_a_lost_fragment_is_sent_again_under_a_new_packet_number() -> None:
    pair = Pair().connect()
    lost: list[Passing] = []

    def lose_one(passing: Passing) -> bool:
        if not lost and passing.has(Data):
            lost.append(passing)
            return False
        return True

    pair.lets_pass = lose_one
    pair.initiator.send(bytes(10_000))
    pair.network.run_for(1.0)

    again = [p for p in pair.sent_by(INITIATOR) if p.frames == lost[0].frames]
    assert len(pair.responder.messages) == 1
    assert len(again) == 2
    assert again[1].number > again[0].number == lost[0].number
    assert pair.initiator.endpoint.counters.fragments_retransmitted == 1


def test_the_last_fragment_lost_is_made_up_for_by_a_probe() -> None:
    pair = Pair().connect()
    begun = pair.network.now
    pair.lets_pass = lambda passing: passing.at > begun + 0.001

    pair.initiator.send(b"one and only")
    pair.network.run_for(1.0)

    assert pair.responder.payloads == [b"one and only"]
    assert pair.initiator.endpoint.counters.probe_timeouts == 1
    assert pair.initiator.endpoint.counters.fragments_retransmitted == 1


def test_a_silent_peer_is_probed_with_two_packets_at_growing_intervals() -> None:
    pair = Pair(config=ConnectionConfig(idle_timeout_seconds=600.0)).connect()
    begun = pair.network.now
    pair.lets_pass = lambda _: False
    pair.initiator.send(bytes(5000))
    pair.network.run_for(300.0)

    probes = [p for p in pair.sent_by(INITIATOR) if p.has(Data) and p.at > begun]

    times = sorted({p.at for p in probes})
    intervals = [b - a for a, b in pairwise([begun, *times])]
    first = intervals[0]
    assert len(probes) == 2 * len(times)
    assert intervals == pytest.approx(
        [first * min(2**i, 64) for i in range(len(intervals))], rel=0.01
    )
    assert pair.initiator.endpoint.counters.packets_lost == 0


def test_an_urgent_message_overtakes_the_others() -> None:
    puppet = Puppet()
    connection = puppet.connection
    for priority in (Priority.SNAPSHOT, Priority.UPDATE, Priority.CONTROL):
        connection.send(priority, 0, 1, bytes(3000), priority)

    frames = [frame for packet in puppet.receive() for frame in packet]

    streams = [frame.stream for frame in frames if isinstance(frame, Data)]
    assert streams == [Priority.CONTROL] * 3 + [Priority.UPDATE] * 3 + [Priority.SNAPSHOT] * 3


def test_a_connection_sends_a_burst_before_others_have_their_turn() -> None:
    puppet = Puppet()
    connection = puppet.connection
    connection.send(0, 0, 1, b"x", Priority.UPDATE)
    puppet.receive()
    puppet.now += 0.0002  # a round trip so short that pacing does not come into it
    puppet.acknowledge()
    puppet.wait(puppet.now + 1.0)

    connection.send(0, 1, 1, bytes(100_000), Priority.UPDATE)
    bursts = [len(connection.datagrams_to_send(puppet.now)) for _ in range(3)]

    assert bursts == [BURST_PACKETS_MAX, BURST_PACKETS_MAX, 0], "the congestion window holds 32"


# Acknowledgements.


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


def test_every_eighth_packet_is_acknowledged_at_once() -> None:
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

    puppet.send(data_frame(bytes(1200), total=1201))
    half = puppet.receive()
    puppet.send(data_frame(b"x", offset=1200))
    whole = puppet.receive()

    assert half == []
    assert [kinds_of(packet) for packet in whole] == [["Ack"]]


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
    assert set(gaps) == {ACK_EVERY}
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
    assert max(len(ack.ranges) for ack in acks) < 15


# Flow control.


def test_a_peer_that_does_not_release_stalls_the_sender_and_releasing_lets_it_go_on() -> None:
    pair = Pair(config=ConnectionConfig(window_bytes=WINDOW_BYTES_MIN)).connect()
    pair.responder.releases = False
    for _ in range(5):
        pair.initiator.send(bytes(2**20))
    pair.network.run_for(8.0)
    arrived = len(pair.responder.messages)
    held = pair.responder.connection.bytes_held

    pair.responder.release()
    pair.network.run(lambda: len(pair.responder.messages) == 5, seconds=1.0)

    assert arrived == 3
    assert held == 3 * (2**20 + MESSAGE_OVERHEAD_BYTES)


def test_a_credit_that_is_lost_is_given_again() -> None:
    pair = Pair(config=ConnectionConfig(window_bytes=WINDOW_BYTES_MIN)).connect()
    pair.responder.releases = False
    for _ in range(5):
        pair.initiator.send(bytes(2**20))
    pair.network.run_for(5.0)
    given: list[Passing] = []

    def lose_the_first(passing: Passing) -> bool:
        if passing.has(Credit):
            given.append(passing)
        return given != [passing]

    pair.lets_pass = lose_the_first
    pair.responder.release()
    pair.network.run(lambda: len(pair.responder.messages) == 5, seconds=1.0)

    assert len(given) >= 2


def test_through_the_smallest_window_the_largest_messages_follow_each_other() -> None:
    pair = Pair(config=ConnectionConfig(window_bytes=WINDOW_BYTES_MIN)).connect()
    sizes = [MESSAGE_BYTES_MAX, 1, MESSAGE_BYTES_MAX]

    for size in sizes:
        pair.initiator.send(bytes(size))
    pair.network.run(lambda: len(pair.responder.messages) == 3, seconds=60)

    assert [len(message.payload) for message in pair.responder.messages] == sizes


def test_through_the_smallest_window_a_message_goes_as_soon_as_it_has_credit() -> None:
    """However much credit is left: less than the largest message needs is not enough."""
    pair = Pair(config=ConnectionConfig(window_bytes=WINDOW_BYTES_MIN)).connect()
    pair.responder.releases = False
    pair.initiator.send(bytes(2**20))
    pair.initiator.send(bytes(MESSAGE_BYTES_MAX))
    pair.network.run_for(1.0)
    arrived = len(pair.responder.messages)

    pair.responder.release()
    pair.network.run(lambda: len(pair.responder.messages) == 2, seconds=1.0)

    assert arrived == 1


def test_a_peer_that_does_not_release_is_kept_alive_however_long_it_takes() -> None:
    pair = Pair(config=ConnectionConfig(window_bytes=WINDOW_BYTES_MIN)).connect()
    pair.responder.releases = False
    pair.initiator.send(bytes(MESSAGE_BYTES_MAX))
    pair.initiator.send(b"waits for credit")

    pair.network.run_for(600.0)
    arrived = len(pair.responder.messages)
    pair.responder.release()
    pair.network.run_for(1.0)

    assert arrived == 1
    assert pair.responder.payloads[1:] == [b"waits for credit"]
    assert [type(event) for event in pair.initiator.events] == [
        Connected,
        MessageDelivered,
        MessageDelivered,
    ]


def test_declaring_more_than_the_credit_ends_the_connection() -> None:
    puppet = Puppet(ConnectionConfig(window_bytes=WINDOW_BYTES_MIN))
    puppet.events()
    charge = 2 * 2**20 + MESSAGE_OVERHEAD_BYTES
    reason = f"{2 * charge} message bytes declared; the credit is {WINDOW_BYTES_MIN}"

    for number in range(2):
        puppet.send(data_frame(bytes(1200), number=number, total=2 * 2**20))

    assert puppet.events() == [Disconnected(CloseCode.FLOW_CONTROL, reason, by_peer=False)]
    assert puppet.receive()[-1] == [Close(CloseCode.FLOW_CONTROL, reason)]
    assert puppet.connection.bytes_held == charge


def test_a_credit_frame_lets_the_sender_go_on() -> None:
    puppet = Puppet(window_bytes=WINDOW_BYTES_MIN)
    puppet.connection.send(0, 0, 1, bytes(MESSAGE_BYTES_MAX), Priority.UPDATE)
    puppet.receive()
    puppet.connection.send(1, 0, 1, b"urgent", Priority.CONTROL)

    without_credit = puppet.wait(puppet.now + 0.01)
    puppet.send(pack_credit(WINDOW_BYTES_MIN + len(b"urgent") + MESSAGE_OVERHEAD_BYTES))
    with_credit = puppet.wait(puppet.now + 0.01)

    assert {f.stream for p in without_credit for f in p if isinstance(f, Data)} == {0}
    assert {f.stream for p in with_credit for f in p if isinstance(f, Data)} == {0, 1}
