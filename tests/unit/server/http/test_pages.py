"""A page is made once for all who wait, in steps, and not too often."""

import asyncio
import logging
from collections.abc import Iterator
from time import perf_counter, process_time

import pytest
from prometheus_client import generate_latest

from gradwire_server.http.limits import STEP_SECONDS_MAX, HttpLimits
from gradwire_server.http.pages import Budget, PageFailedError, SharedPage, metrics_parts
from gradwire_server.metrics import ServerMetrics
from support.http_side import Asked, HttpSide, ask, request, serving, status_of

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


class Long:
    """A page each of whose parts takes longer than a step may."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self.begun = asyncio.Event()

    def parts(self) -> Iterator[bytes]:
        for _ in range(self._parts):
            until = perf_counter() + 2 * STEP_SECONDS_MAX
            while perf_counter() < until:
                pass
            self.begun.set()
            yield b"part"


async def test_who_asks_again_gets_the_page_of_that_moment() -> None:
    page = SharedPage("/x", Numbered().parts, load_max=ALWAYS)

    assert [await page.get() for _ in range(3)] == [b"page 1", b"page 2", b"page 3"]


async def test_who_asks_too_often_gets_the_last_page() -> None:
    page = SharedPage("/x", Numbered().parts, load_max=HARDLY_EVER)

    assert [await page.get() for _ in range(3)] == [b"page 1"] * 3


async def test_all_who_wait_get_the_same_page() -> None:
    numbered = Numbered()
    page = SharedPage("/x", numbered.parts, load_max=ALWAYS)
    waiting = [asyncio.create_task(page.get()) for _ in range(100)]

    assert set(await asyncio.gather(*waiting)) == {b"page 1"}
    assert numbered.made == 1


async def test_who_goes_away_takes_the_page_from_nobody() -> None:
    long = Long(parts=8)
    page = SharedPage("/x", long.parts, load_max=ALWAYS)
    first, second = (asyncio.create_task(page.get()) for _ in range(2))
    await long.begun.wait()
    first.cancel()

    assert await second == b"part" * 8


async def test_other_things_happen_while_a_long_page_is_made() -> None:
    happened = 0

    async def other() -> None:
        nonlocal happened
        while True:
            await asyncio.sleep(0)
            happened += 1

    page = SharedPage("/x", Long(parts=8).parts, load_max=ALWAYS)
    task = asyncio.create_task(other())
    made = await page.get()
    task.cancel()

    assert made == b"part" * 8
    assert happened >= 8


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


async def test_a_page_that_is_being_made_can_be_given_up() -> None:
    long = Long(parts=100_000)
    page = SharedPage("/x", long.parts, load_max=ALWAYS)
    waiting = asyncio.create_task(page.get())
    await long.begun.wait()
    await page.close()

    with pytest.raises(asyncio.CancelledError):
        await waiting


# The time that several take together.


async def test_pages_of_one_budget_take_their_part_of_the_time_however_many_there_are() -> None:
    load = 0.25
    budget, loop = Budget(load), asyncio.get_running_loop()
    longs = [Long(parts=4) for _ in range(8)]
    pages = [SharedPage(f"/{i}", each.parts, load_max=ALWAYS, budget=budget)
             for i, each in enumerate(longs)]  # fmt: skip
    spent = process_time()
    began = loop.time()
    await asyncio.gather(*(page.get() for page in pages))

    # The last one is followed by no pause. What this test does besides takes a processor, too.
    assert (process_time() - spent) / (loop.time() - began) < 2 * load
    least = 4 * 2 * STEP_SECONDS_MAX
    assert loop.time() - began >= 7 * least / load


async def test_a_page_that_nobody_waits_for_any_more_is_not_begun() -> None:
    budget = Budget(ALWAYS)
    long, numbered = Long(parts=50), Numbered()
    first = SharedPage("/first", long.parts, load_max=ALWAYS, budget=budget)
    second = SharedPage("/second", numbered.parts, load_max=ALWAYS, budget=budget)
    making = asyncio.create_task(first.get())
    await long.begun.wait()
    clients = [asyncio.create_task(second.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)

    await making
    assert numbered.made == 0
    assert await second.get() == b"page 1", "and the next client gets it"


async def test_a_page_that_one_client_still_waits_for_is_made() -> None:
    budget = Budget(ALWAYS)
    long, numbered = Long(parts=50), Numbered()
    first = SharedPage("/first", long.parts, load_max=ALWAYS, budget=budget)
    second = SharedPage("/second", numbered.parts, load_max=ALWAYS, budget=budget)
    making = asyncio.create_task(first.get())
    await long.begun.wait()
    goes, stays = (asyncio.create_task(second.get()) for _ in range(2))
    await asyncio.sleep(0)
    goes.cancel()

    assert await stays == b"page 1"
    await making


async def test_a_page_that_fails_takes_no_turn_from_the_others() -> None:
    budget = Budget(ALWAYS)

    def fail() -> Iterator[bytes]:
        yield b"half a page"
        raise LookupError("nobody has thought of this")

    with pytest.raises(PageFailedError):
        await SharedPage("/x", fail, load_max=ALWAYS, budget=budget).get()

    page = SharedPage("/y", Numbered().parts, load_max=ALWAYS, budget=budget)
    assert await page.get() == b"page 1"


def test_metrics_in_parts_are_those_in_one_piece() -> None:
    registry = ServerMetrics().registry

    def lines(text: bytes) -> list[bytes]:
        # What the process itself uses changes from one look to the next.
        return [
            line for line in text.splitlines() if not line.startswith((b"process_", b"python_"))
        ]

    assert lines(b"".join(metrics_parts(registry))) == lines(generate_latest(registry))


async def test_a_flood_of_scrapes_makes_the_metrics_once() -> None:
    metrics, asked = ServerMetrics(), Asked()
    metrics.registry.register(asked)

    async def scrape(side: HttpSide) -> int:
        return status_of(await ask(side, request("/metrics")))

    limits = HttpLimits(load_max=HARDLY_EVER, connections_per_second_max=1e6)
    async with serving(metrics=metrics, limits=limits) as side:
        for _ in range(10):
            statuses = await asyncio.gather(*(scrape(side) for _ in range(30)))
            assert set(statuses) == {200}

    assert asked.times == 1
