"""Messages over a connection, and the credit they need."""

from dataclasses import replace
from itertools import groupby, pairwise
from unittest.mock import patch

import pytest

from gradwire_protocol import (
    CloseCode,
    Connected,
    Disconnected,
    MessageDelivered,
    Priority,
    ShapedMessage,
    UsageError,
)
from gradwire_protocol.limits import (
    LONG_SILENCE_PROBE_SECONDS,
    LONG_SILENCE_SECONDS,
    MESSAGE_BYTES_MAX,
    PROBE_BACKOFF,
    PROBE_PACKETS,
    WINDOW_BYTES_MIN,
    charge_of,
)
from gradwire_protocol.wire.frames import Close, Credit, Data, Ping, pack_credit
from support.endpoints import PLAIN
from support.network import Link
from support.pair import FRAGMENT_BYTES, INITIATOR, Pair, Passing, data_frame, heard
from support.puppet import Puppet
from support.wording import naming

NARROW = replace(PLAIN, window_bytes=WINDOW_BYTES_MIN)

# Messages.


def test_a_message_arrives_and_its_sender_hears_of_it() -> None:
    pair = Pair().connect()

    pair.initiator.send(bytes(range(256)) * 40, stream=3, number=5)
    pair.network.run_for(1.0)

    assert pair.responder.heard == [(3, 5, 1, bytes(range(256)) * 40)]
    assert pair.responder.messages[0].charge == charge_of(256 * 40)
    assert pair.initiator.events[1:] == [MessageDelivered(3, 5)]
    assert pair.initiator.connection.bytes_queued == 0


@pytest.mark.parametrize("size", [1, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, MESSAGE_BYTES_MAX])
def test_messages_of_every_size_arrive(size: int) -> None:
    pair = Pair().connect()
    payload = pair.network.random.randbytes(size)

    pair.initiator.send(payload)
    pair.network.run(lambda: MessageDelivered(0, 0) in pair.initiator.events, seconds=60)

    assert pair.responder.payloads == [payload]


def test_what_is_passed_over_is_not_heard_any_more() -> None:
    puppet = Puppet()
    puppet.send(data_frame(b"first", stream=3, number=5))
    puppet.events()

    puppet.connection.skip_to(3, 8)
    heard = []
    for number in (7, 8):
        puppet.send(data_frame(b"later", stream=3, number=number))
        heard.append(len(puppet.events()))

    assert heard == [0, 1]


@pytest.mark.parametrize("size", [0, MESSAGE_BYTES_MAX + 1])
def test_a_message_of_a_forbidden_size_is_refused_at_once(size: int) -> None:
    pair = Pair().connect()

    with pytest.raises(UsageError, match=naming("message", size, 1, 2**22)):
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


def test_packet_numbers_that_are_left_out_confuse_nobody() -> None:
    with patch("gradwire_protocol.connection.sender.SKIP_PACKETS_MEAN", 5):
        pair = Pair(Link(loss=0.02, jitter=0.001)).connect()
        payload = pair.network.random.randbytes(1_000_000)

        pair.initiator.send(payload)
        pair.network.run(lambda: pair.initiator.delivered == [(0, 0)], seconds=60)

    numbers = {p.number for p in pair.sent_by(INITIATOR)}
    assert max(numbers) - len(numbers) > 50
    assert pair.responder.payloads == [payload]


def test_the_last_fragment_lost_is_made_up_for_by_a_probe() -> None:
    pair = Pair().connect()
    begun = pair.network.now
    pair.lets_pass = lambda passing: passing.at > begun + 0.001

    pair.initiator.send(b"one and only")
    pair.network.run_for(1.0)

    assert pair.responder.payloads == [b"one and only"]
    assert pair.initiator.endpoint.counters.probe_timeouts == 1
    assert pair.initiator.endpoint.counters.fragments_retransmitted == PROBE_PACKETS


def test_a_silent_peer_is_asked_again_often_at_first_and_then_now_and_then() -> None:
    pair = Pair(config=replace(PLAIN, idle_timeout_seconds=600.0)).connect()
    pair.lets_pass = lambda _: False
    pair.initiator.send(bytes(4 * FRAGMENT_BYTES))
    pair.network.run_for(0.01)
    begun = pair.wire[-1].at
    pair.network.run_for(60.0)

    sent = [p for p in pair.sent_by(INITIATOR) if p.at > begun]
    probes = [(at, [*packets]) for at, packets in groupby(sent, lambda passing: passing.at)]

    times = [begun, *(at for at, _ in probes)]
    intervals = [b - a for a, b in pairwise(times)]
    often = PROBE_BACKOFF * intervals[0]
    soon = int(0.6 * LONG_SILENCE_SECONDS / often)
    assert intervals[1:soon] == pytest.approx([often] * (soon - 1), rel=0.01)
    assert intervals[-50:] == pytest.approx([max(often, LONG_SILENCE_PROBE_SECONDS)] * 50, rel=0.01)
    fragments = [sum(packet.has(Data) for packet in packets) for _, packets in probes]
    assert set(fragments) == {1, 2}, "little, as nothing says how much the path carries"
    pings = [sum(packet.has(Ping) for packet in packets) for _, packets in probes]
    assert pings == [0] + [1] * (len(probes) - 1), "where only small packets get through"
    assert pair.initiator.endpoint.counters.packets_lost == 0


def test_an_urgent_message_overtakes_the_others() -> None:
    puppet = Puppet()
    connection = puppet.connection
    for priority in (Priority.SNAPSHOT, Priority.UPDATE, Priority.CONTROL):
        connection.send(priority, 0, 1, bytes(3000), priority)

    frames = [frame for packet in puppet.receive() for frame in packet]

    streams = [frame.stream for frame in frames if isinstance(frame, Data)]
    assert streams == [Priority.CONTROL] * 3 + [Priority.UPDATE] * 3 + [Priority.SNAPSHOT] * 3


def test_small_messages_share_a_packet() -> None:
    puppet = Puppet()
    for number in range(20):
        puppet.connection.send(0, number, 1, bytes([number]) * 20, Priority.UPDATE)

    [packet] = puppet.receive()

    assert [(f.number, bytes(f.payload)) for f in packet if isinstance(f, Data)] == [
        (number, bytes([number]) * 20) for number in range(20)
    ]


def test_a_message_that_is_relayed_goes_out_as_it_came_in() -> None:
    puppets = [Puppet(seed=seed) for seed in range(3)]
    payload = bytes(range(250)) * 40
    puppets[0].deliver(*puppets[0].fragments(payload, stream=5, number=9))
    received = puppets[0].events()[-1]

    for puppet in puppets[1:]:
        puppet.connection.relay(received.message, Priority.UPDATE)  # type: ignore[union-attr]
    fragments = [
        [f for packet in puppet.receive() for f in packet if isinstance(f, Data)]
        for puppet in puppets[1:]
    ]

    assert heard(received) == (5, 9, 1, payload)
    assert fragments[0] == fragments[1]
    assert b"".join(bytes(f.payload) for f in fragments[0]) == payload
    assert {(f.stream, f.number, f.kind) for f in fragments[0]} == {(5, 9, 1)}


def test_a_message_relayed_to_a_connection_that_is_not_open_has_no_effect() -> None:
    puppet = Puppet()
    puppet.connection.close(64, "enough", puppet.now)

    puppet.connection.relay(ShapedMessage.of(0, 0, 1, b"too late", 1200), Priority.UPDATE)

    assert puppet.connection.bytes_queued == 0


# Flow control.


def holding(*sizes: int) -> Pair:
    """Return a pair with messages of these sizes to send, and a responder that releases none."""
    pair = Pair(config=NARROW).connect()
    pair.responder.releases = False
    for size in sizes:
        pair.initiator.send(bytes(size))
    return pair


def test_a_peer_that_does_not_release_stalls_the_sender_and_releasing_lets_it_go_on() -> None:
    pair = holding(*[2**20] * 5)
    pair.network.run_for(8.0)
    arrived = len(pair.responder.messages)
    held = pair.responder.connection.bytes_held

    pair.responder.release()
    pair.network.run(lambda: len(pair.responder.messages) == 5, seconds=1.0)

    assert arrived == 3
    assert held == 3 * charge_of(2**20)


def test_a_credit_that_is_lost_is_given_again() -> None:
    pair = holding(*[2**20] * 5)
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
    pair = Pair(config=NARROW).connect()
    sizes = [MESSAGE_BYTES_MAX, 1, MESSAGE_BYTES_MAX]

    for size in sizes:
        pair.initiator.send(bytes(size))
    pair.network.run(lambda: len(pair.responder.messages) == 3, seconds=60)

    assert [len(message.payload) for message in pair.responder.messages] == sizes


def test_through_the_smallest_window_a_message_goes_as_soon_as_it_has_credit() -> None:
    """However much credit is left: less than the largest message needs is not enough."""
    pair = holding(2**20, MESSAGE_BYTES_MAX)
    pair.network.run_for(1.0)
    arrived = len(pair.responder.messages)

    pair.responder.release()
    pair.network.run(lambda: len(pair.responder.messages) == 2, seconds=1.0)

    assert arrived == 1


def test_a_peer_that_does_not_release_is_kept_alive_however_long_it_takes() -> None:
    pair = holding(MESSAGE_BYTES_MAX)
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
    puppet = Puppet(NARROW).opened()
    charge = charge_of(2 * 2**20)
    reason = naming(2 * charge, "credit", WINDOW_BYTES_MIN)

    for number in range(2):
        puppet.send(data_frame(bytes(FRAGMENT_BYTES), number=number, total=2 * 2**20))

    assert puppet.events() == [Disconnected(CloseCode.FLOW_CONTROL, reason, by_peer=False)]
    assert puppet.receive()[-1] == [Close(CloseCode.FLOW_CONTROL, reason)]
    assert puppet.connection.bytes_held == charge


def test_a_credit_frame_lets_the_sender_go_on() -> None:
    puppet = Puppet(window_bytes=WINDOW_BYTES_MIN)
    puppet.connection.send(0, 0, 1, bytes(MESSAGE_BYTES_MAX), Priority.UPDATE)
    puppet.receive()
    puppet.connection.send(1, 0, 1, b"urgent", Priority.CONTROL)

    puppet.acknowledge()
    without_credit = puppet.wait(puppet.now + 0.01)
    puppet.acknowledge()
    puppet.send(pack_credit(WINDOW_BYTES_MIN + charge_of(len(b"urgent"))))
    with_credit = puppet.wait(puppet.now + 0.01)

    assert {f.stream for p in without_credit for f in p if isinstance(f, Data)} == {0}
    assert {f.stream for p in with_credit for f in p if isinstance(f, Data)} == {0, 1}
