"""A worker that sends small updates at a steady pace, or one that notes when they come.

``python -m benchmarks.update_stream push|receive`` is a process, so that each can live in a network
namespace of its own; clocks are the same there.

`push` founds the run, says so, and begins to send when its parent tells it; told again, it stops
and writes when each update was sent, by sequence. `receive` joins, which brings it the snapshot,
and when that is complete writes when each update came.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks.programs import announce, end_with_parent
from benchmarks.workers import IdleWorker, update_of_size
from gradwire_udp import new_event_loop

UPDATE_BYTES: Final = 4096
INTERVAL_SECONDS: Final = 0.010


@dataclass(slots=True)
class _Telling:
    """What the parent says, heard on the event loop."""

    count: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self.count += 1
        self.changed.set()


async def _push(master: str, elements: int) -> None:
    loop, telling = asyncio.get_running_loop(), _Telling()
    end_with_parent(lambda: loop.call_soon_threadsafe(telling.tell))
    _, body = update_of_size(UPDATE_BYTES, elements)
    worker = IdleWorker("pusher", elements, master, asyncio.Event())
    await worker.wait_live()
    announce(live=True, update_bytes=len(body))
    await telling.changed.wait()
    sent: dict[int, float] = {}
    due = time.monotonic()
    while telling.count < 2:
        sent[worker.sent + 1] = time.monotonic()
        worker.push(body)
        due += INTERVAL_SECONDS
        await asyncio.sleep(due - time.monotonic())
    announce(at=sent)
    worker.close()


async def _receive(master: str, elements: int) -> None:
    end_with_parent()
    came: dict[int, float] = {}
    worker = IdleWorker("receiver", elements, master, asyncio.Event())
    worker.on_update_received = lambda sequence: came.setdefault(sequence, time.monotonic())
    began = time.monotonic()
    announce(joining=True)
    await worker.wait_live()
    announce(at=came, seconds=time.monotonic() - began)
    await asyncio.Event().wait()


def main() -> None:
    """Be one of the two."""
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=["push", "receive"])
    parser.add_argument("--master", required=True)
    parser.add_argument("--elements", type=int, required=True)
    given = parser.parse_args()
    work = _push if given.end == "push" else _receive
    with asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner:
        runner.run(work(given.master, given.elements))


if __name__ == "__main__":
    main()
