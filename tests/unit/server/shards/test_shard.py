"""A shard between workers, who talk to it over UDP, and process 0, which says what to do."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gradwire_protocol import (
    ConnectionConfig,
    Disconnected,
    MessageReceived,
    Priority,
    ShapedMessage,
)
from gradwire_protocol.limits import charge_of
from gradwire_server.shards import shard as shard_module
from gradwire_server.shards.arena import Arena
from gradwire_server.shards.channel import Channel
from gradwire_server.shards.figures import parse_figures
from gradwire_server.shards.parcels import Outbox, Parcel
from gradwire_server.shards.records import Command, Record, Report
from gradwire_server.shards.shard import ForwardingHandler, ShardApplication
from gradwire_server.shards.startup import Setup
from gradwire_udp import open_socket
from support.driven_side import CODE, LOOPS, Side, on_loops, run_on
from support.waiting import until

LONG = Random(3).randbytes(100_000)
SHORT = b"short"


class Parent:
    """Process 0's end of a shard's channel, its arenas, and what the shard has reported."""

    def __init__(self, application: ShardApplication, sock: socket.socket, setup: Setup) -> None:
        self.application = application
        self.reports: list[Record] = []
        self.ended = False
        self.arena = Arena(setup.arena_of_parent)
        self.arena_of_shard = Arena(setup.arena)
        self.outbox = Outbox()
        self.channel = Channel(sock, asyncio.get_running_loop(), self.reports.extend, self.on_end)

    def on_end(self) -> None:
        self.ended = True

    def say(self, *record: object) -> None:
        self.channel.post(*record)
        self.channel.flush()

    def place(self, content: bytes | ShapedMessage) -> Any:
        return self.outbox.add_parcel(Parcel(self.arena, content))

    def of(self, kind: Report) -> list[Record]:
        return [record[1:] for record in self.reports if record[0] == kind]

    async def hears(self, kind: Report, count: int = 1) -> Record:
        await until(lambda: len(self.of(kind)) >= count, f"{count} x {kind.name}")
        return self.of(kind)[count - 1]


@asynccontextmanager
async def parent_and_shard(**changes: Any) -> AsyncIterator[tuple[Parent, Any]]:
    """Run a shard on this loop; give its parent and where its socket is."""
    ours, theirs = socket.socketpair()
    sock = open_socket(("127.0.0.1", 0))
    address_of_shard = sock.getsockname()
    files = [Arena.new_file("shard"), Arena.new_file("parent")]
    options: dict[str, Any] = {
        "index": 3, "count": 4, "parent": os.getpid(), "loop": "asyncio", "log_level": 20,
        "datagrams": sock.detach(), "channel": theirs.detach(), "arena": files[0],
        "arena_of_parent": files[1], "connection": ConnectionConfig(), "connections_max": 3,
        "link_rate": None, "silent_ticks_max": 3, "keyring": None, "instance": "",
    }  # fmt: skip
    setup = Setup(**options | changes)
    application = ShardApplication(setup, asyncio.get_running_loop())
    parent = Parent(application, ours, setup)
    try:
        yield parent, address_of_shard
    finally:
        application.close()
        parent.channel.close()
        for descriptor in files:
            os.close(descriptor)


async def worker_of(parent: Parent, address: Any) -> tuple[Side, int]:
    """Connect a worker; return it and what the shard calls its connection."""
    worker = Side()
    count = len(parent.of(Report.CONNECTED))
    worker.dial(address)
    number, whence, identity = await parent.hears(Report.CONNECTED, count + 1)
    assert (whence, identity) == (worker.driver.address, None)
    return worker, number


@on_loops
async def test_it_is_ready_when_it_runs_and_its_session_ids_are_its_own() -> None:
    async with parent_and_shard() as (parent, address):
        await parent.hears(Report.READY)
        _, number = await worker_of(parent, address)

        assert number == 0
        [connection] = parent.application.endpoint.connections()
        assert connection.session_id & 0xFF == 3


@on_loops
async def test_messages_of_workers_are_reported_and_their_credit_is_process_0s_to_give() -> None:
    async with parent_and_shard() as (parent, address):
        worker, number = await worker_of(parent, address)

        worker.send([(1, 0, SHORT), (1, 1, LONG)])
        first = await parent.hears(Report.RECEIVED, 1)
        second = await parent.hears(Report.RECEIVED, 2)

        assert first[:5] == (number, SHORT, 1, 0, 1)
        place = second[1]
        assert second[0] == number
        assert parent.arena_of_shard.at(*place) == LONG
        [connection] = parent.application.endpoint.connections()
        assert connection.bytes_held == first[6] + second[6]
        parent.say(Command.TAKEN, 1)
        parent.say(Command.RELEASE, [(number, first[6] + second[6]), (99, 5)])
        await until(lambda: not connection.bytes_held, "the credit")
        await until(lambda: len(worker.delivered) == 2, "the deliveries")

        worker.send([(1, number, LONG) for number in (2, 3)])
        third, fourth = (
            await parent.hears(Report.RECEIVED, 3),
            await parent.hears(Report.RECEIVED, 4),
        )
        assert third[1] == place, "what was taken makes room"
        assert fourth[1] != place, "and what was not taken makes none"


@on_loops
async def test_what_process_0_sends_and_relays_reaches_workers_once_each() -> None:
    async with parent_and_shard() as (parent, address):
        one, first = await worker_of(parent, address)
        other, second = await worker_of(parent, address)
        update = ShapedMessage.of(5, 2, 6, LONG, 1_356)

        for payload, number in ((SHORT, 0), (LONG, 1)):
            parent.say(Command.SEND, first, parent.place(payload), 5, number, 6, 0)
        parent.say(
            Command.RELAY, [first, second, 99], parent.place(update), 5, 2, 6,
            int(Priority.UPDATE), 1_356,
        )  # fmt: skip

        await until(lambda: len(one.received) == 3 and other.received, "the messages")
        assert sorted(one.received) == [(5, 0, SHORT), (5, 1, LONG), (5, 2, LONG)]
        assert other.received == [(5, 2, LONG)]
        await parent.hears(Report.DELIVERED, 4)
        assert sorted(parent.of(Report.DELIVERED)) == [
            (first, 5, 0), (first, 5, 1), (first, 5, 2), (second, 5, 2)
        ]  # fmt: skip
        await until(lambda: sum(n for (n,) in parent.of(Report.TAKEN)) == 2, "the places")


@on_loops
async def test_a_worker_that_leaves_is_reported_and_commands_for_it_go_nowhere() -> None:
    async with parent_and_shard() as (parent, address):
        worker, number = await worker_of(parent, address)

        worker.hang_up("done")
        gone = await parent.hears(Report.DISCONNECTED)
        parent.say(Command.SEND, number, parent.place(LONG), 5, 0, 6, 0)
        parent.say(Command.CLOSE, number, CODE, "too late")
        parent.say(Command.RELEASE, [(number, 1)])
        parent.say(Command.ASK)

        await parent.hears(Report.FIGURES)
        assert gone == (number, CODE, "done", True)
        assert parent.of(Report.GONE) == []
        assert parent.of(Report.TAKEN) == [(1,)]


@on_loops
async def test_a_worker_that_is_closed_hears_why_and_process_0_that_it_is_gone() -> None:
    async with parent_and_shard() as (parent, address):
        worker, number = await worker_of(parent, address)
        [connection] = parent.application.endpoint.connections()

        parent.say(Command.CLOSE, number, CODE, "enough")
        gone = await parent.hears(Report.GONE)
        late = MessageReceived(ShapedMessage.of(1, 0, 1, SHORT, 1_356), 517)
        parent.application.handle_event(connection, late, 0.0)
        await until(lambda: worker.ended, "the end")
        parent.say(Command.ASK)
        await parent.hears(Report.FIGURES)

        assert gone == (number,)
        assert worker.ended == Disconnected(CODE, "enough", by_peer=True)
        assert parent.of(Report.RECEIVED) == parent.of(Report.DISCONNECTED) == []


@on_loops
async def test_there_is_room_for_as_many_as_the_others_leave() -> None:
    async with parent_and_shard(connections_max=3) as (parent, address):
        parent.say(Command.LIMITS, 2, 5_000.0)
        parent.say(Command.ASK)
        await parent.hears(Report.FIGURES)
        await worker_of(parent, address)
        late = Side(config=ConnectionConfig(connect_timeout_seconds=0.5))
        late.dial(address)
        await until(lambda: late.ended, "the end of who is too many")

        assert len(parent.of(Report.CONNECTED)) == 1
        assert parent.application.endpoint.link.rate == 5_000.0


@on_loops
async def test_it_tells_what_it_has_counted() -> None:
    async with parent_and_shard() as (parent, address):
        worker, number = await worker_of(parent, address)
        worker.send([(1, n, SHORT) for n in range(5)])
        await parent.hears(Report.RECEIVED, 5)

        parent.say(Command.ASK)
        figures, connections = parse_figures((await parent.hears(Report.FIGURES))[0])

        assert figures.counters.connections_opened == 1
        assert figures.sockets.datagrams_received >= 3
        assert connections[number].bytes_held == 5 * charge_of(len(SHORT))
        assert connections.keys() == {number}


@on_loops
async def test_it_stops_when_all_have_heard_goodbye_and_takes_nobody_in_meanwhile() -> None:
    async with parent_and_shard() as (parent, address):
        worker, number = await worker_of(parent, address)
        parent.say(Command.STOP)
        late = Side(config=ConnectionConfig(connect_timeout_seconds=0.3))
        late.dial(address)
        await until(lambda: late.ended, "the end of who came too late")

        quiet_before = parent.of(Report.QUIET)
        parent.say(Command.CLOSE, number, CODE, "stopped")

        await parent.hears(Report.QUIET)
        assert quiet_before == []
        assert worker.ended == Disconnected(CODE, "stopped", by_peer=True)


@on_loops
async def test_it_ends_with_the_channel() -> None:
    async with parent_and_shard() as (parent, _):
        parent.channel.close()

        await asyncio.wait_for(parent.application.ended, 10)


@LOOPS
def test_it_ends_when_process_0_says_nothing_for_too_long(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_module, "TICK_SECONDS", 0.01)

    async def test() -> None:
        async with parent_and_shard() as (parent, _):
            for answers in range(1, 11):
                parent.say(Command.ASK)
                await parent.hears(Report.FIGURES, answers)
            assert not parent.application.ended.done()

            with pytest.raises(TimeoutError, match="nothing heard from process"):
                await asyncio.wait_for(asyncio.shield(parent.application.ended), 10)

    run_on(kind, test)


@on_loops
async def test_what_it_logs_goes_to_process_0_with_what_has_happened() -> None:
    async with parent_and_shard() as (parent, _):
        logger = logging.Logger("gradwire.somewhere")
        logger.addHandler(ForwardingHandler(parent.application))
        try:
            dict[str, int]()["nobody has thought of this"]
        except LookupError:
            logger.exception("%d things", 2)

        level, name, line = await parent.hears(Report.LOG)
        assert (level, name) == (logging.ERROR, "gradwire.somewhere")
        assert line.startswith("2 things\nTraceback")
        assert line.endswith("KeyError: 'nobody has thought of this'")


def test_a_setup_fits_a_command_line() -> None:
    setup = Setup(
        index=1, count=2, parent=3, loop="uvloop", log_level=10, datagrams=4, channel=5, arena=6,
        arena_of_parent=7, connection=ConnectionConfig(window_bytes=5_000_000, congestion="cubic"),
        connections_max=8, link_rate=1.5, silent_ticks_max=9, keyring=None, instance="gpu7 :1",
    )  # fmt: skip
    with_keys = replace(setup, keyring=10)

    assert Setup.parse(setup.pack()) == setup
    assert setup.descriptors == (4, 5, 6, 7)
    assert Setup.parse(with_keys.pack()) == with_keys
    assert with_keys.descriptors == (4, 5, 6, 7, 10)
