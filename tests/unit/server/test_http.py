"""The HTTP side, asked over loopback."""

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from gradwire_server.http import HttpServer

STATUS: dict[str, Any] = {"status": "ok", "run": None, "workers": [{"rank": 0}]}


@asynccontextmanager
async def serving(registry: CollectorRegistry) -> AsyncIterator[str]:
    """Run a server; yield its URL."""
    server = HttpServer(registry, lambda: STATUS)
    await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.close()


async def get(url: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return response.status, response.headers["Content-Type"], await response.text()


async def test_metrics_are_served_as_prometheus_reads_them() -> None:
    registry = CollectorRegistry()
    Counter("answers_total", "Answers given.", registry=registry).inc(42)

    async with serving(registry) as url:
        status, content_type, body = await get(f"{url}/metrics")

    assert (status, content_type) == (200, CONTENT_TYPE_LATEST)
    families = {family.name: family for family in text_string_to_metric_families(body)}
    assert [s.value for s in families["answers"].samples if s.name == "answers_total"] == [42]


async def test_metrics_are_those_of_the_moment_that_they_are_asked_for() -> None:
    registry = CollectorRegistry()
    asked = Counter("asked_total", "Times that somebody asked.", registry=registry)

    async def refresh() -> None:
        asked.inc()

    server = HttpServer(registry, lambda: STATUS, refresh)
    await server.start("127.0.0.1", 0)
    _, _, first = await get(f"http://127.0.0.1:{server.port}/metrics")
    _, _, second = await get(f"http://127.0.0.1:{server.port}/metrics")
    await server.close()

    assert "asked_total 1.0" in first
    assert "asked_total 2.0" in second


async def test_health_is_what_the_status_says_as_json() -> None:
    async with serving(CollectorRegistry()) as url:
        status, content_type, body = await get(f"{url}/healthz")

    assert (status, content_type) == (200, "application/json; charset=utf-8")
    assert body == '{"status": "ok", "run": null, "workers": [{"rank": 0}]}'


async def test_the_front_page_names_the_other_pages() -> None:
    async with serving(CollectorRegistry()) as url:
        status, _, body = await get(f"{url}/")

    assert (status, body) == (200, "gradwire master: /metrics, /healthz\n")


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "/healthz/x"])
async def test_another_page_does_not_exist(path: str) -> None:
    async with serving(CollectorRegistry()) as url:
        status, _, _ = await get(url + path)

    assert status == 404


async def test_nothing_can_be_changed_over_http() -> None:
    async with serving(CollectorRegistry()) as url, aiohttp.ClientSession() as client:
        for path in ("/", "/metrics", "/healthz"):
            async with client.post(url + path, data=b"x") as response:
                assert response.status == 405


async def test_an_address_in_use_is_an_error_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        server = HttpServer(CollectorRegistry(), lambda: STATUS)

        with pytest.raises(OSError, match="in use") as refused:
            await server.start("127.0.0.1", other.getsockname()[1])
        await server.close()

    assert refused.value.errno == errno.EADDRINUSE


async def test_a_server_that_is_closed_serves_nobody() -> None:
    async with serving(CollectorRegistry()) as url:
        pass

    with pytest.raises(aiohttp.ClientConnectorError):
        await get(url)


async def test_a_server_that_never_started_can_be_closed() -> None:
    server = HttpServer(CollectorRegistry(), lambda: STATUS)

    await server.close()

    assert server.port == 0
