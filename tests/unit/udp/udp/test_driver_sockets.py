"""The driver on sockets that do not do as they are told."""

import errno

from support.driven_side import Side, connected, on_loops
from support.fickle_socket import FickleSocket
from support.waiting import until


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
