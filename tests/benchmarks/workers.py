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

from gradwire.worker import Worker
from gradwire_codecs import Sections, Update
from gradwire_codecs.update import pack_update
from gradwire_protocol import ConnectionConfig, Endpoint, GradwireError
from gradwire_protocol.layout import Layout, Tensor
from gradwire_protocol.messages import (
    CODEC_VERSION,
    WORKER_ID_BYTES,
    Buffers,
    EncodedUpdate,
    Join,
    Peer,
    Welcome,
)
from gradwire_udp import SocketCounters, UdpDriver, open_socket, resolve

JOIN_SECONDS: Final = 120.0
QUANTUM_EXPONENT: Final = -24


class IdleWorker:
    """A worker and its own listener: it counts, and tells who waits that something happened.

    Parameters
    ----------
    name : str
    elements : int
        Of the run's parameters.
    master : str
        Address of the master.
    happened : asyncio.Event
        Set whenever something did.
    datagram_bytes : int
        Of all its datagrams, and of those to it.
    """

    def __init__(
        self,
        name: str,
        elements: int,
        master: str,
        happened: asyncio.Event,
        *,
        datagram_bytes: int = 1400,
    ) -> None:
        self.live = False
        self.received = 0
        self.sent = 0
        self.delivered = 0
        self.on_update_received: Callable[[int], object] = lambda sequence: None
        """Called with the sequence of each update that comes."""
        self._elements = elements
        self._happened = happened
        layout = Layout((Tensor("weights", (elements,)),))
        join = Join(None, os.urandom(WORKER_ID_BYTES), name, None, CODEC_VERSION,
                    QUANTUM_EXPONENT, layout)  # fmt: skip
        self._worker = Worker(join, self, master, random=Random(1).random)
        config = ConnectionConfig(datagram_bytes=datagram_bytes, datagram_bytes_max=datagram_bytes)
        endpoint = Endpoint(config, random_bytes=os.urandom)
        family, address = resolve(master)
        sock = open_socket(("0.0.0.0", 0), family)
        self._driver = UdpDriver(
            sock, endpoint, self._worker, asyncio.get_running_loop(), SocketCounters()
        )
        self._worker.connect(endpoint, address, self._driver.now())
        self._driver.turn()

    async def wait_live(self) -> None:
        """Wait until it takes part."""
        async with asyncio.timeout(JOIN_SECONDS):
            while not self.live:
                await self._happened.wait()
                self._happened.clear()

    def push(self, body: bytes) -> None:
        """Send an update."""
        self.sent += 1
        self._worker.push([body], 0, self._driver.now())
        self._driver.turn()

    def close(self) -> None:
        """Go, whatever is under way."""
        self._worker.abort("done", self._driver.now())
        self._driver.turn()
        self._driver.close()

    # As its own listener.

    def on_welcome(self, welcome: Welcome) -> None:
        if welcome.founder:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._found)  # the worker is not done with the welcome

    def _found(self) -> None:
        self._worker.found(bytes(4 * self._elements), self._driver.now())
        self._driver.turn()

    def on_snapshot_progress(self, elements: int) -> None: ...

    def on_live(self, snapshot: object) -> None:
        self.live = True
        self._happened.set()

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        self.received += 1
        self.on_update_received(update.sequence)
        self._happened.set()

    def on_lost(self, reason: str) -> None:
        raise AssertionError(reason)

    def on_wanted(self) -> None: ...

    def on_resync(self, versions: object) -> None: ...

    def on_anew(self) -> None: ...

    def on_part(self, values: object, blocks: object) -> tuple[int, ...]:
        raise NotImplementedError

    def on_back(self, rebase: object) -> None: ...

    def on_sum(self, total: object) -> None: ...
    def on_blocks(self, blocks: object, *, missed: bool) -> None: ...

    def on_mended(self, rebase: object) -> None: ...

    def on_correction(self, correction: EncodedUpdate) -> None: ...

    def on_delivered(self, size: int) -> None:
        self.delivered += 1
        self._happened.set()

    def on_roster(self, peers: Sequence[Peer]) -> None: ...

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None: ...

    def on_stable(self, versions: Mapping[int, int]) -> None: ...

    def on_finished(self, versions: Mapping[int, int]) -> None: ...

    def on_stopping(self, reason: str) -> None: ...

    def on_closed(self, error: GradwireError | None) -> None:
        assert error is None, error


@contextmanager
def closing(workers: Sequence[IdleWorker]) -> Iterator[None]:
    """Close them all in the end."""
    try:
        yield
    finally:
        for worker in workers:
            worker.close()


async def join_all(
    count: int, elements: int, master: str, happened: asyncio.Event
) -> list[IdleWorker]:
    """Let so many workers join, one after the other; the first one founds the run."""
    workers = []
    for rank in range(count):
        worker = IdleWorker(f"worker{rank}", elements, master, happened)
        workers.append(worker)
        await worker.wait_live()
    return workers


def update_of_size(size: int, elements: int | None = None) -> tuple[int, bytes]:
    """Return an update of about so many bytes, and how many parameters it is for.

    Parameters
    ----------
    size : int
    elements : int
        How many parameters there have to be; as many as make a fifth of them hits unless given.
    """
    random = np.random.default_rng(0)
    if elements is None:
        elements, density = 8 * size, 0.2  # which takes about one bit per element
    else:
        density = 8 * size / elements / (3 + np.log2(elements / size))
    hits = random.random(elements, np.float32) < density
    index = np.flatnonzero(hits).astype(np.uint32)
    return elements, pack_update(
        Update(Sections.single(0, elements, 1), index, np.ones(index.size, np.int32))
    )
