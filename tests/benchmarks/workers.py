"""Workers that send and receive updates and do not train: what a master is measured with.

They are the client's own `Worker`, each with a socket of its own, on one event loop.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

import numpy as np

from benchmarks.masters import Master
from gradwire.worker.membership import Membership
from gradwire.worker.sums import Sum
from gradwire.worker.worker import Worker
from gradwire_codecs import Update
from gradwire_codecs.format.update import pack_update
from gradwire_protocol import ConnectionConfig, Credentials, Endpoint, GradwireError
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, Welcome
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_udp import SocketCounters, UdpDriver, open_socket, resolve
from support.dialling import dial
from support.pushing import push

JOIN_SECONDS: Final = 120.0
QUANTUM_EXPONENT: Final = -24


class Progress:
    """What workers have done, for code on their event loop that waits for it."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()
        self._failure: str | None = None

    def note(self) -> None:
        """Note that something happened."""
        self._happened.set()

    def fail(self, reason: str) -> None:
        """Note that something went wrong, so that nobody waits for what does not come any more."""
        self._failure = self._failure or reason
        self._happened.set()

    async def wait(self, seconds: float) -> None:
        """Wait until something happens, but for no longer than that.

        Raises
        ------
        RuntimeError
            If something went wrong at a worker.
        TimeoutError
            If nothing happens.
        """
        try:
            await asyncio.wait_for(self._happened.wait(), seconds)
        except TimeoutError:
            raise TimeoutError(f"nothing has come to any worker for {seconds:g} s") from None
        self._happened.clear()
        if self._failure is not None:
            raise RuntimeError(self._failure)


class _Counted(Membership):
    """The membership of an `IdleWorker`, which keeps none of what comes."""

    def __init__(self, worker: "IdleWorker", elements: int) -> None:
        super().__init__(elements)
        self._worker = worker

    def on_welcome(self, welcome: Welcome) -> None:
        super().on_welcome(welcome)
        if welcome.founder:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._worker.found)  # the worker is not done with the welcome

    def on_live(self, snapshot: memoryview | None) -> None:
        self.live = True
        self._worker.progress.note()

    def on_lost(self, reason: str) -> None:
        self._worker.progress.fail(f"the connection to the master is lost: {reason}")

    def on_entries(self, total: Sum) -> None:
        self.updates_received += total.updates
        self._worker.on_entries_received()
        self._worker.progress.note()

    def on_delivered(self, size: int, seconds: float | None = None) -> None:
        self.updates_delivered += 1
        self._worker.progress.note()

    def on_closed(self, error: GradwireError | None) -> None:
        if error is not None:
            self._worker.progress.fail(str(error))


class IdleWorker:
    """A worker that counts what comes, and tells who waits that something happened.

    Parameters
    ----------
    name : str
    elements : int
        Of the run's parameters.
    master : str
        Address of the master.
    credentials : Credentials, optional
        What it dials with, where the master has keys.
    progress : Progress
        Told whenever something happens.
    datagram_bytes : int
        Of all its datagrams, and of those to it.
    values : bytes, optional
        Of the replica that it founds the run with, little-endian int32; zeros unless given, which
        a snapshot packs into next to nothing.
    """

    def __init__(
        self,
        name: str,
        elements: int,
        master: str,
        credentials: Credentials | None,
        progress: Progress,
        *,
        datagram_bytes: int = 1400,
        values: bytes | None = None,
    ) -> None:
        self.sent = 0
        self.on_entries_received: Callable[[], object] = lambda: None
        """Called when updates of others come."""
        self._values = values or bytes(4 * elements)
        self.progress = progress
        layout = Layout((Tensor("weights", (elements,)),))
        join = Join(None, os.urandom(WORKER_ID_BYTES), name, None, CODEC_VERSION,
                    QUANTUM_EXPONENT, layout)  # fmt: skip
        self._membership = _Counted(self, elements)
        self._worker = Worker(join, self._membership, master, random=Random(1).random)
        config = ConnectionConfig(
            datagram_bytes=datagram_bytes,
            datagram_bytes_max=datagram_bytes,
            connect_timeout_seconds=JOIN_SECONDS,
        )
        endpoint = Endpoint(config, random_bytes=os.urandom, credentials=credentials)
        family, address = resolve(master)
        sock = open_socket(("0.0.0.0", 0), family)
        self._counters = SocketCounters()
        self._driver = UdpDriver(
            sock, endpoint, self._worker, asyncio.get_running_loop(), self._counters
        )
        dial(self._worker, endpoint, address, self._driver.now())
        self._driver.turn()

    @property
    def live(self) -> bool:
        """Whether it takes part."""
        return self._membership.live

    @property
    def received(self) -> int:
        """How many updates of others have come."""
        return self._membership.updates_received

    @property
    def bytes_received(self) -> int:
        """Bytes of all UDP payloads that have come."""
        return self._counters.bytes_received

    @property
    def delivered(self) -> int:
        """How many of its updates the master has."""
        return self._membership.updates_delivered

    async def wait_live(self) -> None:
        """Wait until it takes part."""
        while not self.live:
            await self.wait()

    async def wait(self) -> None:
        """Wait until something happens."""
        await self.progress.wait(JOIN_SECONDS)

    def push(self, body: bytes) -> None:
        """Send an update."""
        self.sent += 1
        push(self._worker, [body], 0, self._driver.now())
        self._driver.turn()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log scalars of a step."""
        now = self._driver.now()
        if self._worker.scalars.add(step, values, now):
            self._worker.scalars.wake(now)
            self._driver.turn()

    def close(self) -> None:
        """Go, whatever is under way."""
        self._worker.abort("done", self._driver.now())
        self._driver.turn()
        self._driver.close()

    def found(self) -> None:
        """Start the run."""
        self._worker.found(self._values, None, self._driver.now())
        self._driver.turn()


@contextmanager
def closing(workers: Sequence[IdleWorker]) -> Iterator[None]:
    """Close them all in the end."""
    try:
        yield
    finally:
        for worker in workers:
            worker.close()


async def join_all(
    count: int, elements: int, master: Master, progress: Progress
) -> list[IdleWorker]:
    """Let so many workers join, one after the other; the first one founds the run."""
    workers = []
    for rank in range(count):
        name = f"worker{rank}"
        worker = IdleWorker(name, elements, master.address, master.credentials(name), progress)
        workers.append(worker)
        await worker.wait_live()
    return workers


def update_of_size(size: int, elements: int | None = None, *, seed: int = 0) -> tuple[int, bytes]:
    """Return an update of about so many bytes, and how many parameters it is for.

    Parameters
    ----------
    size : int
    elements : int
        How many parameters there have to be; as many as make a fifth of them hits unless given.
    seed : int
        Says which parameters it changes.
    """
    random = np.random.default_rng(seed)
    if elements is None:
        elements, density = 8 * size, 0.2  # which takes about one bit per element
    else:
        density = 8 * size / elements / (3 + np.log2(elements / size))
    hits = random.random(elements, np.float32) < density
    index = np.flatnonzero(hits).astype(np.uint32)
    return elements, pack_update(Update(0, elements, 1, index, np.ones(index.size, np.int32)))
