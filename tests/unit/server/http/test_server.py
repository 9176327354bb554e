"""The pages of the HTTP side, asked over loopback."""

import errno
import logging
import socket

import aiohttp
import pytest
from prometheus_client import CONTENT_TYPE_LATEST, Counter
from prometheus_client.parser import text_string_to_metric_families

from gradwire_server.http.access import Access, Token
from gradwire_server.http.limits import HttpLimits
from gradwire_server.http.server import HttpServer
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_udp import resolve
from support.http_side import STATUS, Asked, HttpSide, ask, request, serving, status_of

LOOPBACK, INET = ("127.0.0.1", 0), socket.AF_INET
TOKEN = "correct-horse-battery"


async def get(url: str, **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers) as response:
        return response.status, response.headers["Content-Type"], await response.text()


# Pages.


async def test_metrics_are_served_as_prometheus_reads_them() -> None:
    metrics = ServerMetrics()
    Counter("answers_total", "Answers given.", registry=metrics.registry).inc(42)

    async with serving(metrics=metrics) as side:
        status, content_type, body = await get(f"{side.url}/metrics")

    assert (status, content_type) == (200, CONTENT_TYPE_LATEST)
    families = {family.name: family for family in text_string_to_metric_families(body)}
    assert [s.value for s in families["answers"].samples if s.name == "answers_total"] == [42]


async def test_metrics_are_those_of_the_moment_that_they_are_asked_for() -> None:
    metrics = ServerMetrics()
    metrics.registry.register(Asked())
    limits = HttpLimits(load_max=1.0)  # no pause between two
    async with serving(metrics=metrics, limits=limits) as side:
        _, _, first = await get(f"{side.url}/metrics")
        _, _, second = await get(f"{side.url}/metrics")

    assert "asked_total 1.0" in first
    assert "asked_total 2.0" in second


JSON, TEXT = "application/json; charset=utf-8", "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/healthz", (200, JSON, '{"status": "ok"}')),
        ("/healthz?verbose=1#top", (200, JSON, '{"status": "ok"}')),
        ("/status", (200, JSON, '{"status": "ok", "run": null, "workers": [{"rank": 0}]}')),
        ("/", (200, TEXT, "gradwire master: /healthz, /metrics, /status, /runs/NAME/series\n")),
    ],
)
async def test_every_page_tells_what_it_is_for_and_nothing_else(
    path: str, page: tuple[int, str, str]
) -> None:
    async with serving() as side:
        assert await get(f"{side.url}{path}") == page


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/healthz/x", "/../status", "//"])
async def test_another_page_does_not_exist(path: str) -> None:
    async with serving() as side:
        answer = await ask(side, request(path))

    assert status_of(answer) == 404
    assert side.refusals == {HttpRefusal.NOT_FOUND: 1}


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/status"])
async def test_head_is_get_without_the_page_and_nobody_in_between_keeps_it(path: str) -> None:
    async with serving() as side:
        answer = await ask(side, request(path, method="HEAD"))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert (status_of(head), body) == (200, b"")
    assert b"\r\nCache-Control: no-store\r\n" in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"])
async def test_nothing_can_be_changed_over_http(method: str) -> None:
    async with serving() as side:
        answer = await ask(side, request("/status", "Content-Length: 1", method=method) + b"x")

    assert status_of(answer) == 405
    assert b"Allow: GET, HEAD\r\n" in answer
    assert side.refusals == {HttpRefusal.METHOD: 1}


# Who may see them. The rules are in test_access.


@pytest.mark.parametrize("path", ["/", "/metrics", "/status", "/nothing"])
async def test_with_a_token_nothing_but_health_is_shown_without_it(path: str) -> None:
    async with serving(access=Access(token=Token(TOKEN.encode()))) as side:
        without = await ask(side, request(path))
        wrong = await ask(side, request(path, "Authorization: Bearer wrong-horse-battery"))
        right = await ask(side, request(path, f"Authorization: Bearer {TOKEN}"))
        health = await ask(side, request("/healthz"))

    assert [status_of(answer) for answer in (without, wrong)] == [401, 401]
    assert b'WWW-Authenticate: Bearer realm="gradwire"\r\n' in without
    assert b"--http-token-file" in without
    assert status_of(right) == (404 if path == "/nothing" else 200)
    assert status_of(health) == 200
    assert side.refused(HttpRefusal.UNAUTHORIZED) == 2


@pytest.mark.parametrize("offered", [b"\xff\xfe", "schlüssel-schlüssel".encode(), b"", b"\t"])
async def test_a_token_of_any_bytes_is_only_a_wrong_one(offered: bytes) -> None:
    head = request("/status", "Authorization: Bearer @").replace(b"@", offered)

    async with serving(access=Access(token=Token(TOKEN.encode()))) as side:
        answer = await ask(side, head)

    assert status_of(answer) == 401


async def test_a_name_of_somebody_else_for_loopback_shows_nothing() -> None:
    async with serving() as side:
        head = request("/status").replace(b"127.0.0.1", b"rebound.example")
        answer = await ask(side, head)

    assert status_of(answer) == 403
    assert b"--http-token-file" in answer
    assert side.refusals == {HttpRefusal.CLOSED: 1}


async def test_off_loopback_and_without_a_token_only_health_is_shown() -> None:
    metrics = ServerMetrics()
    server = HttpServer(metrics, lambda: STATUS)
    family, address = resolve("0.0.0.0:0")
    server.start(address, family)
    side = HttpSide(server, metrics)

    answers = [await ask(side, request(path)) for path in ("/healthz", "/metrics", "/status")]
    lacks_token = server.lacks_token
    await server.close()

    assert [status_of(answer) for answer in answers] == [200, 403, 403]
    assert lacks_token


# A page that fails.


async def test_a_page_that_fails_is_one_line_in_the_log_and_no_end_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> dict[str, object]:
        raise LookupError("nobody has thought of this")

    async with serving(status=fail) as side:
        answers = [await ask(side, request("/status")) for _ in range(3)]
        health = await ask(side, request("/healthz"))

    assert [status_of(answer) for answer in answers] == [500, 500, 500]
    assert b"nobody" not in answers[0]
    assert status_of(health) == 200
    assert side.refusals == {HttpRefusal.FAILED: 3}
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
        "/status could not be made"
    ]


# Beginning and end.


async def test_an_address_in_use_is_an_error_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = HttpServer(ServerMetrics(), lambda: STATUS)

        with pytest.raises(OSError, match="in use") as refused:
            server.start(other.getsockname(), INET)
        await server.close()

    assert refused.value.errno == errno.EADDRINUSE


async def test_a_server_that_is_closed_serves_nobody() -> None:
    async with serving() as side:
        pass

    with pytest.raises(aiohttp.ClientConnectorError):
        await get(side.url)


async def test_a_server_that_never_started_can_be_closed() -> None:
    server = HttpServer(ServerMetrics(), lambda: STATUS)

    await server.close()

    assert (server.port, server.connections) == (0, 0)


async def test_a_server_on_loopback_knows_that_it_is() -> None:
    server = HttpServer(ServerMetrics(), lambda: STATUS)

    server.start(LOOPBACK, INET)
    seen = (server.on_loopback, server.lacks_token)
    await server.close()

    assert seen == (True, False)
