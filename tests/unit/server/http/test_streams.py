"""Live pages: what viewers are sent, and what those cost that do not read, or are very many."""

import asyncio
import logging
from typing import Any

import pytest

from gradwire_server.http import streams as module
from gradwire_server.http.access import Access, Token
from gradwire_server.http.server import HttpLimits
from gradwire_server.metrics import HttpRefusal
from support.api_side import Viewer, Watched, fetch, watching
from support.http_side import on_loops
from support.peer import LAYOUT
from support.simulated_daemon import an_update
from support.tiers import count
from support.waiting import until

SOON = 0.02
"""Seconds between two frames, where a test is not about that."""

MANY = count(1_000, quick=100, of="viewers of a stream")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let frames follow each other quickly."""
    monkeypatch.setattr(module, "EVERY_SECONDS", SOON)
    monkeypatch.setattr(module, "LOAD_MAX", 1.0)


def run_of_one() -> Watched:
    watched = Watched()
    watched.daemon.enter("a", "bert")
    return watched


@on_loops
async def test_viewers_get_what_happens_each_event_once_and_the_last_frame_at_once() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        first = await Viewer.come(side, "?run=bert")
        before = await first.wait_for("run")
        for name in "bc":
            watched.daemon.enter(name, "bert")
        await first.wait_for("events")
        after = await first.wait_for("run", len(first.all("run")) + 2)
        second = await Viewer.come(side, "?run=bert")
        summary = await second.wait_for("summary")
        alone = await Viewer.come(side)
        await alone.wait_for("summary", 2)
        for viewer in (first, second, alone):
            await viewer.go()

    assert (len(before["workers"]), len(after["workers"])) == (1, 3)
    told = [event for said in first.all("events") for event in said["events"]]
    assert [(event["kind"], event["rank"]) for event in told] == [("joined", 1), ("joined", 2)]
    assert [line["workers"] for line in summary["runs"]] == [3]
    assert {kind for kind, _ in alone.events} == {"summary"}


@on_loops
async def test_when_a_run_is_over_its_viewers_are_told_and_see_the_next_one_of_its_name() -> None:
    watched = run_of_one()

    def shown(viewer: Viewer) -> list[tuple[str, bool]]:
        return [(run["workers"][0]["state"], run["finished"]) for run in viewer.all("run")]

    async with watching(watched) as side:
        viewer = await Viewer.come(side, "?run=bert")
        await viewer.wait_for("run")
        watched.daemon.order("end-run")
        assert await viewer.wait_for("over") is None
        late = await Viewer.come(side, "?run=bert~1")
        assert await late.wait_for("over") is None
        watched.daemon.enter("b", "bert")
        await until(lambda: shown(viewer)[-1][0] == "live", "the next run")
        for each in (viewer, late):
            await each.go()

    assert ("expelled", False) in shown(viewer), "as it was last"
    assert set(shown(late)) == {("expelled", False)}


async def test_events_of_a_run_whose_master_was_replaced_after_an_error_are_told() -> None:
    """The new master counts its events from one."""
    watched = Watched()
    first = watched.daemon.enter("a", "bert")
    async with watching(watched) as side:
        viewer = await Viewer.come(side, "?run=bert")
        await viewer.wait_for("run")
        watched.daemon.background.made[0].broken = True
        first.say_update(0, 1, an_update(LAYOUT.elements))
        first.wait_for_end()
        watched.daemon.enter("b", "bert")
        events = await viewer.wait_for("events")
        await viewer.go()

    assert [(event["number"], event["kind"]) for event in events["events"]] == [
        (1, "joined"), (2, "began")
    ]  # fmt: skip


async def test_without_the_token_there_is_no_stream() -> None:
    access = Access(token=Token(b"correct-horse-battery"))
    async with watching(run_of_one(), access=access) as side:
        assert (await fetch(side, "stream")).status == 401


async def test_a_frame_that_fails_is_logged_and_the_next_one_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewer = await Viewer.come(side, "?run=bert")
        await viewer.wait_for("run")

        def fail() -> dict[str, Any]:
            raise LookupError("nobody has thought of this")

        with monkeypatch.context() as patch:
            patch.setattr(watched.documents, "summary", fail)
            await until(lambda: "a frame for viewers" in caplog.text, "the log")
        frames = len(viewer.all("run"))
        await viewer.wait_for("run", frames + 2)
        await viewer.go()


@on_loops
async def test_who_goes_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        before = asyncio.all_tasks()
        for query in ("?run=bert", "", "?run=bert"):
            viewer = await Viewer.come(side, query)
            await viewer.wait_for("summary")
            await viewer.go()
        for _ in range(20):
            await (await Viewer.come(side, "?run=bert", reads=False)).go()
        await until(lambda: watched.streams.viewers == 0, "them to be gone")
        await until(lambda: asyncio.all_tasks() <= before, "no task to be left")

    assert side.refusals == {}
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


@on_loops
async def test_the_end_of_the_master_ends_all_streams_and_waits_for_none() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewers = [await Viewer.come(side, "?run=bert") for _ in range(10)]
        unread = [await Viewer.come(side, "?run=bert", reads=False) for _ in range(3)]
        for viewer in viewers:
            await viewer.wait_for("run")
        await until(lambda: watched.streams.viewers == 13, "all to be there")

    for viewer in viewers:
        await asyncio.gather(*viewer.reading)
        assert viewer.heard.endswith(b"\r\n0\r\n\r\n"), "the end is said, and not only done"
    for viewer in (*viewers, *unread):
        await viewer.go()


@on_loops
async def test_one_that_never_reads_is_disconnected_and_the_others_see_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "READ_SECONDS_MAX", 0.2)
    watched = run_of_one()
    watched.log("bert", 0, 1, {f"{'x' * 50}{i}": 1.0 for i in range(200)})
    async with watching(watched) as side:
        unread = await Viewer.come(side, "?run=bert", reads=False)
        reader = await Viewer.come(side, "?run=bert")
        await until(lambda: watched.streams.viewers == 2, "both")
        await until(lambda: watched.streams.viewers == 1, "it to be disconnected")
        await reader.wait_for("run", len(reader.all("run")) + 2)
        for viewer in (unread, reader):
            await viewer.go()


async def test_there_is_a_most_of_viewers() -> None:
    watched = run_of_one()
    async with watching(watched, limits=HttpLimits(streams_max=2)) as side:
        viewers = [await Viewer.come(side) for _ in range(2)]
        for viewer in viewers:
            await viewer.wait_for("summary")
        refused = await fetch(side, "stream")
        for viewer in viewers:
            await viewer.go()

    assert refused.status == 503
    assert side.refusals == {HttpRefusal.CROWDED: 1}


async def test_very_many_viewers_all_get_frames() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewers = [await Viewer.come(side, "?run=bert") for _ in range(MANY)]
        for viewer in viewers:
            await viewer.wait_for("run", 2)
        for viewer in viewers:
            await viewer.go()

    assert side.refusals == {}
