"""Records between processes: all of them, in order, however the bytes are cut on the way."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_server.shards.channel import Channel
from gradwire_server.shards.records import Record
from support.driven_side import LOOPS, on_loops, run_on
from support.waiting import until

RECORDS: list[Record] = [
    (1, ("127.0.0.1", 40123), None),
    (2, b"\x00" * 300, 2**40, -1, True),
    (3, [(1, 2), (3, 4)], 0.5, "text"),
]


@dataclass
class Heard:
    """What came out of a channel."""

    batches: list[Sequence[Record]] = field(default_factory=list)
    ends: int = 0

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch]

    def on_end(self) -> None:
        self.ends += 1


@asynccontextmanager
async def channel_and_socket() -> AsyncIterator[tuple[Channel, socket.socket, Heard]]:
    """Make a channel, the other end of its socket pair, and note what it hears."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    heard = Heard()
    channel = Channel(ours, asyncio.get_running_loop(), heard.batches.append, heard.on_end)
    try:
        yield channel, theirs, heard
    finally:
        channel.close()
        theirs.close()


def as_heard(record: Record) -> Record:
    """Return a record as it comes out: with tuples for lists."""
    heard: Record = msgpack.unpackb(msgpack.packb(record), use_list=False)
    return heard


@given(cuts=st.lists(st.integers(1, 400), max_size=20))
def test_records_come_out_whole_and_in_order_whatever_the_cuts(cuts: list[int]) -> None:
    stream = b"".join(msgpack.packb(record) for record in RECORDS)

    async def test() -> None:
        async with channel_and_socket() as (_, theirs, heard):
            at = 0
            for cut in [*cuts, len(stream)]:
                theirs.send(stream[at : at + cut])
                at += cut
                await asyncio.sleep(0)
            await until(lambda: len(heard.records) == len(RECORDS), "the records")
            assert heard.records == list(map(as_heard, RECORDS))

    asyncio.run(test())


@on_loops
async def test_what_is_posted_leaves_when_it_is_flushed_and_at_once() -> None:
    async with channel_and_socket() as (channel, theirs, _):
        for record in RECORDS:
            channel.post(*record)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)

        channel.flush()

        assert theirs.recv(10_000) == b"".join(map(msgpack.packb, RECORDS))
        channel.flush()
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


@LOOPS
def test_what_the_other_end_does_not_take_at_once_is_kept_in_order(kind: str) -> None:
    payload = bytes(range(256)) * 1_000

    async def test() -> None:
        one, other = socket.socketpair()
        heard, loop = Heard(), asyncio.get_running_loop()
        sender = Channel(one, loop, lambda records: None, lambda: None)
        for number in range(10):  # 2.5 MB, of which the sockets take some hundred KB
            sender.post(number, payload)
            sender.flush()
        receiver = Channel(other, loop, heard.batches.append, heard.on_end)

        await until(lambda: len(heard.records) == 10, "all records")

        assert heard.records == [(number, payload) for number in range(10)]
        sender.post(10)
        sender.flush()
        await until(lambda: heard.records[-1] == (10,), "one more")
        sender.close()
        receiver.close()

    run_on(kind, test)


@on_loops
@pytest.mark.parametrize("unread", [False, True])
@pytest.mark.parametrize("said", [[], RECORDS])
async def test_the_end_is_heard_once_and_after_everything_else(
    unread: bool, said: list[Record]
) -> None:
    async with channel_and_socket() as (channel, theirs, heard):
        if unread:
            channel.post("never read")
            channel.flush()
        theirs.send(b"".join(map(msgpack.packb, said)))
        theirs.close()  # as the kernel does it for a process that is killed

        await until(lambda: heard.ends, "the end")

        assert heard.records == list(map(as_heard, said))
        channel.post("nobody is there")
        channel.flush()
        channel.close()
        assert heard.ends == 1


@on_loops
async def test_who_closes_its_end_hears_nothing_more() -> None:
    async with channel_and_socket() as (channel, theirs, heard):
        channel.close()
        await asyncio.sleep(0)

        assert theirs.recv(1) == b""
        assert heard == Heard()


@on_loops
async def test_who_is_closed_by_what_it_hears_goes_no_further() -> None:
    ours, theirs = socket.socketpair()
    heard: list[Record] = []

    def close(records: Sequence[Record]) -> None:
        heard.extend(records)
        channel.close()

    channel = Channel(ours, asyncio.get_running_loop(), close, lambda: heard.append(("end",)))
    theirs.send(msgpack.packb((1,)))
    await until(lambda: heard, "the record")
    theirs.close()
    await asyncio.sleep(0)

    assert heard == [(1,)]
