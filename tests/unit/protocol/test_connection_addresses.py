"""A peer that moves: nothing goes to an address that has not answered a challenge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import AddressChanged, ConnectionConfig, Priority
from gradwire_protocol.congestion import NewReno
from gradwire_protocol.frames import Response, pack_challenge, pack_ping, pack_response
from support.network import Link
from support.pair import Pair, Puppet, kinds_of


def test_nothing_but_a_challenge_goes_to_an_address_until_it_has_answered() -> None:
    puppet = Puppet()
    puppet.events()
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


@pytest.mark.parametrize("address", [Puppet.ADDRESS, "elsewhere"])
def test_a_response_from_elsewhere_does_not_count(address: str) -> None:
    puppet = Puppet()
    puppet.events()
    puppet.send(pack_ping(), address="moved")
    puppet.receive()
    [challenge] = puppet.challenges

    puppet.send(pack_response(challenge.data), address=address)

    assert puppet.events() == []
    assert puppet.connection.address == Puppet.ADDRESS


def test_a_wrong_response_does_not_count() -> None:
    puppet = Puppet()
    puppet.events()
    puppet.send(pack_ping(), address="moved")
    puppet.receive()

    puppet.send(pack_response(b"guessed!"), address="moved")

    assert puppet.events() == []
    assert puppet.connection.address == Puppet.ADDRESS


@pytest.mark.parametrize(("size", "challenges"), [(21, 1), (36, 1), (48, 2), (1400, 3)])
def test_an_address_that_does_not_answer_is_challenged_a_few_times(
    size: int, challenges: int
) -> None:
    """The fewer, the shorter the packet that came from there."""
    puppet = Puppet()
    packet = puppet.pack(pack_ping(), bytes(size - 21))
    assert len(packet) == size
    puppet.deliver(packet, "moved")

    puppet.wait(puppet.now + 5.0)

    assert len(puppet.challenges) == challenges
    assert len(set(puppet.challenges)) == 1
    assert puppet.connection.address == Puppet.ADDRESS


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
def test_no_address_that_has_not_answered_gets_more_than_three_times_what_came_from_it(
    packets: list[tuple[list[bytes], int, int, str, float]],
) -> None:
    puppet = Puppet()
    puppet.connection.send(0, 0, 1, bytes(20_000), Priority.UPDATE)

    for frames, padding, number, address, seconds in packets:
        puppet.send(*frames, bytes(padding), number=number, address=address)
        puppet.wait(puppet.now + seconds)

        for elsewhere in ("moved", "elsewhere"):
            assert puppet.bytes_to[elsewhere] <= 3 * puppet.bytes_from[elsewhere]


def test_an_old_packet_from_elsewhere_puts_nothing_in_doubt() -> None:
    puppet = Puppet()
    old = puppet.pack(pack_ping())
    puppet.send(pack_ping())

    puppet.deliver(old, "elsewhere")
    puppet.wait(puppet.now + 5.0)

    assert puppet.challenges == []


def test_a_challenge_is_answered_to_where_it_came_from() -> None:
    puppet = Puppet()

    puppet.send(pack_challenge(b"12345678"), address="moved")

    responses = [a for frames, a in puppet.receive_addressed() if Response(b"12345678") in frames]
    assert responses == ["moved"]


def test_a_packet_gets_one_answer_however_many_challenges_it_has() -> None:
    puppet = Puppet()

    puppet.send(*(pack_challenge(bytes([i] * 8)) for i in range(50)))

    answers = [packet for packet in puppet.receive() if "Response" in kinds_of(packet)]
    assert answers == [[Response(bytes([49] * 8))]]


def test_no_more_challenges_are_answered_at_once_than_a_few() -> None:
    puppet = Puppet()

    for i in range(50):
        puppet.send(pack_challenge(bytes([i] * 8)))

    kinds = [kinds_of(packet) for packet in puppet.receive()]
    assert kinds.count(["Response"]) == 2


def test_on_another_path_congestion_control_starts_anew() -> None:
    made: list[NewReno] = []

    def make(datagram_bytes: int) -> NewReno:
        made.append(NewReno(datagram_bytes))
        return made[-1]

    puppet = Puppet(ConnectionConfig(congestion=make))
    [controller] = made
    initial = controller.window_bytes
    controller.on_lost(puppet.now, puppet.now)
    assert controller.window_bytes < initial
    puppet.send(pack_ping(), address="moved")
    puppet.receive()

    puppet.send(pack_response(puppet.challenges[0].data), address="moved")

    assert controller.window_bytes == initial


def test_a_peer_that_moves_stays_connected() -> None:
    pair = Pair(Link(loss=0.1, jitter=0.01), seed=2).connect()

    for i in range(5):
        pair.network.move(pair.initiator.host, f"nat {i}")
        pair.initiator.send(bytes(5000))
        pair.responder.send(bytes(5000))
        pair.network.run_for(5.0)

    changes = [e.address for e in pair.responder.events if isinstance(e, AddressChanged)]
    assert changes == [f"nat {i}" for i in range(5)]
    assert len(pair.initiator.messages) == len(pair.responder.messages) == 5
