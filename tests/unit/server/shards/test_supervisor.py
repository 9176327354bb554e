"""Shards as processes: started, shared out, watched, lost, started again, and ended."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import pytest

from gradwire_protocol import CloseCode, Disconnected, GradwireError, MessageReceived, Priority
from gradwire_server.shards import spawning, supervisor
from gradwire_server.shards.records import Command, Report
from gradwire_server.shards.remote import RemoteShard
from support.driven_side import CODE, on_a_loop, on_loops, run_on
from support.processes import has_ended
from support.shard_rig import shards
from support.waiting import until
from support.wording import naming


@on_loops
async def test_connections_of_all_shards_are_one_applications() -> None:
    async with shards() as rig:
        (one, first), (other, second) = [await rig.worker_at(index) for index in (1, 2)]

        one.send([(0, 0, b"1" * 50_000)])
        other.send([(1, 0, b"2" * 50_000)])
        await until(lambda: len(rig.heard.of(MessageReceived)) == 2, "what they sent")
        for event in rig.heard.of(MessageReceived):
            for connection in (first, second):
                connection.relay(event.message, Priority.UPDATE)
        first.send(9, 9, 9, b"only for one", Priority.CONTROL)
        rig.supervisor.turn()
        await until(lambda: len(one.received) + len(other.received) == 5, "everything")

        payloads = {b"1" * 50_000, b"2" * 50_000}
        assert {payload for _, _, payload in one.received} == {*payloads, b"only for one"}
        assert {payload for _, _, payload in other.received} == payloads
        await until(lambda: not first.bytes_queued + second.bytes_queued, "the deliveries")
        assert list(rig.supervisor.connections_by_process.values()) == [1, 1]
        assert len(rig.supervisor) == 2


@on_loops
async def test_what_is_counted_is_the_sum_of_all_processes() -> None:
    async with shards() as rig:
        rig.local.counters.connections_opened = 10
        for index in (1, 2, 2):
            await rig.worker_at(index)

        await rig.supervisor.refresh()

        assert rig.total.counters.connections_opened == 13
        assert rig.total.sockets.datagrams_received > 0
        connection = rig.heard.last_connection()
        assert connection.rtt is None or connection.rtt < 10


@on_loops
async def test_a_shard_that_is_killed_takes_its_connections_with_it_and_nobody_elses() -> None:
    async with shards() as rig:
        _, lost = await rig.worker_at(1)
        other, kept = await rig.worker_at(2)
        before = rig.pids
        await rig.supervisor.refresh()

        os.kill(before[0], signal.SIGKILL)
        await until(lambda: rig.heard.of(Disconnected), "the end of its connection")

        reason = "the process of the master that it was connected to has ended"
        assert rig.heard.events[-1] == (lost, Disconnected(CloseCode.LOST, reason, False))
        assert rig.lost == 1
        kept.send(1, 1, 1, b"still here", Priority.UPDATE)
        rig.supervisor.turn()
        await until(lambda: other.received, "the message to the one who is left")

        await until(lambda: len(rig.pids) == 2, "its successor")
        assert rig.pids[0] != before[0]
        assert rig.pids[1] == before[1]
        await rig.worker_at(1)
        await rig.supervisor.refresh()
        assert rig.total.counters.connections_opened == 3


@on_a_loop
async def test_a_shard_that_hangs_is_ended_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shards(processes=2, idle_timeout_seconds=0.2) as rig:
        [pid] = rig.pids

        monkeypatch.setattr(supervisor, "TICK_SECONDS", 0.05)
        monkeypatch.setattr(supervisor, "SILENT_SECONDS_MAX", 0.2)
        os.kill(pid, signal.SIGSTOP)

        await until(lambda: rig.pids not in ([pid], []), "its successor", seconds=30)
        assert rig.lost == 1
        assert has_ended(pid)


def test_a_shard_that_cannot_begin_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spawning, "PROGRAM", "gradwire_server.shards.nothing")

    async def test() -> None:
        with pytest.raises(GradwireError) as failed:
            async with shards(processes=2):
                pass
        assert str(failed.value) == naming("process 1", "status 1")

    run_on("asyncio", test)
    assert "No module named" in capfd.readouterr().err


def test_shards_that_take_too_long_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START_SECONDS_MAX", 0.001)

    async def test() -> None:
        with pytest.raises(GradwireError, match=naming("processes", 2, "ready")):
            async with shards(processes=2):
                pass

    run_on("asyncio", test)


@on_loops
async def test_in_the_end_everyone_hears_goodbye_and_no_process_is_left() -> None:
    async with shards() as rig:
        workers = [await rig.worker_at(index) for index in (1, 2)]
        pids = rig.pids

        rig.supervisor.stop()
        for _, connection in workers:
            connection.close(CODE, "stopped", 0.0)
        rig.supervisor.turn()
        await rig.supervisor.wait_quiet(10)
        late = rig.dial(1)
        rig.supervisor.close()

        for worker, _ in workers:
            assert worker.ended == Disconnected(CODE, "stopped", by_peer=True)
        assert late.connection is None
        assert all(map(has_ended, pids))
        assert rig.lost == 0


@on_a_loop
async def test_who_does_not_go_in_time_is_not_waited_for() -> None:
    async with shards(processes=2) as rig:
        await rig.worker_at(1)

        await rig.supervisor.wait_quiet(0.05)

        assert len(rig.supervisor) == 1


@on_a_loop
async def test_a_link_is_shared_by_where_the_connections_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shards(link_rate=8.0) as rig:  # Mbit/s, a million bytes
        await rig.worker_at(1)
        told: list[tuple[object, ...]] = []
        monkeypatch.setattr(RemoteShard, "post", lambda _, *record: told.append(record))
        rig.local_connections = 2
        rig.supervisor.turn()

        assert told == [
            (Command.LIMITS, 2, pytest.approx(1e6 * 2 / 6)),
            (Command.LIMITS, 3, pytest.approx(1e6 * 1 / 6)),
        ]
        assert rig.link.rate == pytest.approx(1e6 * 3 / 6)


def all_but(*withheld: Command) -> Callable[..., None]:
    """Return what posts to a shard, but for some commands."""
    post = RemoteShard.post

    def post_others(shard: RemoteShard, command: Command, *values: object) -> None:
        if command not in withheld:
            post(shard, command, *values)

    return post_others


@on_a_loop
@pytest.mark.parametrize(
    ("stopping", "named"),
    [(False, ("room", 64)), (True, ("stopping",))],
)
async def test_who_came_while_there_was_no_room_elsewhere_is_told_so(
    stopping: bool, named: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shards(processes=2) as rig:
        # The shard has not heard yet of what has happened here in the same instant.
        monkeypatch.setattr(RemoteShard, "post", all_but(Command.LIMITS, Command.STOP))
        rig.local_connections = 64
        if stopping:
            rig.supervisor.stop()
        worker = rig.dial(1)

        await until(lambda: worker.ended, "the answer")

        assert worker.ended == Disconnected(CloseCode.FULL, naming(*named), by_peer=True)
        assert rig.heard.events == []


def test_what_a_shard_logs_is_logged_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with shards(processes=2) as rig:
            rig.supervisor._on_records(
                1, [(Report.LOG, logging.WARNING, "gradwire.udp", "too slow")]
            )

    run_on("asyncio", test)
    record = caplog.records[-1]
    assert (record.name, record.levelname) == ("gradwire.udp", "WARNING")
    assert record.getMessage() == naming("process 1", "too slow")


@on_a_loop
async def test_one_that_was_told_to_stop_is_not_started_again() -> None:
    async with shards(processes=2) as rig:
        [pid] = rig.pids
        rig.supervisor.stop()

        os.kill(pid, signal.SIGKILL)
        await rig.supervisor.wait_quiet(10)
        await until(lambda: not rig.pids, "its end to be noted")
        myself = asyncio.current_task()
        await until(lambda: asyncio.all_tasks() == {myself}, "all to be done about it")

        assert rig.pids == []
