"""What relaying costs a master with ten, a hundred and a thousand workers, without any sockets.

The `Runs` of a daemon on their `Endpoint` and workers on theirs exchange trains in one process and
in virtual time. Only the master's side is timed: taking in what comes, handling events and timers,
making trains. One worker at a time sends an update of 4 KB, and all workers acknowledge it.
"""

import gc
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter
from typing import Final
from unittest.mock import patch

from benchmarks.figures import Figure, at_most, beside
from benchmarks.workers import QUANTUM_EXPONENT, update_of_size
from gradwire.worker.membership import Membership
from gradwire.worker.sums import Sum
from gradwire.worker.worker import Worker
from gradwire_protocol import Connection, ConnectionConfig, Endpoint, Event, GradwireError, Train
from gradwire_protocol.limits import WINDOW_BYTES
from gradwire_protocol.messages.admission import CODEC_VERSION, Join
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_server.config import CONNECTIONS_SPARE, MasterConfig
from gradwire_server.metrics import ServerMetrics
from gradwire_server.runs.runs import Runs
from gradwire_server.state.state import State
from support.dialling import dial
from support.pushing import push

UPDATE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    workers: Sequence[int] = (10, 100, 1000)
    """Ascending."""
    deliveries: int = 8_000
    """At least, of all updates of one measurement together."""
    updates_min: int = 8
    runs: int = 3


FULL: Final = Plan()
QUICK: Final = Plan(workers=(2, 3, 4), deliveries=8, updates_min=2, runs=1)

AIM: Final = 1.2
DATAGRAM_BYTES: Final = 1400

HOP_SECONDS: Final = 0.001
"""In virtual time, from either side to the other."""
SPARE_BYTES: Final = 4
"""What an endpoint may write to behind the data."""


def _untold() -> AbstractContextManager[object]:
    """Have masters tell nobody who takes part, for as long as the block lasts.

    A thousand rosters of up to a thousand peers, each told to all, would take many minutes; joining
    is not what is measured.
    """
    return patch.object(State, "tell_roster", lambda _: None)


class _Counted(Membership):
    """Counts what a worker hears, and keeps none of it.

    Parameters
    ----------
    elements : int
    on_received : callable
        Called with the number of updates that have come.
    """

    def __init__(self, elements: int, on_received: Callable[[int], None]) -> None:
        super().__init__(elements)
        self._on_received = on_received

    def on_live(self, snapshot: memoryview | None) -> None:
        self.live = True

    def on_entries(self, total: Sum) -> None:
        self._on_received(total.updates)

    def on_lost(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_closed(self, error: GradwireError | None) -> None:
        assert error is None, error


class _Run:
    """A master, its workers, and what passes between them.

    Parameters
    ----------
    workers : int
    elements : int
        Of the run's parameters.
    """

    def __init__(self, workers: int, elements: int) -> None:
        self.now = 1000.0
        self.master_seconds = 0.0
        self.deliveries = 0
        """How many updates have come to how many workers."""
        config = MasterConfig(
            workers_max=workers,
            reassembly_bytes_max=(workers + CONNECTIONS_SPARE) * WINDOW_BYTES,
        )
        self._runs = Runs(config, ServerMetrics())
        self._endpoint = Endpoint(
            config.connection, random_bytes=os.urandom, connections_max=config.connections_max
        )
        small = ConnectionConfig(datagram_bytes=DATAGRAM_BYTES, datagram_bytes_max=DATAGRAM_BYTES)
        # All workers behind one endpoint: theirs is not the side that is measured.
        self._others = Endpoint(small, random_bytes=os.urandom)
        self._workers: list[Worker] = []
        self._by_connection: dict[Connection, Worker] = {}
        layout = Layout((Tensor("weights", (elements,)),))
        with _untold():
            for rank in range(workers):
                self._join(rank, layout)

    def _join(self, rank: int, layout: Layout) -> None:
        membership = _Counted(layout.elements, self._count)
        join = Join(None, os.urandom(WORKER_ID_BYTES), f"worker{rank}", None, CODEC_VERSION,
                    QUANTUM_EXPONENT, layout)  # fmt: skip
        worker = Worker(join, membership, "the master", random=Random(1).random)
        before = set(self._others.connections())
        dial(worker, self._others, "master", self.now)
        (connection,) = set(self._others.connections()) - before
        self._by_connection[connection] = worker
        self._workers.append(worker)
        has_founded = False
        while not membership.live:
            welcome = membership.welcome
            if welcome is not None and welcome.founder and not has_founded:
                has_founded = True
                worker.found(bytes(4 * layout.elements), None, self.now)
            self._pass_time()

    def relay(self, updates: int, body: bytes) -> None:
        """Let workers send so many updates, each when all have the one before."""
        workers = self._workers
        for i in range(updates):
            push(workers[i % len(workers)], [body], 0, self.now)
            expected = self.deliveries + len(workers) - 1
            while self.deliveries < expected or self._runs.first.unstable:
                self._pass_time()

    def _count(self, updates: int) -> None:
        self.deliveries += updates

    def _pass_time(self) -> None:
        """Let what was sent arrive, both ways, and the timers fire that are due."""
        idle = True
        for train in self._trains_of_workers():
            idle = False
            self._let_master_receive(train)
        self.now += HOP_SECONDS
        for train in self._trains_of_master():
            idle = False
            _receive(self._others, train, "master", self.now)
            self._report_to_workers()
        self.now += HOP_SECONDS
        if idle:
            self._skip_to_next_timer()

    def _skip_to_next_timer(self) -> None:
        sides = (self._endpoint, self._runs, self._others)
        timers = [t for t in (side.next_timer() for side in sides) if t is not None]
        assert timers, "nothing will ever happen any more"
        self.now = max(self.now, min(timers))
        began = perf_counter()
        self._endpoint.handle_timer(self.now)
        self._runs.handle_timer(self.now)
        self._report_to_master()
        self.master_seconds += perf_counter() - began
        self._others.handle_timer(self.now)
        self._report_to_workers()

    # The workers' side.

    def _trains_of_workers(self) -> list[Train]:
        trains: list[Train] = []
        self._report_to_workers()
        while (train := self._others.next_train(self.now)) is not None:
            trains.append(_copied(train))
        return trains

    def _report_to_workers(self) -> None:
        while (item := self._others.next_event()) is not None:
            connection, event = item
            self._by_connection[connection].handle_event(connection, event, self.now)

    # The master's side, timed.

    def _let_master_receive(self, train: Train) -> None:
        began = perf_counter()
        _receive(self._endpoint, train, "workers", self.now)
        self._report_to_master()
        self.master_seconds += perf_counter() - began

    def _trains_of_master(self) -> list[Train]:
        trains: list[Train] = []
        while True:
            began = perf_counter()
            self._report_to_master()
            train = self._endpoint.next_train(self.now)
            if train is None:
                self._endpoint.next_timer()  # as a driver asks after every turn
            self.master_seconds += perf_counter() - began
            if train is None:
                return trains
            trains.append(_copied(train))

    def _report_to_master(self) -> None:
        item: tuple[Connection, Event] | None
        while (item := self._endpoint.next_event()) is not None:
            self._runs.handle_event(*item, self.now)


def _copied(train: Train) -> Train:
    """Return what a kernel would keep of a train, with room to spare behind it."""
    kept = bytearray().join((*train.buffers, bytes(SPARE_BYTES)))
    return Train([memoryview(kept)], train.segment, train.size, train.address, train.ecn)


def _receive(endpoint: Endpoint, train: Train, source: str, now: float) -> None:
    endpoint.receive(train.buffers[0][: train.size], train.segment, source, train.ecn, now)


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    elements, body = update_of_size(UPDATE_BYTES)
    runs = {workers: _Run(workers, elements) for workers in plan.workers}
    gc.collect()
    microseconds: dict[int, list[float]] = {workers: [] for workers in plan.workers}
    for i in range(plan.runs + 1):
        for workers, measured in runs.items():
            updates = max(plan.updates_min, -(-plan.deliveries // (workers - 1)))
            before, used = measured.deliveries, measured.master_seconds
            measured.relay(updates, body)
            deliveries = measured.deliveries - before
            assert deliveries == updates * (workers - 1)
            if i:  # the first round warms up
                used = measured.master_seconds - used
                microseconds[workers].append(1e6 * used / deliveries)

    least, *_, most = plan.workers
    figures = []
    for workers in plan.workers[1:]:
        name = f"master's Python, per 4 KB update and destination, {workers} workers"
        value, rival = median(microseconds[workers]), median(microseconds[least])
        beside_least = f"the same with {least} workers"
        figures.append(
            at_most(name, value, "us", beside_least, rival, aim=AIM, runs=plan.runs)
            if workers == most
            else beside(name, value, "us", beside_least, rival, runs=plan.runs)
        )
    return figures
