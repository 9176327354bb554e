"""An endpoint: who is let in, and what is dropped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import (
    CloseCode,
    Connected,
    ConnectionConfig,
    Disconnected,
    Drop,
    Endpoint,
    State,
)
from gradwire_protocol.wire.packets import (
    ACCEPT_BYTES,
    INIT_BYTES,
    RESET,
    RETRY_OR_RESET_BYTES,
    pack_versions,
    parse_versions,
)
from support.endpoints import (
    NOW,
    agreed,
    ask,
    dialling,
    drops,
    events_of,
    first_packet,
    hand_over,
    init_of,
    listening,
    other_version,
    sent_by,
    versions_for,
)
from support.pair import RESPONDER, Pair

# Who is let in.


def test_an_init_is_answered_and_the_first_packet_opens_the_connection() -> None:
    endpoint = listening()

    [accept] = ask(endpoint, init_of(5))
    before = len(endpoint)
    ask(endpoint, first_packet(init_of(5), accept))

    [connection] = endpoint.connections()
    assert before == 0
    assert len(endpoint) == 1
    assert events_of(endpoint) == [(connection, Connected())]
    assert (connection.state, connection.address) == (State.OPEN, "peer")
    assert endpoint.counters.handshakes_answered == 1
    assert endpoint.counters.connections_opened == 1


def test_an_endpoint_that_only_dials_answers_nobody() -> None:
    endpoint = dialling()

    assert ask(endpoint, init_of(5)) == []
    assert drops(endpoint) == {Drop.NOT_ACCEPTING: 1}


def test_who_comes_second_for_the_last_place_is_told_at_once_that_there_is_none() -> None:
    master, workers = listening(connections_max=1), [dialling(), dialling()]
    connections = [worker.connect("master", NOW) for worker in workers]
    inits = [sent_by(worker)[0][0] for worker in workers]
    for i, init in enumerate(inits):
        [accept] = ask(master, init, f"worker {i}")
        hand_over(workers[i], [accept], "master")
    first = [sent_by(worker)[0][0] for worker in workers]

    answers = [ask(master, packet, f"worker {i}") for i, packet in enumerate(first)]
    [close] = answers[1]
    hand_over(workers[1], [close], "master")
    again = ask(master, first[1], "worker 1")

    assert events_of(workers[1]) == [
        (connections[1], Connected()),
        (
            connections[1],
            Disconnected(CloseCode.FULL, "no room: 1 connections are open", by_peer=True),
        ),
    ]
    assert [event for _, event in events_of(master)] == [Connected()]
    assert len(close) < len(inits[1]), "to an address that has proved itself"
    assert [answer[0] for answer in again] == [RESET], "it is forgotten"
    assert drops(master) == {Drop.FULL: 1, Drop.UNKNOWN_SESSION: 1}


def test_session_ids_are_neither_zero_nor_used_twice() -> None:
    drawn = [0, 7, 7, 0, 8]
    endpoint = Endpoint(
        ConnectionConfig(),
        random_bytes=lambda n: drawn.pop(0).to_bytes(4, "little") if n == 4 else bytes(n),
        connections_max=2,
    )

    connection = endpoint.connect("peer", NOW)
    sent_by(endpoint)
    [accept] = ask(endpoint, init_of(5))

    assert connection.session_id == 7
    assert agreed(init_of(5), accept)[0].session_id == 8
    assert drawn == []


# Other versions.


def test_an_init_of_another_version_is_told_which_versions_there_are() -> None:
    endpoint = listening()

    assert ask(endpoint, other_version(init_of(5))) == [pack_versions(5)]
    assert drops(endpoint) == {Drop.VERSION: 1}


def test_an_init_of_another_version_and_another_size_is_not_answered() -> None:
    endpoint = listening()

    assert ask(endpoint, other_version(init_of(5))[:-1]) == []
    assert drops(endpoint) == {Drop.VERSION: 1}


def test_a_peer_without_our_version_is_reported() -> None:
    endpoint = dialling()
    connection = endpoint.connect("peer", NOW)
    versions = versions_for(connection, 2, 3)
    assert parse_versions(versions) == (2, 3)

    hand_over(endpoint, [versions])

    assert events_of(endpoint) == [
        (connection, Disconnected(CloseCode.VERSION, "2, 3", by_peer=True))
    ]
    assert connection.state is State.CLOSED
    assert sent_by(endpoint) == []
    assert len(endpoint) == 0


def test_versions_after_the_connection_is_open_change_nothing() -> None:
    pair = Pair().connect()
    versions = versions_for(pair.initiator.connection, 2)

    hand_over(pair.initiator.endpoint, [versions], RESPONDER, pair.network.now)

    assert pair.initiator.connection.state is State.OPEN
    assert events_of(pair.initiator.endpoint) == []
    assert drops(pair.initiator.endpoint) == {Drop.DUPLICATE: 1}


# What is dropped.


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"", Drop.SHORT),
        (bytes([0x01]) + bytes(6), Drop.SHORT),
        (bytes([0x01]) + bytes(14), Drop.SHORT),
        (bytes([0x01]) + bytes(15), Drop.UNKNOWN_SESSION),
        (bytes([0x00]) + bytes(100), Drop.UNKNOWN_TYPE),
        (bytes([0x15]) + bytes(100), Drop.UNKNOWN_TYPE),
        (bytes([0x12]) + bytes(RETRY_OR_RESET_BYTES - 1), Drop.UNKNOWN_SESSION),
        (bytes([0x14]) + bytes(RETRY_OR_RESET_BYTES), Drop.INVALID_HANDSHAKE),
        (bytes([0x14]) + bytes(RETRY_OR_RESET_BYTES - 1), Drop.UNKNOWN_SESSION),
        (bytes([0x10, 1]) + bytes(INIT_BYTES - 2), Drop.INVALID_HANDSHAKE),
        (bytes([0x10, 1]) + bytes(100), Drop.INVALID_HANDSHAKE),
        (bytes([0x10, 2]) + bytes(100), Drop.VERSION),
        (bytes([0x11]) + bytes(ACCEPT_BYTES - 1), Drop.UNKNOWN_SESSION),
        (bytes([0x13, 1]) + bytes(7), Drop.UNKNOWN_SESSION),
    ],
)
def test_datagrams_are_dropped_under_the_right_reason(datagram: bytes, reason: Drop) -> None:
    endpoint = listening()

    hand_over(endpoint, [datagram], "stranger")

    assert drops(endpoint) == {reason: 1}
    assert events_of(endpoint) == []
    assert len(endpoint) == 0


@pytest.mark.parametrize("kind", [0x11, 0x13])
def test_an_answer_that_cannot_be_one_is_dropped_and_connecting_goes_on(kind: int) -> None:
    endpoint = dialling()
    connection = endpoint.connect("peer", NOW)
    session_id = connection.session_id.to_bytes(4, "little")

    hand_over(endpoint, [bytes([kind, 1, 0, 0]) + session_id + bytes(72)])

    assert drops(endpoint) == {Drop.INVALID_HANDSHAKE: 1}
    assert connection.state is State.CONNECTING
    assert events_of(endpoint) == []


def test_an_answer_counts_wherever_it_comes_from() -> None:
    endpoint, master = dialling(), listening()
    connection = endpoint.connect("peer", NOW)
    [(init, _)] = sent_by(endpoint)
    [accept] = ask(master, init)

    hand_over(endpoint, [accept], "another address of the master")

    assert connection.state is State.OPEN
    assert connection.address == "peer"


@given(datagram=st.binary(max_size=100), leading=st.sampled_from([0x01, 0x10, 0x11, 0x13, None]))
def test_random_bytes_are_counted_as_dropped_once_and_answered_by_nothing_larger(
    datagram: bytes, leading: int | None
) -> None:
    endpoint = listening()
    if leading is not None:
        datagram = bytes([leading]) + datagram

    answers = ask(endpoint, datagram)

    assert sum(drops(endpoint).values()) == 1
    assert answers == []
    assert len(endpoint) == 0
