"""The driver on sockets that do not do as they are told."""

import errno

from support.driven_side import Side, connected, messages, on_loops
from support.fickle_socket import FickleSocket
from support.waiting import until


@on_loops
async def test_datagrams_that_cannot_be_sent_are_counted_and_recovered() -> None:
    there = messages(5, 30, [10, 3_000])

    one = Side(sock=FickleSocket.on_loopback())
    other = Side(accepts=True)
    await connected(one, other)
    assert isinstance(one.socket, FickleSocket)
    before = one.counters.datagrams_sent

    one.socket.failures_to_send = [OSError(errno.ENETUNREACH, "no route") for _ in range(7)]
    one.send(there)
    await until(lambda: len(one.delivered) == 30, "all deliveries")

    assert sorted(other.received) == sorted(there)
    assert one.counters.send_errors >= 7  # datagrams, in seven trains
    assert one.endpoint.counters.packets_lost >= 1
    assert one.counters.datagrams_sent > before


@on_loops
async def test_an_error_while_receiving_ends_nothing() -> None:
    refused = [ConnectionRefusedError(), InterruptedError(), OSError(errno.EHOSTUNREACH, "")]
    one = Side(sock=FickleSocket.on_loopback(to_receive=refused))
    other = Side(accepts=True)

    await connected(one, other)
    other.send([(0, 0, b"all the same")])
    await until(lambda: one.received, "the message")

    assert isinstance(one.socket, FickleSocket)
    assert one.socket.failures_to_receive == []
    assert one.received == [(0, 0, b"all the same")]
