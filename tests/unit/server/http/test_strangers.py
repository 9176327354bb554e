"""What strangers can do to the HTTP side, and what it costs: nothing grows, nothing stops."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gradwire_server.http.access import Access
from gradwire_server.http.orders import orders_route
from gradwire_server.http.server import SERVER, HttpLimits, is_of_aiohttp
from gradwire_server.metrics import HttpRefusal
from support.http_side import Visitor, ask, on_loops, request, serving, status_of
from support.waiting import BRIEF, until

JSON = "Content-Type: application/json"

UNHURRIED = 0.0
"""The pause after each connection where a test is not about their rate."""


def limits(**changes: Any) -> HttpLimits:
    return HttpLimits(**{"accept_pause_seconds": UNHURRIED, **changes})


# Time.


@on_loops
@pytest.mark.parametrize("begun", [b"", b"GET /hea", request("/healthz")[:-2]])
async def test_who_does_not_send_a_whole_request_in_time_is_closed(begun: bytes) -> None:
    async with serving(limits=limits(connection_seconds_max=BRIEF)) as side:
        heard = await ask(side, begun)

        assert heard == b""
        assert side.refusals == {HttpRefusal.TOO_SLOW: 1}
        assert side.server.connections == 0


@on_loops
async def test_who_sends_a_byte_now_and_then_is_closed_all_the_same() -> None:
    async with serving(limits=limits(connection_seconds_max=BRIEF)) as side:
        visitor = await Visitor.come(side)
        visitor.send(b"GET /healthz HTTP/1.1\r\nName: ")

        def drip() -> bool:
            if side.refused(HttpRefusal.TOO_SLOW):
                return True
            visitor.send(b"x")
            return False

        await until(drip, "the visitor to be closed")
        assert await visitor.hear() == b""
        visitor.go()


@on_loops
async def test_who_does_not_read_is_closed() -> None:
    # More than the buffers of both sockets hold.
    status = {"much": "x" * 16 * 2**20}
    few = limits(connection_seconds_max=BRIEF)
    async with serving(status=lambda: status, limits=few) as side:
        with socket.create_connection(("127.0.0.1", side.server.port)) as unread:
            unread.sendall(request("/api/v1/overview"))
            await side.wait_for_refusals(HttpRefusal.TOO_SLOW)

        assert side.server.connections == 0


@on_loops
async def test_a_server_does_not_wait_for_those_who_do_not_read_when_it_ends() -> None:
    status = {"much": "x" * 16 * 2**20}
    asked = asyncio.Event()

    def tell() -> dict[str, str]:
        asked.set()
        return status

    async with serving(status=tell, limits=limits()) as side:
        unread = socket.create_connection(("127.0.0.1", side.server.port))
        unread.sendall(request("/api/v1/overview"))
        await asked.wait()

    unread.close()
    assert side.server.connections == 0


# Number.


@on_loops
async def test_a_thousand_connections_are_sixty_four_and_the_next_visitor_is_served() -> None:
    most = 0
    async with serving(limits=limits()) as side:
        visitors = []
        for n in range(1000):
            visitors.append(await Visitor.come(side))
            most = max(most, side.server.connections)
            if n % 100 == 99:
                assert status_of(await ask(side, request("/healthz"))) == 200

        await side.wait_for_refusals(HttpRefusal.CROWDED, 1000 - 64)
        assert most == 64
        for visitor in visitors:
            visitor.go()
        await until(lambda: side.server.connections == 0, "all to be gone")


@on_loops
async def test_more_connections_than_the_rate_allows_wait_their_turn() -> None:
    async with serving(limits=limits(accept_pause_seconds=3600.0)) as side:
        assert status_of(await ask(side, request("/healthz"))) == 200
        late = await Visitor.come(side)
        late.send(request("/healthz"))
        for _ in range(100):
            await asyncio.sleep(0)

        assert side.server.connections == 0
        late.go()


@on_loops
async def test_a_connection_carries_one_request() -> None:
    async with serving(limits=limits()) as side:
        answer = await ask(side, request("/healthz") * 100)

    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close\r\n" in answer


# Streams.


@on_loops
async def test_a_stream_lasts_and_there_are_only_so_many() -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        request.app[SERVER].hold(request)
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"tick")
            await asyncio.sleep(BRIEF / 10)

    few = limits(connection_seconds_max=BRIEF, streams_max=1)
    async with serving(limits=few, routes=[web.get("/stream", stream)]) as side:
        viewer = await Visitor.come(side)
        viewer.send(request("/stream"))
        idle = await Visitor.come(side)
        await side.wait_for_refusals(HttpRefusal.TOO_SLOW)
        refused = await ask(side, request("/stream"))
        viewer.go()

        assert await idle.hear() == b""
        assert status_of(refused) == 503
        assert side.refusals == {HttpRefusal.TOO_SLOW: 1, HttpRefusal.CROWDED: 1}
        another = await Visitor.come(side)
        another.send(request("/stream"))
        idle.go()
        another.go()


# Size.


@on_loops
@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"x" * 10_000,
        b"GET / HTTP/1.1\r\nSome-Header: " + b"x" * 10_000,
        b"GET / HTTP/1.1\r\n" + b"Some-Header: x\r\n" * 1_000,
        request("/api/v1/orders", JSON, "Content-Length: 1000000", method="POST") + b"x" * 100_000,
    ],
)
async def test_who_sends_more_than_a_request_can_have_is_refused(endless: bytes) -> None:
    async with serving(
        limits=limits(), routes=[orders_route(Access(has_keys=False), lambda *_: "done")]
    ) as side:
        assert status_of(await ask(side, endless)) in (400, 403, 413)
        await until(lambda: side.server.connections == 0, "the end of the connection")


# Nonsense.


@on_loops
@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\x00\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nAuthorization Bearer my-own-secret\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_never_logged(
    nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(limits=limits()) as side:
        await ask(side, nonsense)
        assert status_of(await ask(side, request("/healthz"))) == 200

    assert [r for r in caplog.records if r.name.startswith(("aiohttp", "gradwire"))] == []


# What breaks here does not break the daemon.


def test_an_error_that_aiohttp_raises_is_known_from_one_of_the_daemon() -> None:
    def raised(act: Callable[[], object]) -> Exception:
        try:
            act()
        except Exception as error:
            return error
        raise AssertionError

    assert is_of_aiohttp(raised(lambda: web.Response(body=object()).headers))
    assert not is_of_aiohttp(raised(lambda: 1 // 0))
    assert not is_of_aiohttp(None)


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Let the process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@on_loops
async def test_without_descriptors_visitors_wait_until_there_are_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(limits=limits()) as side:
        with socket.socket() as visitor:
            visitor.setblocking(False)
            loop = asyncio.get_running_loop()
            with no_descriptors_left():
                await loop.sock_connect(visitor, ("127.0.0.1", side.server.port))
                await until(lambda: "cannot accept" in caplog.text, "the lack to be noticed")
            await loop.sock_sendall(visitor, request("/healthz"))
            assert status_of(await loop.sock_recv(visitor, 65536)) == 200

    assert (
        "cannot accept HTTP connections: Too many open files; trying again in 1 s"
        in caplog.messages
    )
