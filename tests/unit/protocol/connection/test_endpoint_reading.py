"""What comes in one read: datagrams one behind the other, in a buffer that is used again."""

from dataclasses import replace

import pytest

from gradwire_protocol import CloseCode, Connected, Disconnected, Drop, Priority
from gradwire_protocol.limits import MESSAGE_BYTES_MAX, WINDOW_BYTES_MIN
from gradwire_protocol.wire.frames import pack_ping
from gradwire_protocol.wire.packets import SINGLE
from support.endpoints import (
    NOW,
    PLAIN,
    ask,
    dialling,
    drops,
    events_of,
    first_packet,
    hand_over,
    init_of,
    listening,
    sent_by,
)
from support.pair import FRAGMENT_BYTES, data_frame, heard
from support.puppet import Puppet


def test_what_comes_in_one_read_is_cut_into_datagrams() -> None:
    endpoint = listening()

    hand_over(endpoint, [init_of(n) for n in range(1, 4)])
    accepts = [datagram for datagram, _ in sent_by(endpoint)]
    firsts = [first_packet(init_of(n), accept) for n, accept in enumerate(accepts, start=1)]
    hand_over(endpoint, firsts)

    assert len(endpoint) == 3
    assert [event for _, event in events_of(endpoint)] == [Connected()] * 3


def test_a_shorter_last_datagram_is_one_too() -> None:
    puppet = Puppet()
    packets = puppet.fragments(bytes(range(200)) * 50)
    assert len(packets[-1]) < len(packets[0])

    puppet.deliver(*packets)

    assert heard(puppet.events()[-1]) == (0, 0, 1, bytes(range(200)) * 50)


def test_packets_of_several_connections_may_come_in_one_read() -> None:
    """As they do where several peers are behind one address."""
    endpoint = listening()
    packets = []
    for n in (1, 2):
        [accept] = ask(endpoint, init_of(n))
        packets += [
            first_packet(init_of(n), accept, pack_ping(), number=number) for number in range(4)
        ]

    hand_over(endpoint, packets)

    assert len(endpoint) == 2
    assert endpoint.counters.packets_accepted == 8


@pytest.mark.parametrize("size", [40, 44, 1401, 8904])
def test_strangers_in_one_read_are_counted_one_by_one(size: int) -> None:
    endpoint = listening()

    hand_over(endpoint, [bytes([0x01]) + bytes(size - 1)] * 5)

    assert drops(endpoint) == {Drop.UNKNOWN_SESSION: 5}


def test_packets_that_belong_to_nothing_any_more_are_counted_one_by_one() -> None:
    puppet = Puppet()
    packets = puppet.fragments(bytes(10_000))
    puppet.connection.close(64, "enough", puppet.now)
    puppet.wait(puppet.now + 10.0)

    puppet.deliver(*packets)

    assert drops(puppet.endpoint) == {Drop.UNKNOWN_SESSION: len(packets)}


def test_who_reads_everything_into_one_buffer_spoils_nothing() -> None:
    """`hand_over` fills its buffer with garbage when it is done."""
    endpoints = {"initiator": dialling(), "responder": listening()}
    connection = endpoints["initiator"].connect("responder", NOW)

    def exchange() -> None:
        for source, target in 3 * [("initiator", "responder"), ("responder", "initiator")]:
            for datagram, _ in sent_by(endpoints[source]):
                hand_over(endpoints[target], [datagram], source)

    exchange()
    connection.send(0, 0, 1, b"payload", Priority.UPDATE)
    exchange()

    [(_, opened), (_, received)] = events_of(endpoints["responder"])
    assert opened == Connected()
    assert heard(received) == (0, 0, 1, b"payload")


def test_a_damaged_packet_among_others_is_dropped_alone() -> None:
    puppet = Puppet()
    payload = bytes(range(200)) * 100
    packets = puppet.fragments(payload)
    damaged = bytearray(packets[7])
    damaged[100] ^= 1

    puppet.deliver(*packets[:7], bytes(damaged), *packets[8:])
    before = puppet.events()
    puppet.deliver(packets[7])

    assert before == [Connected()]
    assert drops(puppet.endpoint) == {Drop.NOT_AUTHENTIC: 1}
    assert heard(puppet.events()[-1]) == (0, 0, 1, payload)


def test_packets_that_came_before_are_dropped_and_those_between_them_are_not() -> None:
    puppet = Puppet()
    payload = bytes(range(200)) * 100
    packets = puppet.fragments(payload)

    puppet.deliver(*packets[5:8])
    puppet.deliver(*packets)

    assert drops(puppet.endpoint) == {Drop.DUPLICATE: 3}
    assert heard(puppet.events()[-1]) == (0, 0, 1, payload)


def test_a_message_and_what_follows_it_may_come_in_one_read() -> None:
    puppet = Puppet()
    payloads = [bytes([i]) * 6 * FRAGMENT_BYTES for i in range(3)]
    packets = [
        packet
        for number, payload in enumerate(payloads)
        for packet in puppet.fragments(payload, number=number)
    ]

    puppet.deliver(*packets)

    assert [heard(event) for event in puppet.events()[1:]] == [
        (0, number, 1, payload) for number, payload in enumerate(payloads)
    ]


def test_nothing_counts_that_stands_behind_what_breaks_a_rule() -> None:
    puppet = Puppet(replace(PLAIN, window_bytes=WINDOW_BYTES_MIN))
    packets = [
        packet
        for number, size in enumerate([MESSAGE_BYTES_MAX, 10_000, 5 * FRAGMENT_BYTES])
        for packet in puppet.fragments(bytes(size), number=number)[:5]
    ]

    puppet.deliver(*packets)

    assert [type(event) for event in puppet.events()] == [Connected, Disconnected]
    assert puppet.endpoint.counters.violations == 1


def test_a_header_that_no_message_has_is_found_in_a_read_too() -> None:
    puppet = Puppet()
    frame = bytearray(data_frame(bytes(FRAGMENT_BYTES)))
    frame[1] = 0x04  # a flag that means nothing

    puppet.deliver(*(puppet.pack(bytes(frame), flags=SINGLE) for _ in range(4)))

    [_, ended] = puppet.events()
    assert isinstance(ended, Disconnected)
    assert ended.code == CloseCode.VIOLATION
