"""A worker that sends small updates at a steady pace, or one that notes when they come.

``python -m benchmarks.update_stream push|receive`` is a process, so that each can live in a network
namespace of its own; clocks are the same there. Its master and its key are in ``GRADWIRE_*``.

`push` founds the run, says so, and begins to send when its parent tells it; told again, it stops
and writes when each update was sent, by sequence. `receive` joins, which brings it the snapshot,
and when that is complete, and an update has come, writes when each update came.
"""

import argparse
import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks.programs import announce, end_with_parent
from benchmarks.workers import IdleWorker, Progress, update_of_size
from gradwire.settings.credentials import credentials_of
from gradwire_codecs import Replica, warm_up
from gradwire_udp import new_event_loop

UPDATE_BYTES: Final = 4096


@dataclass(slots=True)
class _Telling:
    """What the parent says, heard on the event loop."""

    count: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.count += 1
        self.changed.set()


def _worker(name: str, elements: int, values: bytes | None = None) -> IdleWorker:
    credentials = credentials_of(None, os.environ.get("GRADWIRE_KEY_FILE", ""))
    master = os.environ["GRADWIRE_MASTER"]
    return IdleWorker(name, elements, master, credentials, Progress(), values=values)


def _values(elements: int) -> bytes:
    """Return a replica as those of real models are, which no snapshot packs into a few bytes."""
    parameters = np.random.default_rng(0).standard_normal(elements, np.float32) * np.float32(0.1)
    return Replica.from_parameters(parameters).values.tobytes()


async def _push(elements: int, interval_seconds: float) -> None:
    loop, telling = asyncio.get_running_loop(), _Telling()
    end_with_parent(lambda: loop.call_soon_threadsafe(telling.tell))
    _, body = update_of_size(UPDATE_BYTES, elements)
    worker = _worker("pusher", elements, _values(elements))
    await worker.wait_live()
    announce(live=True, update_bytes=len(body))
    await telling.changed.wait()
    sent: dict[int, float] = {}
    due = time.monotonic()
    while telling.count < 2:
        sent[worker.sent + 1] = time.monotonic()
        worker.push(body)
        due += interval_seconds
        await asyncio.sleep(due - time.monotonic())
    announce(at=sent)
    worker.close()


async def _receive(elements: int) -> None:
    end_with_parent()
    came: dict[int, float] = {}
    worker = _worker("receiver", elements)
    worker.on_update_received = lambda sequence: came.setdefault(sequence, time.monotonic())
    began = time.monotonic()
    announce(joining=True)
    await worker.wait_live()
    seconds = time.monotonic() - began
    while not came:
        await worker.wait()
    announce(at=came, seconds=seconds)
    await asyncio.Event().wait()


def main() -> None:
    """Be one of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=["push", "receive"])
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--interval-seconds", type=float, help="between updates that are pushed")
    given = parser.parse_args()
    warm_up()  # as `gradwire.join` does
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if given.end == "push":
            runner.run(_push(given.elements, given.interval_seconds))
        else:
            runner.run(_receive(given.elements))


if __name__ == "__main__":
    main()
