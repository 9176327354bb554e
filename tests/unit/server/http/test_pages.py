"""A page is made once for all who wait, in steps, and not too often."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from gradwire_server.http import pages
from gradwire_server.http.pages import SharedPage, metrics_parts
from gradwire_server.http.server import HttpLimits
from gradwire_server.metrics import ServerMetrics
from support.http_side import HttpSide, ask, request, serving, status_of
from support.waiting import BRIEF, until

ALWAYS = 1.0
"""A `load_max` that lets a page be made whenever it is asked for."""

HARDLY_EVER = 1e-12
"""One that has the longest pause follow."""


class Numbered:
    """A page that says how often it was made."""

    def __init__(self) -> None:
        self.made = 0

    def parts(self) -> Iterator[bytes]:
        self.made += 1
        yield b"page "
        yield str(self.made).encode()


class Counted(Collector):
    """What is asked once for each time that the metrics are made."""

    def __init__(self) -> None:
        self.scrapes = 0

    def collect(self) -> Iterator[Metric]:
        self.scrapes += 1
        yield from ()


async def test_all_who_wait_get_the_same_page() -> None:
    numbered = Numbered()
    page = SharedPage("/x", numbered.parts, load_max=ALWAYS)

    assert set(await asyncio.gather(*(page.get() for _ in range(100)))) == {b"page 1"}
    assert numbered.made == 1


async def test_a_page_that_fails_is_logged_once_for_all_and_tried_again_after_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "FAILED_PAGE_SECONDS", BRIEF)

    def parts() -> Iterator[bytes]:
        yield b"half a page"
        raise LookupError("nobody has thought of this")

    page = SharedPage("/x", parts, load_max=ALWAYS)
    loop = asyncio.get_running_loop()
    failed = await asyncio.gather(*(page.get() for _ in range(3)), return_exceptions=True)
    before, began = len(caplog.records), loop.time()
    with pytest.raises(web.HTTPInternalServerError):
        await page.get()

    assert loop.time() - began >= 0.9 * BRIEF
    assert {type(error) for error in failed} == {web.HTTPInternalServerError}
    assert len({id(error) for error in failed}) == 3, "an exception of aiohttp's is one answer"
    assert before == 1
    assert {(r.levelno, r.message) for r in caplog.records} == {
        (logging.ERROR, "/x could not be made")
    }


async def test_a_page_is_never_older_than_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another one is being made, which may have missed what this one is to show."""
    monkeypatch.setattr(pages, "STEP_SECONDS_MAX", -1.0)
    numbered = Numbered()
    page = SharedPage("/x", numbered.parts, load_max=ALWAYS)
    first = asyncio.create_task(page.get())
    await until(lambda: numbered.made == 1, "it to be begun")

    assert await page.get() == b"page 2"
    assert await first == b"page 1"


async def test_who_asks_too_often_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAUSE_SECONDS_MAX", BRIEF)
    page = SharedPage("/x", Numbered().parts, load_max=HARDLY_EVER)
    loop = asyncio.get_running_loop()
    await page.get()
    began = loop.time()

    assert await page.get() == b"page 2"
    assert loop.time() - began >= 0.9 * BRIEF


async def test_who_gives_up_takes_the_page_from_nobody() -> None:
    page = SharedPage("/x", Numbered().parts, load_max=ALWAYS)
    impatient, patient = (asyncio.create_task(page.get()) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()

    assert await patient == b"page 1"


def test_metrics_in_parts_are_those_in_one_piece() -> None:
    registry = ServerMetrics().registry

    def lines(text: bytes) -> list[bytes]:
        # What the process itself uses changes from one look to the next.
        return [
            line for line in text.splitlines() if not line.startswith((b"process_", b"python_"))
        ]

    assert lines(b"".join(metrics_parts(registry))) == lines(generate_latest(registry))


async def test_a_flood_of_scrapes_makes_the_metrics_once_for_all() -> None:
    metrics, counted = ServerMetrics(), Counted()
    metrics.registry.register(counted)
    before = counted.scrapes

    async def scrape(side: HttpSide) -> int:
        return status_of(await ask(side, request("/metrics")))

    unhurried = HttpLimits(accept_pause_seconds=0.0)
    async with serving(metrics=metrics, limits=unhurried) as side:
        for _ in range(10):
            statuses = await asyncio.gather(*(scrape(side) for _ in range(30)))
            assert set(statuses) == {200}

    assert counted.scrapes - before < 100
