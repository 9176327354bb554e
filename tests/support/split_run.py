"""`SplitRun`: a simulated run whose master is several processes.

All of them have the master's address; which one a datagram reaches is told by its session id, as
the kernel does it. Shards, records and arenas are the production code. What processes say to each
other takes its time, at random, and stays in order.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from gradwire_protocol import Connection, Endpoint, Event, SessionIds
from gradwire_protocol.wire.packets import session_id_of
from gradwire_server.shards.arena import GRAIN_BYTES, Arena
from gradwire_server.shards.figures import Figures
from gradwire_server.shards.local import LocalShard
from gradwire_server.shards.records import Record
from gradwire_server.shards.remote import Parcels, RemoteShard
from support.applications import Untimed
from support.network import Application, Host, Link, Parcel, SimulatedNetwork
from support.training import MASTER, SimulatedRun

ARENA_BYTES: Final = 8 * GRAIN_BYTES
"""So little that much finds no room."""

SECONDS_MAX: Final = 0.002
"""How long a record may take from one process to the other."""


@dataclass(eq=False)
class Wire:
    """One direction between two processes.

    Parameters
    ----------
    network : SimulatedNetwork
    """

    network: SimulatedNetwork
    posted: list[bytes] = field(default_factory=list)
    last_arrival: float = 0.0
    cut: bool = False

    def deliver(self, records: Sequence[Record]) -> None:
        """Hand over what arrives; to be set."""
        raise NotImplementedError

    def post(self, *record: object) -> None:
        self.posted.append(msgpack.packb(record))

    def flush(self) -> None:
        if not self.posted or self.cut:
            return
        records, self.posted = self.posted, []
        delay = SECONDS_MAX * self.network.random.random()
        self.last_arrival = max(self.last_arrival, self.network.now + delay)
        self.network.at(self.last_arrival, lambda: self._arrive(records))

    def _arrive(self, records: list[bytes]) -> None:
        if not self.cut:
            self.deliver([msgpack.unpackb(record, use_list=False) for record in records])


class FlushingApplication:
    """An application after whose every word something has to be flushed.

    Parameters
    ----------
    inner : Application
    network : SimulatedNetwork
    flush : callable
    """

    def __init__(self, inner: Application, network: SimulatedNetwork, flush: Any) -> None:
        self.inner = inner
        self.network = network
        self.flush = flush

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        self.inner.handle_event(connection, event, now)
        self.network.after(0.0, self.flush)

    def handle_timer(self, now: float) -> None:
        self.inner.handle_timer(now)
        self.network.after(0.0, self.flush)

    def next_timer(self) -> float | None:
        return self.inner.next_timer()


class Reporting(Untimed):
    """The application of a shard's endpoint."""

    def __init__(self, local: LocalShard) -> None:
        self.local = local

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        self.local.handle_event(connection, event)


class SimulatedShard:
    """One shard with both its ends.

    Parameters
    ----------
    run : SplitRun
    index : int
    """

    def __init__(self, run: "SplitRun", index: int) -> None:
        self.run = run
        network = run.network
        figures = Figures()
        self.up, self.down = Wire(network), Wire(network)
        self.arenas = [_arena(), _arena()]  # what both ends see of the same memory
        self.endpoint = Endpoint(
            run.master.config.connection,
            random_bytes=network.random.randbytes,
            connections_max=run.master.config.connections_max,
            shard=SessionIds(index, run.count),
            counters=figures.counters,
            credentials=run.master_credentials,
        )
        self.local = LocalShard(self.endpoint, figures, self.arenas[0], run.arena, self.up)
        self.remote = RemoteShard(
            run.parcels, self.arenas[0], self.down,
            lambda connection, event: run.application.handle_event(connection, event, network.now),
            lambda: None,
        )  # fmt: skip
        self.up.deliver = self._at_process_0  # type: ignore[method-assign]
        self.down.deliver = self._at_shard  # type: ignore[method-assign]
        self.host = Host(
            MASTER, self.endpoint,
            FlushingApplication(Reporting(self.local), network, self.local.flush),
        )  # fmt: skip
        network.turn(self.host)

    def kill(self) -> None:
        """End it without a word; process 0 hears of that when it has heard everything else."""
        self.host.alive = False
        self.down.cut = True
        network = self.run.network
        network.at(max(self.up.last_arrival, network.now), self._lost)

    def _lost(self) -> None:
        self.up.cut = True
        self.remote.lose("killed")
        self.run.turn()

    def _at_process_0(self, records: Sequence[Record]) -> None:
        self.remote.handle(records)
        self.run.turn()

    def _at_shard(self, records: Sequence[Record]) -> None:
        self.local.handle(records, self.run.network.now)
        self.run.network.turn(self.host)
        self.local.flush()


class SplitRun(SimulatedRun):
    """A simulated run whose master has several processes.

    Parameters
    ----------
    seed, link, settings
        See `SimulatedRun`.
    count : int
        Processes.
    """

    def __init__(self, seed: int, link: Link, *, count: int, **settings: Any) -> None:
        self.shard = SessionIds(0, count)
        super().__init__(seed, link, **settings)
        self.count = count
        self.arena = _arena()
        self.parcels = Parcels(self.arena)
        self.application = FlushingApplication(self.runs, self.network, self.turn)
        self.master_host.application = self.application
        self.shards = [SimulatedShard(self, index) for index in range(1, count)]
        self._read_one = self.network._read
        self.network._read = self._read  # type: ignore[method-assign]

    def turn(self) -> None:
        """Let process 0 do all there is to do."""
        self.network.turn(self.master_host)
        for shard in self.shards:
            shard.remote.flush()
        self.parcels.release()

    def replace(self, index: int) -> None:
        """Start a shard again that was killed."""
        self.shards[index - 1] = SimulatedShard(self, index)

    def finish(self) -> None:
        """Let every live worker finish, and check that nothing is left of them in any process."""
        super().finish()
        self.network.run_for(60)
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        """All connections are over, and nothing lies in shared memory any more."""
        assert [len(shard.remote) for shard in self.shards] == [0] * (self.count - 1)
        rooms = [self.arena.room, *(shard.arenas[0].room for shard in self.shards)]
        assert [len(room) for room in rooms] == [0] * self.count

    def _read(self, host: Host) -> None:
        """Hand what has arrived at the master's address to the processes it is for."""
        if host is not self.master_host:
            self._read_one(host)
            return
        held, host.held = host.held, []
        for index, process in enumerate([host, *(shard.host for shard in self.shards)]):
            process.held = [parcel for parcel in held if self._index_of(parcel) == index]
            if process.held:
                self._read_one(process)

    def _index_of(self, parcel: Parcel) -> int:
        if len(parcel.datagram) < 8:
            return 0
        return session_id_of(memoryview(parcel.datagram)) % 256 % self.count


def _arena() -> Arena:
    descriptor = Arena.new_file("simulated", ARENA_BYTES)
    try:
        return Arena(descriptor)
    finally:
        os.close(descriptor)
