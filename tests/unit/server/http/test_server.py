"""The pages of the HTTP side, asked over loopback."""

import asyncio
import json
import logging
import socket
from dataclasses import dataclass, field

import aiohttp
import pytest
from prometheus_client import CONTENT_TYPE_LATEST, Counter
from prometheus_client.parser import text_string_to_metric_families

from gradwire_protocol import UsageError
from gradwire_server.http.access import Access, Token
from gradwire_server.http.orders import orders_route
from gradwire_server.http.server import HttpServer
from gradwire_server.metrics import HttpRefusal, ServerMetrics
from gradwire_server.runs.orders import Order
from gradwire_udp import resolve
from support.http_side import STATUS, HttpSide, ask, request, serving, status_of

LOOPBACK, INET = ("127.0.0.1", 0), socket.AF_INET
TOKEN = "correct-horse-battery"
AS_JSON = "Content-Type: application/json"


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


OVERVIEW = "/api/v1/overview"
JSON = "application/json; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/healthz", (200, JSON, '{"status": "ok"}')),
        ("/healthz?verbose=1#top", (200, JSON, '{"status": "ok"}')),
        (OVERVIEW, (200, "application/json", json.dumps(STATUS))),
    ],
)
async def test_every_page_tells_what_it_is_for_and_nothing_else(
    path: str, page: tuple[int, str, str]
) -> None:
    async with serving() as side:
        assert await get(f"{side.url}{path}") == page


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/healthz/x", "/../metrics", "//"])
async def test_another_page_does_not_exist(path: str) -> None:
    async with serving() as side:
        answer = await ask(side, request(path))

    assert status_of(answer) == 404
    assert side.refusals == {HttpRefusal.NOT_FOUND: 1}


@pytest.mark.parametrize("path", ["/metrics", "/healthz", OVERVIEW])
async def test_head_is_get_without_the_page_and_nobody_in_between_keeps_it(path: str) -> None:
    async with serving() as side:
        answer = await ask(side, request(path, method="HEAD"))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert (status_of(head), body) == (200, b"")
    assert b"\r\nCache-Control: no-store\r\n" in answer


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
async def test_nothing_but_orders_changes_anything(method: str) -> None:
    async with serving() as side:
        answer = await ask(side, request(OVERVIEW, method=method, body=b"x"))

    assert status_of(answer) == 405
    assert b"Allow: GET,HEAD\r\n" in answer
    assert side.refusals == {HttpRefusal.METHOD: 1}


@pytest.mark.parametrize("path", ["/healthz?token=x", f"{OVERVIEW}?points=7&Access_Token=x"])
async def test_a_token_in_a_url_is_refused(path: str) -> None:
    async with serving() as side:
        answer = await ask(side, request(path))

    assert status_of(answer) == 400
    assert b"take another token" in answer


# Orders.

ORDER = b'{"action": "expel", "name": "gpu1", "run": "bert"}'


@dataclass
class Desk:
    """Takes orders."""

    taken: list[tuple[str, Order]] = field(default_factory=list)

    def execute(self, who: str, order: Order) -> str:
        self.taken.append((who, order))
        if order.action == "explode":
            raise UsageError("no such order")
        return "expelled: \N{GREEK SMALL LETTER ALPHA}"


async def order(access: Access, body: bytes = ORDER, *headers: str) -> tuple[bytes, Desk]:
    """Give an order; return the answer, and what has taken it."""
    desk = Desk()
    kind = () if any("Content-Type" in each for each in headers) else (AS_JSON,)
    async with serving(access=access, routes=[orders_route(access, desk.execute)]) as side:
        sent = request("/api/v1/orders", *kind, *headers, method="POST", body=body)
        return await ask(side, sent), desk


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def test_an_order_is_carried_out_and_its_result_told() -> None:
    answer, desk = await order(Access(has_keys=False))

    assert status_of(answer) == 200
    assert json.loads(body_of(answer)) == {"done": "expelled: \N{GREEK SMALL LETTER ALPHA}"}
    assert desk.taken == [("on this machine", Order("expel", "gpu1", "bert"))]


async def test_who_has_the_token_is_the_operator() -> None:
    access = Access(operator_token=Token(TOKEN.encode()))

    answer, desk = await order(access, ORDER, f"Authorization: Bearer {TOKEN}")
    refused, untouched = await order(access)

    assert (status_of(answer), desk.taken[0][0]) == (200, "operator")
    assert (status_of(refused), untouched.taken) == (401, [])
    assert b"--http-operator-token-file" in refused


async def test_what_cannot_be_carried_out_is_a_conflict_with_the_reason() -> None:
    answer, _ = await order(Access(has_keys=False), b'{"action": "explode"}')

    assert (status_of(answer), body_of(answer)) == (409, b"no such order")


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (400, b"drain", ()),
        (400, b"[]", ()),
        (400, ORDER, ("Content-Type: text/plain",)),
        (403, ORDER, ("Origin: http://rebound.example",)),
        (403, ORDER, ("Origin: null",)),
        (413, b" " * 100_000, ()),
    ],
)
async def test_what_is_no_order_or_of_another_site_s_page_is_not_taken(
    status: int, body: bytes, headers: tuple[str, ...]
) -> None:
    answer, desk = await order(Access(has_keys=False), body, *headers)

    assert status_of(answer) == status
    assert desk.taken == []


async def test_a_page_of_this_server_gives_orders() -> None:
    answer, _ = await order(Access(has_keys=False), ORDER, "Origin: http://127.0.0.1")

    assert status_of(answer) == 200


# Who may see them. The rules are in test_access.


@pytest.mark.parametrize("path", ["/metrics", OVERVIEW, "/nothing"])
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


async def test_a_name_of_somebody_else_for_loopback_shows_nothing() -> None:
    async with serving() as side:
        head = request(OVERVIEW).replace(b"127.0.0.1", b"rebound.example")
        answer = await ask(side, head)

    assert status_of(answer) == 403
    assert b"--http-token-file" in answer
    assert side.refusals == {HttpRefusal.CLOSED: 1}


async def test_off_loopback_and_without_a_token_only_health_is_shown() -> None:
    metrics = ServerMetrics()
    server = HttpServer(metrics, lambda: STATUS)
    family, address = resolve("0.0.0.0:0")
    await server.start(address, family)
    side = HttpSide(server, metrics)

    answers = [await ask(side, request(path)) for path in ("/healthz", "/metrics", OVERVIEW)]
    lacks_token = server.access.lacks_token
    await server.close()

    assert [status_of(answer) for answer in answers] == [200, 403, 403]
    assert lacks_token


# A page that fails.


async def test_a_page_that_fails_is_in_the_log_and_no_end_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> dict[str, object]:
        raise LookupError("nobody has thought of this")

    async with serving(status=fail) as side:
        answers = await asyncio.gather(*(ask(side, request(OVERVIEW)) for _ in range(3)))
        health = await ask(side, request("/healthz"))

    assert [status_of(answer) for answer in answers] == [500, 500, 500]
    assert b"nobody" not in answers[0]
    assert status_of(health) == 200
    assert side.refusals == {HttpRefusal.FAILED: 3}
    messages = {r.message for r in caplog.records if r.levelno >= logging.WARNING}
    assert messages == {f"{OVERVIEW} could not be made"}
