"""Shards as processes: started, shared out, watched, lost, started again, and ended."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    ConnectionConfig,
    Disconnected,
    Event,
    GradwireError,
    MessageReceived,
    Priority,
)
from gradwire_protocol.turns import LinkPacer
from gradwire_server.config import MasterConfig
from gradwire_server.shards import spawning, supervisor
from gradwire_server.shards.figures import Figures
from gradwire_server.shards.records import Report
from gradwire_server.shards.steering import open_others
from gradwire_server.shards.supervisor import Supervisor
from gradwire_udp import open_socket
from support.driven_side import CODE, LOOPS, Side, run_on
from support.waiting import until

pytestmark = pytest.mark.timeout(60)

PROCESSES = 3


@dataclass
class Heard:
    """In place of a master: what it hears."""

    events: list[tuple[Connection, Event]] = field(default_factory=list)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        self.events.append((connection, event))

    def handle_timer(self, now: float) -> None: ...

    def next_timer(self) -> float | None:
        return None

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def last_connection(self) -> Connection:
        return [connection for connection, event in self.events if event == Connected()][-1]


class Rig:
    """A supervisor with its shards; shard 0 is only a socket that nobody reads."""

    def __init__(self, first: socket.socket, config: MasterConfig) -> None:
        self.address = first.getsockname()
        self.heard = Heard()
        self.local, self.total = Figures(), Figures()
        self.local_connections = 0
        self.lost = 0
        self.link = LinkPacer(config.link_bytes_per_second)
        self.supervisor = Supervisor(
            config, open_others(first, config.processes), self.heard, asyncio.get_running_loop(),
            local=self.local, total=self.total, link=self.link,
            local_connections=lambda: self.local_connections, on_lost=self.count_lost,
        )  # fmt: skip

    def count_lost(self) -> None:
        self.lost += 1

    @property
    def pids(self) -> list[int]:
        return list(self.supervisor.connections_by_process)

    def dial(self, index: int) -> Side:
        """Let a worker dial the shard with this number."""
        worker = Side(config=ConnectionConfig(connect_timeout_seconds=10, idle_timeout_seconds=60))
        # Its session id, which the kernel looks at, begins with the first byte it draws.
        worker.endpoint._random_bytes = lambda n: bytes([index]) + os.urandom(n - 1)
        worker.dial(self.address)
        return worker

    async def worker_at(self, index: int) -> tuple[Side, Connection]:
        count = len(self.heard.of(Connected))
        worker = self.dial(index)
        await until(lambda: len(self.heard.of(Connected)) > count, "the connection")
        await until(lambda: worker.connection, "the worker to know of it")
        return worker, self.heard.last_connection()


@asynccontextmanager
async def shards(**settings: Any) -> AsyncIterator[Rig]:
    """Start a master's shards, and end them."""
    first = open_socket(("127.0.0.1", 0))
    rig = Rig(first, MasterConfig(**{"processes": PROCESSES} | settings))
    try:
        await rig.supervisor.start()
        yield rig
    finally:
        rig.supervisor.close()
        first.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@LOOPS
def test_connections_of_all_shards_are_one_applications(kind: str) -> None:
    async def test() -> None:
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

    run_on(kind, test)


@LOOPS
def test_what_is_counted_is_the_sum_of_all_processes(kind: str) -> None:
    async def test() -> None:
        async with shards() as rig:
            rig.local.counters.connections_opened = 10
            for index in (1, 2, 2):
                await rig.worker_at(index)

            await rig.supervisor.refresh()

            assert rig.total.counters.connections_opened == 13
            assert rig.total.sockets.datagrams_received > 0
            connection = rig.heard.last_connection()
            assert connection.rtt is None or connection.rtt < 10

    run_on(kind, test)


@LOOPS
def test_a_shard_that_is_killed_takes_its_connections_with_it_and_nobody_elses(kind: str) -> None:
    async def test() -> None:
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

    run_on(kind, test)


def test_a_shard_that_hangs_is_ended_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with shards(processes=2, idle_timeout_seconds=0.2) as rig:
            [pid] = rig.pids

            monkeypatch.setattr(supervisor, "TICK_SECONDS", 0.05)
            monkeypatch.setattr(supervisor, "SILENT_SECONDS_MAX", 0.2)
            os.kill(pid, signal.SIGSTOP)

            await until(lambda: rig.pids not in ([pid], []), "its successor", seconds=30)
            assert rig.lost == 1
            assert not is_alive(pid)

    run_on("asyncio", test)


def test_a_shard_that_cannot_begin_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spawning, "PROGRAM", "gradwire_server.shards.nothing")

    async def test() -> None:
        with pytest.raises(GradwireError) as failed:
            async with shards(processes=2):
                pass
        assert (
            str(failed.value) == "process 1 of the master ended with status 1 before it was ready"
        )

    run_on("asyncio", test)
    assert "No module named" in capfd.readouterr().err


def test_shards_that_take_too_long_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "START_SECONDS_MAX", 0.001)

    async def test() -> None:
        with pytest.raises(GradwireError, match=r"processes=2: not all of them were ready in"):
            async with shards(processes=2):
                pass

    run_on("asyncio", test)


@LOOPS
def test_in_the_end_everyone_hears_goodbye_and_no_process_is_left(kind: str) -> None:
    async def test() -> None:
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
            assert not any(map(is_alive, pids))
            assert rig.lost == 0

    run_on(kind, test)


def test_who_does_not_go_in_time_is_not_waited_for() -> None:
    async def test() -> None:
        async with shards(processes=2) as rig:
            await rig.worker_at(1)

            await rig.supervisor.wait_quiet(0.05)

            assert len(rig.supervisor) == 1

    run_on("asyncio", test)


def test_a_link_is_shared_by_where_the_connections_are() -> None:
    async def test() -> None:
        async with shards(link_rate=8.0) as rig:  # Mbit/s, a million bytes
            await rig.worker_at(1)
            rig.local_connections = 2
            rig.supervisor.turn()

            limits: list[Any] = [process.limits for process in rig.supervisor._living()]
            assert limits == [(2, pytest.approx(1e6 * 2 / 6)), (3, pytest.approx(1e6 * 1 / 6))]
            assert rig.link.rate == pytest.approx(1e6 * 3 / 6)

    run_on("asyncio", test)


@pytest.mark.parametrize(
    ("stopping", "reason"),
    [(False, "no room: 64 connections are open"), (True, "the master is stopping")],
)
def test_who_came_while_there_was_no_room_elsewhere_is_told_so(
    stopping: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with shards(processes=2) as rig:
            # The shard has not heard yet of what has happened here in the same instant.
            monkeypatch.setattr(rig.supervisor, "_share", lambda: None)
            rig.local_connections = 64
            rig.supervisor._stopping = stopping
            worker = rig.dial(1)

            await until(lambda: worker.ended, "the answer")

            assert worker.ended == Disconnected(CloseCode.FULL, reason, by_peer=True)
            assert rig.heard.events == []

    run_on("asyncio", test)


def test_what_a_shard_logs_is_logged_with_its_number(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with shards(processes=2) as rig:
            rig.supervisor._heard(1, [(Report.LOG, logging.WARNING, "gradwire.udp", "too slow")])

    run_on("asyncio", test)
    record = caplog.records[-1]
    assert (record.name, record.levelname) == ("gradwire.udp", "WARNING")
    assert record.getMessage() == "process 1: too slow"


def test_one_that_was_told_to_stop_is_not_started_again() -> None:
    async def test() -> None:
        async with shards(processes=2) as rig:
            [pid] = rig.pids
            rig.supervisor.stop()

            os.kill(pid, signal.SIGKILL)
            await rig.supervisor.wait_quiet(10)
            await until(lambda: not rig.supervisor._burials, "its end to be noted")

            assert rig.pids == []

    run_on("asyncio", test)
