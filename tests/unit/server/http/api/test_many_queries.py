"""Many different queries: none of them stays in memory, and nobody waits for what no one wants."""

import asyncio
from collections.abc import Iterator

import pytest

from gradwire_server.http import server as module
from gradwire_server.http.limits import HttpLimits
from gradwire_server.http.server import PAGES_MAX
from gradwire_server.metrics import HttpRefusal
from support.api_side import HURRY, Watched, fetch, watching
from support.http_side import Visitor, on_loops, request
from support.waiting import until


def logging_run() -> Watched:
    watched = Watched()
    watched.daemon.enter("a", "bert")
    watched.log_much("bert", 0, 2, 50)
    return watched


def path(points: int) -> str:
    return f"/api/v1/runs/bert/series?name=s0&points={points}"


def waiting_tasks() -> int:
    return sum("_make" in repr(task.get_coro()) for task in asyncio.all_tasks())


@on_loops
async def test_documents_that_clients_no_longer_wait_for_are_not_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After the first one, the time for documents is used up for as long as this test takes."""
    limits = HttpLimits(load_max=1e-9, connections_per_second_max=1e6)
    watched = logging_run()
    async with watching(watched, limits=limits) as side:
        assert (await fetch(side, path(1))).status == 200
        visitors = []
        for points in range(2, 50):
            visitors.append(await Visitor.come(side))
            visitors[-1].send(request(path(points)))
        await until(lambda: waiting_tasks() == 48, "all of them to wait for their turn")
        for visitor in visitors:
            visitor.go()
        await until(lambda: waiting_tasks() == 0, "none to be made any more")
        assert (await fetch(side, path(1))).status == 200, "which is kept"

    assert caplog.messages == []


@on_loops
async def test_a_crowd_of_queries_leaves_few_documents_and_no_more_bytes_than_may_be() -> None:
    watched = logging_run()
    async with watching(watched) as side:
        for points in range(1, 2 * PAGES_MAX):
            assert (await fetch(side, path(points))).status == 200
        assert len(side.server._pages) == PAGES_MAX


async def test_documents_that_are_kept_have_a_limit_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = logging_run()
    async with watching(watched) as side:
        sizes = [len((await fetch(side, path(points))).body) for points in (50, 25, 12)]
        monkeypatch.setattr(module, "PAGES_BYTES_MAX", sizes[1] + sizes[2] + 10)
        await fetch(side, path(12))
        kept = [page.size for _, page in side.server._pages.values()]
        monkeypatch.setattr(module, "PAGES_BYTES_MAX", 10)
        alone = await fetch(side, path(50))
        left = len(side.server._pages)

    assert kept == [sizes[1], sizes[2]], "the one that was asked for least lately is forgotten"
    assert (alone.status, left) == (200, 0)


async def test_a_run_that_ends_while_its_document_waits_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = logging_run()

    def end(name: str) -> Iterator[bytes]:
        watched.daemon.order("end-run")
        return original(name)

    original = watched.documents.run_parts
    monkeypatch.setattr(watched.documents, "run_parts", end)
    async with watching(watched, limits=HURRY) as side:
        answer = await fetch(side, "runs/bert")

    assert (answer.status, answer.text) == (404, "the run is over\n")
    assert side.refusals == {HttpRefusal.NOT_FOUND: 1}
