"""The master's relaying: 300 KB updates among 4 workers, over loopback.

All workers live in one other process and do nothing but send and receive, so what is measured is
the master: the bytes that it hands on per second, and per second of its processor time. The rival
does the same work over TCP: an asyncio server that hands every message on to all other connections.
Datagrams are of 1,400 bytes.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.figures import Figure, at_least
from gradwire.worker import Worker
from gradwire_codecs import Update
from gradwire_codecs.update import pack_update
from gradwire_protocol import ConnectionConfig, Endpoint, GradwireError
from gradwire_protocol.messages import (
    CODEC_VERSION,
    WORKER_ID_BYTES,
    EncodedUpdate,
    Join,
    Layout,
    Peer,
    Tensor,
    Welcome,
)
from gradwire_udp import SocketCounters, UdpDriver, new_event_loop, open_socket, resolve
from support.local_master import MasterProcess

WORKERS = 4
UPDATES = 12
"""Of each worker."""

UPDATE_BYTES = 300_000
RUNS = 3


class _Receiver:
    """One worker's listener: counts, and sends when it may."""

    def __init__(self, done: asyncio.Event) -> None:
        self.live = False
        self.founder = False
        self.received = 0
        self.delivered = 0
        self._done = done

    def on_welcome(self, welcome: Welcome) -> None:
        self.founder = welcome.founder
        self._done.set()

    def on_snapshot_progress(self, elements: int) -> None: ...

    def on_live(self, snapshot: bytearray | None) -> None:
        self.live = True
        self._done.set()

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        self.received += 1
        self._done.set()

    def on_delivered(self, size: int) -> None:
        self.delivered += 1
        self._done.set()

    def on_roster(self, peers: Sequence[Peer]) -> None: ...

    def on_stable(self, versions: Mapping[int, int]) -> None: ...

    def on_finished(self, versions: Mapping[int, int]) -> None: ...

    def on_closed(self, error: GradwireError | None) -> None:
        assert error is None, error


def processor_seconds(pid: int) -> float:
    """Return the time that a process has spent on processors."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def update_of_size(size: int) -> tuple[int, bytes]:
    """Return how many parameters there are, and an update of about so many bytes for them."""
    elements = 8 * size  # a fifth of them hits, which takes about one bit per element
    random = np.random.default_rng(0)
    index = np.flatnonzero(random.random(elements) < 0.2).astype(np.uint32)
    return elements, pack_update(Update(0, elements, 1, index, np.ones(index.size, np.int32)))


async def relay_udp(master: str, elements: int, body: bytes, pid: int) -> tuple[float, float]:
    """Return the seconds it took, and the master's processor seconds."""
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()
    family, address = resolve(master)
    workers: list[tuple[Worker, _Receiver, UdpDriver]] = []
    for i in range(WORKERS):
        receiver = _Receiver(happened)
        join = Join(None, os.urandom(WORKER_ID_BYTES), f"bench{i}", None, CODEC_VERSION, -24,
                    Layout((Tensor("weights", (elements,)),)))  # fmt: skip
        worker = Worker(join, receiver, master)
        endpoint = Endpoint(ConnectionConfig(), random_bytes=os.urandom)
        sock = open_socket(("0.0.0.0", 0), family)
        driver = UdpDriver(sock, endpoint, worker, loop, SocketCounters())
        worker.connect(endpoint, address, driver.now())
        driver.turn()
        workers.append((worker, receiver, driver))
        while not receiver.live:
            await asyncio.wait_for(happened.wait(), 30)
            happened.clear()
            if receiver.founder:
                receiver.founder = False
                worker.found(bytes(4 * elements), driver.now())
                driver.turn()
    began, used = perf_counter(), processor_seconds(pid)
    sent = [0] * WORKERS
    while any(r.received < UPDATES * (WORKERS - 1) for _, r, _ in workers):
        for i, (worker, receiver, driver) in enumerate(workers):
            while sent[i] < UPDATES and sent[i] - receiver.delivered < 4:
                sent[i] += 1
                worker.push([body], 0, driver.now())
                driver.turn()
        await asyncio.wait_for(happened.wait(), 60)
        happened.clear()
    seconds, used = perf_counter() - began, processor_seconds(pid) - used
    for worker, _, driver in workers:
        worker.abort("done", driver.now())
        driver.turn()
        driver.close()
    return seconds, used


TCP_SERVER = """
import asyncio
writers = []
async def serve(reader, writer):
    writers.append(writer)
    writer.write(b"!")  # from now on it gets what others send
    try:
        while True:
            head = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(head, "little"))
            for other in writers:
                if other is not writer:
                    other.write(head + body)
            for other in writers:
                await other.drain()
    except asyncio.IncompleteReadError:
        writers.remove(writer)
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
import uvloop
uvloop.run(main())
"""


async def relay_tcp(port: int, size: int, pid: int) -> tuple[float, float]:
    """Do the same over TCP."""
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(WORKERS)]
    for reader, _ in streams:
        await reader.readexactly(1)
    message = size.to_bytes(4, "little") + bytes(size)

    async def send(writer: asyncio.StreamWriter) -> None:
        for _ in range(UPDATES):
            writer.write(message)
            await writer.drain()

    async def receive(reader: asyncio.StreamReader) -> None:
        for _ in range(UPDATES * (WORKERS - 1)):
            await reader.readexactly(len(message))

    began, used = perf_counter(), processor_seconds(pid)
    await asyncio.gather(*(send(w) for _, w in streams), *(receive(r) for r, _ in streams))
    seconds, used = perf_counter() - began, processor_seconds(pid) - used
    for _, writer in streams:
        writer.close()
    return seconds, used


def run() -> list[Figure]:
    """Measure."""
    elements, body = update_of_size(UPDATE_BYTES)
    bits_out = 8 * len(body) * UPDATES * WORKERS * (WORKERS - 1)
    ours: list[tuple[float, float]] = []
    rivals: list[tuple[float, float]] = []
    for _ in range(RUNS):
        with MasterProcess() as master:
            pid = int(master.announcement["pid"])
            with asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner:
                ours.append(runner.run(relay_udp(master.address, elements, body, pid)))
        command = [sys.executable, "-c", TCP_SERVER]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            with asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner:
                rivals.append(runner.run(relay_tcp(port, len(body), server.pid)))
            server.terminate()

    def gigabits(measured: list[tuple[float, float]], which: int) -> float:
        return median(bits_out / 1e9 / m[which] for m in measured)

    name = f"relay {len(body) // 1000} KB among {WORKERS}"
    rival = "asyncio TCP server, same work"
    return [
        at_least(f"{name}: out per second", gigabits(ours, 0), "Gbit/s", rival,
                 gigabits(rivals, 0), aim=1.0, runs=RUNS),
        at_least(f"{name}: out per processor second", gigabits(ours, 1), "Gbit", rival,
                 gigabits(rivals, 1), aim=1.0, runs=RUNS),
    ]  # fmt: skip
