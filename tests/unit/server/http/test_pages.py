"""A page is made once for all who wait, in steps, and not too often."""

import asyncio
import logging
from collections.abc import Iterator
from itertools import repeat

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector

from gradwire_server.http import pages
from gradwire_server.http.gate import HttpLimits
from gradwire_server.http.pages import PageFailedError, SharedPage, metrics_parts
from gradwire_server.metrics import ServerMetrics
from support.http_side import HttpSide, ask, request, serving, status_of

ALWAYS = 1.0
"""A `load_max` that lets a page be made whenever it is asked for."""

HARDLY_EVER = 1e-12
"""One that lets it be made once in a test."""


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


async def test_a_page_that_fails_is_logged_once_and_not_tried_again_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried = 0

    def parts() -> Iterator[bytes]:
        nonlocal tried
        tried += 1
        yield b"half a page"
        raise LookupError("nobody has thought of this")

    page = SharedPage("/x", parts, load_max=ALWAYS)
    for _ in range(3):
        with pytest.raises(PageFailedError):
            await page.get()

    assert tried == 1
    assert [(r.levelno, r.message) for r in caplog.records] == [
        (logging.ERROR, "/x could not be made")
    ]


async def test_a_page_that_is_being_made_can_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "STEP_SECONDS_MAX", -1.0)
    page = SharedPage("/x", lambda: repeat(b"part"), load_max=ALWAYS)
    waiting = asyncio.create_task(page.get())
    await asyncio.sleep(0)
    await page.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_metrics_in_parts_are_those_in_one_piece() -> None:
    registry = ServerMetrics().registry

    def lines(text: bytes) -> list[bytes]:
        # What the process itself uses changes from one look to the next.
        return [
            line for line in text.splitlines() if not line.startswith((b"process_", b"python_"))
        ]

    assert lines(b"".join(metrics_parts(registry))) == lines(generate_latest(registry))


async def test_a_flood_of_scrapes_makes_the_metrics_once() -> None:
    metrics, counted = ServerMetrics(), Counted()
    metrics.registry.register(counted)
    before = counted.scrapes

    async def scrape(side: HttpSide) -> int:
        return status_of(await ask(side, request("/metrics")))

    limits = HttpLimits(load_max=HARDLY_EVER, connections_per_second_max=1e6)
    async with serving(metrics=metrics, limits=limits) as side:
        for _ in range(10):
            statuses = await asyncio.gather(*(scrape(side) for _ in range(30)))
            assert set(statuses) == {200}

    assert counted.scrapes == before + 1
