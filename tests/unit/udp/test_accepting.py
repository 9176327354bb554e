"""Letting connections in. Without descriptors: see the tests of TCP and of HTTP."""

import asyncio
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from gradwire_udp import open_listener
from gradwire_udp.accepting import Acceptor
from gradwire_udp.sockets import SocketAddress
from support.driven_side import run_on
from support.waiting import SOON, until

LOOPS = pytest.mark.parametrize("kind", ["uvloop", "asyncio"])
CALLERS = 20


@LOOPS
def test_others_have_their_turn_between_two_who_come_at_once(kind: str) -> None:
    turns = 0
    seen: list[int] = []

    def let_in(sock: socket.socket, address: SocketAddress) -> None:
        sock.close()
        seen.append(turns)

    async def test() -> None:
        nonlocal turns
        listener = open_listener(("127.0.0.1", 0))
        with ExitStack() as stack:
            for _ in range(CALLERS):
                stack.enter_context(socket.create_connection(listener.getsockname()))
            acceptor = Acceptor(asyncio.get_running_loop(), listener, let_in, "TCP")
            while len(seen) < CALLERS:
                await asyncio.sleep(0)
                turns += 1
            acceptor.close()

    run_on(kind, test)

    assert len(set(seen)) == CALLERS


@LOOPS
def test_who_lets_in_and_fails_is_reported_at_once(kind: str) -> None:
    reported: list[dict[str, Any]] = []

    def let_in(sock: socket.socket, address: SocketAddress) -> None:
        sock.close()
        raise LookupError("where to?")

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        listener = open_listener(("127.0.0.1", 0))
        acceptor = Acceptor(loop, listener, let_in, "TCP")
        with socket.create_connection(listener.getsockname()):
            await until(lambda: reported, "the report")
        acceptor.close()

    run_on(kind, test)

    [context] = reported
    assert str(context["exception"]) == "where to?"


@LOOPS
def test_the_descriptor_of_a_closed_listener_can_be_another_socket_s_at_once(kind: str) -> None:
    def let_in(sock: socket.socket, address: SocketAddress) -> None:
        sock.close()

    async def test() -> None:
        loop = asyncio.get_running_loop()
        listener = open_listener(("127.0.0.1", 0))
        acceptor = Acceptor(loop, listener, let_in, "TCP")
        number = listener.fileno()
        one, other = socket.socketpair()
        with one, other:
            acceptor.close()
            reused = socket.fromfd(one.fileno(), one.family, one.type)
            readable = asyncio.Event()
            with reused:
                assert reused.fileno() == number
                loop.add_reader(reused.fileno(), readable.set)
                other.send(b"x")
                await asyncio.wait_for(readable.wait(), SOON)
                loop.remove_reader(reused.fileno())

    run_on(kind, test)
