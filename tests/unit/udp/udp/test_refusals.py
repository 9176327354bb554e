"""Refusals: a port where nothing listens ends its connection, and nothing else does."""

import os
import socket
from collections.abc import Iterator

import pytest

from gradwire_protocol import CloseCode, ConnectionConfig, Disconnected, Endpoint
from gradwire_udp import open_socket
from gradwire_udp.udp.refusals import GONE, LOOK_SECONDS, REFUSED, Refusals
from support.driven_side import Side, connected_sides, on_loops
from support.waiting import until


@pytest.fixture
def refusals() -> Iterator[Refusals]:
    found = Refusals()
    yield found
    found.close()


def dialling(address: object) -> Endpoint:
    endpoint = Endpoint(ConnectionConfig(), random_bytes=os.urandom)
    endpoint.connect(address, 0.0)
    return endpoint


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_attempt_at_a_port_where_nothing_listens_has_failed_after_two_looks(
    refusals: Refusals, host: str
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with open_socket((host, 0), family) as unused:
        address = unused.getsockname()
    endpoint = dialling(address)

    assert not refusals.look(endpoint.connections(), 0.0)
    assert refusals.look(endpoint.connections(), LOOK_SECONDS)

    found = endpoint.next_event()
    assert found is not None
    assert found[1] == Disconnected(CloseCode.UNREACHABLE, REFUSED, by_peer=False)
    assert not refusals.look(endpoint.connections(), 2 * LOOK_SECONDS)


def test_silence_is_no_refusal(refusals: Refusals) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        endpoint = dialling(silent.getsockname())

        assert not any(refusals.look(endpoint.connections(), i * LOOK_SECONDS) for i in range(10))


def is_ended(side: Side, refusals: Refusals, now: float) -> bool:
    """Look for refusals at a moment; return whether the side's connection is over."""
    if refusals.look(side.endpoint.connections(), now):
        side.driver.turn()
    return side.ended is not None


@on_loops
async def test_a_peer_that_is_gone_is_missed_and_one_that_is_there_is_not() -> None:
    refusals = Refusals()
    one, other = await connected_sides()
    [connection] = one.endpoint.connections()
    heard = connection.last_heard
    assert heard is not None
    assert not any(is_ended(one, refusals, heard + i) for i in range(5))

    other.driver.close()
    assert not refusals.look(one.endpoint.connections(), heard)  # it was heard a moment ago
    await until(lambda: is_ended(one, refusals, heard + 1.0), "the refusals")

    assert one.ended == Disconnected(CloseCode.LOST, GONE, by_peer=False)
    refusals.close()


@on_loops
async def test_a_peer_that_answers_stays_though_its_socket_refuses_all_others() -> None:
    """As behind a proxy, whose socket is connected to the other side."""
    refusals = Refusals()
    one, other = await connected_sides()
    [connection] = one.endpoint.connections()
    other.socket.connect(one.driver.address)
    for _ in range(5):
        heard = connection.last_heard
        assert heard is not None
        assert not is_ended(one, refusals, heard + 1.0)
        await until(lambda: connection.last_heard != heard, "an answer")  # noqa: B023

    assert one.ended is None
    refusals.close()
