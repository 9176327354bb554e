"""Live pages: what viewers are sent, and what those cost that do not read, or are very many."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gradwire_server.http.access import Access, Token
from gradwire_server.http.api import stream as module
from gradwire_server.http.api.stream import BUFFER_BYTES_MAX, Streams
from gradwire_server.http.limits import HttpLimits
from gradwire_server.metrics import HttpRefusal
from gradwire_server.runs.figures import resident_bytes
from gradwire_udp.process import allow_descriptors
from support.api_side import Viewer, Watched, fetch, watching
from support.http_side import HttpSide, ask, on_loops, request, status_of
from support.members import member
from support.peer import LAYOUT
from support.simulated_daemon import an_update
from support.tiers import count
from support.waiting import until

SOON = 0.02
"""Seconds between two frames, where a test is not about that."""

Test = Callable[..., Awaitable[None]]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let frames follow each other quickly."""
    monkeypatch.setattr(module, "EVERY_SECONDS", SOON)
    monkeypatch.setattr(module, "BYTES_PER_SECOND_MAX", 1e12)


def run_of_one() -> Watched:
    watched = Watched()
    watched.daemon.enter("a", "bert")
    return watched


def dropped(side: HttpSide) -> float:
    return side.metrics.registry.get_sample_value("gradwire_http_frames_dropped_total") or 0.0


def viewers_of(side: HttpSide) -> float:
    found = side.metrics.registry.get_sample_value("gradwire_http_viewers")
    assert found is not None
    return found


def tasks() -> set[str]:
    """Return what else goes on in this loop."""
    return {repr(task.get_coro()) for task in asyncio.all_tasks() - {asyncio.current_task()}}


# What viewers are sent.


@on_loops
async def test_the_first_frame_comes_at_once_also_for_the_second_viewer() -> None:
    """A second passes between two frames; no test waits for that."""
    watched = run_of_one()
    async with watching(watched) as side:
        first = await Viewer.come(side, "?run=bert")
        overview, run = await first.wait_for("overview"), await first.wait_for("run")
        second = await Viewer.come(side, "?run=bert")
        same = await second.wait_for("overview"), await second.wait_for("run")
        for viewer in (first, second):
            await viewer.go()

    assert same == (overview, run)
    assert [line["name"] for line in overview["runs"]] == ["bert"]
    assert run["name"] == "bert"
    assert [sent.event for sent in first.events][:2] == ["overview", "run"]


@on_loops
@pytest.mark.usefixtures("hurry")
async def test_all_viewers_of_a_run_get_the_same_bytes() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewers = [await Viewer.come(side, "?run=bert") for _ in range(5)]
        for viewer in viewers:
            await viewer.wait_for("run")
        for name in "bcd":
            watched.daemon.enter(name, "bert")
            seen = len(viewers[-1].all("events"))
            for viewer in viewers:
                await viewer.wait_for("events", seen + 1)
        for viewer in viewers:
            await viewer.go()

    blocks = [viewer.body.split(b"\n\n")[:-1] for viewer in viewers]
    shortest = min(len(each) for each in blocks)
    last = blocks[-1]
    assert shortest > 6
    for each in blocks:
        begin = each.index(last[0])  # the last viewer began with a frame that others had
        both = min(len(each) - begin, len(last))
        assert each[begin : begin + both] == last[:both]


@pytest.mark.usefixtures("hurry")
async def test_frames_are_of_the_moment_and_events_come_once() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewer = await Viewer.come(side, "?run=bert")
        first = await viewer.wait_for("run")
        watched.daemon.enter("b", "bert")
        watched.daemon.enter("c", "bert")
        frames = len(viewer.all("run"))
        later = await viewer.wait_for("run", frames + 5)
        await viewer.go()

    assert (len(first["workers"]), len(later["workers"])) == (1, 3)
    told = [event for said in viewer.all("events") for event in said["events"]]
    assert [(event["kind"], event["rank"]) for event in told] == [("joined", 1), ("joined", 2)]
    assert viewer.all("events")[-1]["last"] == later["events"]


async def test_who_names_no_run_is_sent_the_overview_alone() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewer = await Viewer.come(side)
        await viewer.wait_for("overview")
        await viewer.go()

    assert {sent.event for sent in viewer.events} == {"overview"}


@on_loops
@pytest.mark.usefixtures("hurry")
async def test_when_a_run_is_over_its_viewers_are_told_and_see_the_next_one_of_its_name() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewer = await Viewer.come(side, "?run=bert")
        await viewer.wait_for("run")
        watched.daemon.order("end-run")
        assert await viewer.wait_for("over") is None
        frames = len(viewer.all("run"))
        watched.daemon.enter("b", "bert")
        await viewer.wait_for("run", frames + 1)
        events = await viewer.wait_for("events")
        await viewer.go()

    assert [event["kind"] for event in events["events"]][-2:] == ["joined", "began"]


@pytest.mark.usefixtures("hurry")
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
        assert [run for run, _ in watched.daemon.failed] == ["bert"]
        watched.daemon.enter("b", "bert")
        events = await viewer.wait_for("events")
        await viewer.go()

    assert [(event["number"], event["kind"]) for event in events["events"]] == [
        (1, "joined"), (2, "began")
    ]  # fmt: skip


async def test_head_tells_what_a_stream_is_and_begins_none() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        answer = await fetch(side, "stream?run=bert", method="HEAD")
        assert viewers_of(side) == 0

    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"


async def test_without_the_token_there_is_no_stream() -> None:
    secret = "correct-horse-battery"
    access = Access(token=Token(secret.encode()))
    async with watching(run_of_one(), access=access) as side:
        without = await fetch(side, "stream")
        viewer = await Viewer.come(side, "?run=bert", f"Authorization: Bearer {secret}")
        await viewer.wait_for("run")
        await viewer.go()

    assert without.status == 401


@pytest.mark.usefixtures("hurry")
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
            patch.setattr(watched.documents, "overview", fail)
            await until(lambda: "a frame for viewers" in caplog.text, "the log")
        frames = len(viewer.all("run"))
        await viewer.wait_for("run", frames + 2)
        await viewer.go()

    assert all(r.name == "gradwire.http" for r in caplog.records if r.levelno >= logging.ERROR)


# Those who go, and the end.


@on_loops
async def test_who_goes_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        before = tasks()
        viewers = [await Viewer.come(side, q) for q in ("?run=bert", "?run=bert", "")]
        for viewer in viewers:
            await viewer.wait_for("overview")
        assert viewers_of(side) == 3
        for viewer in viewers:
            await viewer.go()
        await until(lambda: viewers_of(side) == 0, "them to be gone")
        await until(lambda: tasks() <= before, f"no task to be left: {tasks() - before}")
        await until(lambda: side.server.connections == 0, "the connections to be closed")
        assert watched.streams._channels == {}

    assert side.refusals == {}
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


@on_loops
async def test_who_asks_and_goes_at_once_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        for _ in range(20):
            viewer = await Viewer.come(side, "?run=bert", reads=False)
            await viewer.go()
        await until(lambda: viewers_of(side) == 0, "them to be gone")
        await until(lambda: side.server.connections == 0, "the connections to be closed")
        again = await Viewer.come(side, "?run=bert")
        await again.wait_for("run")
        await again.go()

    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


@on_loops
async def test_one_that_comes_while_the_last_one_goes_gets_frames() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        before = await Viewer.come(side, "?run=bert")
        await before.wait_for("run")
        for _ in range(10):
            coming, _ = await asyncio.gather(Viewer.come(side, "?run=bert"), before.go())
            await coming.wait_for("run")
            before = coming
        await before.go()


@on_loops
async def test_the_end_of_the_master_ends_all_streams_and_waits_for_none() -> None:
    watched = run_of_one()
    loop = asyncio.get_running_loop()
    async with watching(watched) as side:
        viewers = [await Viewer.come(side, "?run=bert") for _ in range(10)]
        for viewer in viewers:
            await viewer.wait_for("run")
        unread = [await Viewer.come(side, "?run=bert", reads=False) for _ in range(3)]
        await until(lambda: viewers_of(side) == 13, "all to be there")
        began = loop.time()
    took = loop.time() - began

    for viewer in viewers:
        await viewer.wait_for_end()
        assert viewer.heard.endswith(b"\r\n0\r\n\r\n"), "the end is said, and not only done"
        await viewer.go()
    for viewer in unread:
        await viewer.go()
    assert took < 5.0
    assert side.server.connections == 0


# Those who do not read.


@asynccontextmanager
async def much(monkeypatch: pytest.MonkeyPatch, size: int) -> Any:
    """Serve frames that are larger than the buffers of sockets."""
    watched = run_of_one()

    def run_parts(name: str) -> Iterator[bytes]:
        for _ in range(size // 2**16):
            yield json.dumps("x" * (2**16 - 2)).encode()

    monkeypatch.setattr(watched.documents, "run_parts", run_parts)
    async with watching(watched) as side:
        yield side


@on_loops
@pytest.mark.usefixtures("hurry")
async def test_who_never_reads_is_left_out_counted_and_after_a_while_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BACKLOG_SECONDS_MAX", 0.3)
    async with much(monkeypatch, 8 * 2**20) as side:
        unread = await Viewer.come(side, "?run=bert", reads=False)
        await until(lambda: dropped(side) > 0, "a frame to be left out")
        assert viewers_of(side) == 1
        await side.wait_for_refusals(HttpRefusal.TOO_SLOW)
        await until(lambda: viewers_of(side) == 0, "it to be gone")
        await until(lambda: side.server.connections == 0, "its connection to be closed")
        await unread.go()

    assert side.refusals == {HttpRefusal.TOO_SLOW: 1}


@on_loops
@pytest.mark.usefixtures("hurry")
async def test_large_frames_come_more_seldom_so_that_bytes_a_second_have_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BYTES_PER_SECOND_MAX", 4 * 2**20)
    async with much(monkeypatch, 2**20) as side:
        loop = asyncio.get_running_loop()
        before = loop.time()
        viewer = await Viewer.come(side, "?run=bert")
        await until(lambda: viewer.heard.count(b"event: run") >= 5, "five frames")
        assert loop.time() - before > 0.9 * 4 * 0.25, "of 1 MiB each, at 4 MiB a second"
        await viewer.go()


@on_loops
@pytest.mark.usefixtures("hurry")
async def test_who_reads_again_in_time_goes_on_with_whole_frames(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with much(monkeypatch, 8 * 2**20) as side:
        slow = await Viewer.come(side, "?run=bert", reads=False)
        await until(lambda: dropped(side) > 3, "frames to be left out")
        left_out = dropped(side)
        slow.read()
        await until(lambda: slow.heard.count(b"event: overview") >= 3, "frames again")
        await slow.go()

    assert side.refusals == {}
    assert left_out > 3
    body = slow.body
    starts = body.split(b"event: overview\ndata: ")[1:-1]
    assert starts
    assert all(each.endswith(b"\n\n") for each in starts), "no frame is cut"


@pytest.mark.usefixtures("hurry")
@on_loops
async def test_those_who_do_not_read_take_nothing_from_those_who_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with much(monkeypatch, 2**20) as side:
        unread = [await Viewer.come(side, "?run=bert", reads=False) for _ in range(20)]
        await until(lambda: dropped(side) >= 20, "frames to be left out")
        reader = await Viewer.come(side, "?run=bert")
        await until(lambda: reader.heard.count(b"event: overview") >= 10, "frames")
        for viewer in (reader, *unread):
            await viewer.go()


@pytest.mark.usefixtures("hurry")
@on_loops
async def test_those_who_never_read_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    size, viewers = 2**20, count(200, quick=40, of="viewers that never read")
    async with much(monkeypatch, size) as side:
        before = resident_bytes()
        unread = [await Viewer.come(side, "?run=bert", reads=False) for _ in range(viewers)]
        await until(lambda: dropped(side) >= 10 * viewers, "frames to be left out", seconds=30)
        used = resident_bytes() - before
        for viewer in unread:
            await viewer.go()

    # One frame each at most, beyond what the buffer may have when it is added. The client's side is
    # in this process, too, with what its streams read before they were told to pause.
    assert used < viewers * (size + BUFFER_BYTES_MAX + 2**18) + 2**25


@on_loops
@pytest.mark.usefixtures("hurry")
async def test_a_stream_lasts_longer_than_a_connection_with_a_request_may() -> None:
    short = HttpLimits(load_max=1.0, connections_per_second_max=1e6, connection_seconds_max=0.2)
    watched = run_of_one()
    async with watching(watched, limits=short) as side:
        viewer = await Viewer.come(side, "?run=bert")
        await viewer.wait_for("run")
        assert await ask(side, b"GET /hea") == b"", "another one, which came later, is ended"
        frames = len(viewer.all("run"))
        await viewer.wait_for("run", frames + 3)
        await viewer.go()

    assert side.refusals == {HttpRefusal.TOO_SLOW: 1}


# Very many.


@on_loops
async def test_three_hundred_viewers_are_served_at_once() -> None:
    watched = run_of_one()
    async with watching(watched) as side:
        viewers = await asyncio.gather(*(Viewer.come(side, "?run=bert") for _ in range(300)))
        await asyncio.gather(*(viewer.wait_for("run") for viewer in viewers))
        assert viewers_of(side) == 300
        answer = await fetch(side, "/healthz")
        for viewer in viewers:
            await viewer.go()
        await until(lambda: viewers_of(side) == 0, "them to be gone")

    assert answer.status == 200
    assert side.refusals == {}


@on_loops
async def test_one_viewer_too_many_is_told_so_and_the_others_stay() -> None:
    few = HttpLimits(load_max=1.0, connections_per_second_max=1e6, streams_max=3)
    watched = run_of_one()
    async with watching(watched, limits=few) as side:
        viewers = [await Viewer.come(side, "?run=bert") for _ in range(3)]
        for viewer in viewers:
            await viewer.wait_for("run")
        refused = await fetch(side, "stream?run=bert")
        other = await fetch(side, "overview")
        await viewers[0].go()
        await until(lambda: viewers_of(side) == 2, "one to go")
        await until(lambda: side.server.connections == 2, "its connection to be closed")
        last = await Viewer.come(side, "?run=bert")
        await last.wait_for("run")
        for viewer in (*viewers[1:], last):
            assert not viewer.is_over
            await viewer.go()

    assert (refused.status, refused.headers["retry-after"]) == (503, "30")
    assert "viewers" in refused.text
    assert other.status == 200
    assert side.refusals == {HttpRefusal.CROWDED: 1}


@on_loops
async def test_a_crowd_of_short_requests_ends_no_stream() -> None:
    few = HttpLimits(load_max=1.0, connections_per_second_max=1e6, connections_max=4)
    watched = run_of_one()
    async with watching(watched, limits=few) as side:
        viewer = await Viewer.come(side, "?run=bert")
        await viewer.wait_for("run")
        answers = [b""]
        for _ in range(5):
            answers += await asyncio.gather(*(ask(side, request("/healthz")) for _ in range(40)))
        assert not viewer.is_over
        assert viewers_of(side) == 1
        await viewer.go()

    served = [answer for answer in answers if answer]
    assert {status_of(answer) for answer in served} == {200}


async def test_channels_share_the_time_there_is_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = run_of_one()
    watched.daemon.enter("b", "gpt")
    watched.streams = streams = Streams(
        watched.documents, watched.daemon.runs.metrics, load_max=0.5
    )
    monkeypatch.setattr(watched.api, "streams", streams)
    async with watching(watched) as side:
        assert streams._share() == 1.0
        viewers = [await Viewer.come(side, q) for q in ("?run=bert", "?run=gpt")]
        for viewer in viewers:
            await viewer.wait_for("run")
        assert streams._share() == 0.5
        for viewer in viewers:
            await viewer.go()


@pytest.mark.deep("a thousand sockets, of which some never read")
@on_loops
@pytest.mark.usefixtures("hurry")
async def test_a_thousand_viewers_of_200_workers_of_whom_some_never_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_descriptors()
    monkeypatch.setattr(module, "BACKLOG_SECONDS_MAX", 2.0)
    watched = run_of_one()
    roster = watched.daemon.runs.in_progress["bert"].roster
    for rank in range(1, 200):
        roster.add_member(member(rank))
    for rank in range(200):
        watched.log("bert", rank, 1, {f"s{i}": 1.0 for i in range(100)})
    async with watching(watched) as side:
        before = resident_bytes()
        reading = [await Viewer.come(side, "?run=bert") for _ in range(800)]
        unread = [await Viewer.come(side, "?run=bert", reads=False) for _ in range(200)]
        await until(lambda: viewers_of(side) >= 900, "them to come", seconds=30)
        for viewer in reading[::100]:
            await viewer.wait_for("run")
        answer = await fetch(side, "overview")
        used = resident_bytes() - before
        for viewer in (*reading, *unread):
            await viewer.go()
        await until(lambda: viewers_of(side) == 0, "them to be gone", seconds=30)

    assert answer.status == 200
    heard = sum(len(viewer.heard) for viewer in reading)
    assert used - heard < 300 * 2**20
    assert side.refusals.keys() <= {HttpRefusal.TOO_SLOW}
