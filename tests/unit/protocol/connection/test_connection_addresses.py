"""A peer that moves: nothing goes to an address that has not answered a challenge."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import AddressChanged, ConnectionConfig, Priority
from gradwire_protocol.connection.datagram_size import DatagramSizes
from gradwire_protocol.wire.frames import Response, pack_challenge, pack_ping, pack_response
from support.pair import kinds_of
from support.puppet import Puppet


def test_nothing_but_a_challenge_goes_to_an_address_until_it_has_answered() -> None:
    puppet = Puppet().opened()
    puppet.connection.send(0, 0, 1, bytes(3000), Priority.UPDATE)

    puppet.send(pack_ping(), address="moved")
    before = [(kinds_of(frames), address) for frames, address in puppet.receive_addressed()]
    [challenge] = puppet.challenges
    puppet.send(pack_response(challenge.data), address="moved")
    puppet.connection.send(0, 1, 1, b"more", Priority.UPDATE)
    after = {address for _, address in puppet.receive_addressed()}

    assert before == [(["Challenge"], "moved"), *[(["Data"], Puppet.ADDRESS)] * 3]
    assert puppet.events() == [AddressChanged("moved")]
    assert puppet.connection.address == "moved"
    assert after == {"moved"}
    assert puppet.endpoint.counters.addresses_changed == 1


@given(
    packets=st.lists(
        st.tuples(
            st.lists(st.sampled_from([pack_ping(), pack_challenge(b"12345678")]), min_size=1),
            st.integers(0, 100),
            st.integers(0, 40),
            st.sampled_from(["moved", "elsewhere", Puppet.ADDRESS]),
            st.sampled_from([0.0, 0.1, 5.0]),
        ),
        max_size=20,
    )
)
def test_no_address_that_has_not_answered_gets_more_than_what_came_from_it(
    packets: list[tuple[list[bytes], int, int, str, float]],
) -> None:
    puppet = Puppet()
    puppet.connection.send(0, 0, 1, bytes(20_000), Priority.UPDATE)

    for frames, padding, number, address, seconds in packets:
        puppet.send(*frames, bytes(padding), number=number, address=address)
        puppet.wait(puppet.now + seconds)

        for elsewhere in ("moved", "elsewhere"):
            assert puppet.bytes_to[elsewhere] <= puppet.bytes_from[elsewhere]


def test_an_old_packet_from_elsewhere_puts_nothing_in_doubt() -> None:
    puppet = Puppet()
    old = puppet.pack(pack_ping())
    puppet.send(pack_ping())

    puppet.deliver(old, address="elsewhere")
    puppet.wait(puppet.now + 5.0)

    assert puppet.challenges == []


def test_a_packet_gets_one_answer_however_many_challenges_it_has() -> None:
    puppet = Puppet()

    puppet.send(*(pack_challenge(bytes([i] * 8)) for i in range(50)))

    answers = [packet for packet in puppet.receive() if "Response" in kinds_of(packet)]
    assert answers == [[Response(bytes([49] * 8))]]


def test_a_fragment_that_is_larger_than_the_window_leaves_nevertheless() -> None:
    """It was cut for a wider path, too often to be cut again; nothing else is in flight."""
    puppet = Puppet(ConnectionConfig(), datagram_bytes=8900)
    while puppet.largest_datagram < 8900:
        puppet.acknowledge()
        puppet.receive()
    puppet.acknowledge()
    puppet.connection.send(0, 0, 1, bytes(10**6), Priority.UPDATE)
    puppet.receive()
    puppet.send(pack_ping(), address="moved")
    puppet.receive()
    with (
        patch("gradwire_protocol.delivery.outgoing.SHAPES_MAX", 1),
        patch.object(DatagramSizes, "probe_to_send", return_value=0),
    ):
        puppet.send(pack_response(puppet.challenges[-1].data), address="moved")
        puppet.receive()
        puppet.acknowledge(address="moved")
        controller = puppet.connection.sender.recovery.controller
        controller.on_persistent_congestion()
        packets = puppet.receive()

    assert puppet.connection.bytes_in_flight == 8900 > controller.window_bytes
    assert [kinds_of(packet) for packet in packets] == [["Data"]]
