"""The demo's processes: a master and its workers, then one worker alone.

`Race` is plain data, which the functions here fill, and the display and the report read.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from gradwire.cli.launch.keys import local_keys, run_key_file_from_environment
from gradwire.cli.launch.processes import Child, local_master_process, worker_environment
from gradwire.cli.launch.signals import run_until_signal
from gradwire.errors import GradwireError

SCRAPE_SECONDS: Final = 0.5
"""How often the master's metrics are read."""

OF_RUN: Final = '{run="default"}'
"""Label of the metrics of the only run."""

DATAGRAM_BYTES: Final = 8_900
"""All packets stay on the loopback interface, which carries up to 65,536 bytes in one."""

ERRORS_SHOWN_MAX: Final = 20
"""Lines of a failed worker's stderr in its error."""


@dataclass(slots=True)
class Progress:
    """Reports of one worker."""

    name: str
    step: int = 0
    losses: list[float] = field(default_factory=list)
    started: float | None = None
    now: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)
    bytes_before: tuple[float, int] = (0.0, 0)
    bytes_per_second: float = 0.0
    digest: str = ""
    messages: list[str] = field(default_factory=list)

    @property
    def steps_per_second(self) -> float:
        """Mean since the first report."""
        if self.started is None or self.now <= self.started:
            return 0.0
        return self.step / (self.now - self.started)

    @property
    def recent_loss(self) -> float | None:
        """Mean of the last 20 losses; None before the first."""
        recent = self.losses[-20:]
        return sum(recent) / len(recent) if recent else None

    def on_stdout(self, line: str) -> None:
        """Parse a line of the worker's stdout."""
        event = json.loads(line)
        self.now = event["time"]
        match event["event"]:
            case "joined":
                self.started = self.now
            case "progress":
                if self.started is None:
                    self.started = self.now
                self.step = event["step"]
                self.losses += event["losses"]
            case "finished":
                self.digest = event["digest"]
        if event.get("stats"):
            self.stats = event["stats"]
            before, sent = self.bytes_before
            if self.now - before >= 1:
                self.bytes_per_second = (self.stats["bytes_sent"] - sent) / (self.now - before)
                self.bytes_before = (self.now, self.stats["bytes_sent"])

    def on_stderr(self, line: str) -> None:
        """Keep a line of the worker's stderr."""
        self.messages = [*self.messages[-ERRORS_SHOWN_MAX:], line]


@dataclass(slots=True)
class Race:
    """State of the demo, from the reports so far."""

    steps: int
    density: float
    folder: Path
    """Folder for the workers' parameters."""
    workers: list[Progress]
    alone: Progress = field(default_factory=lambda: Progress("alone"))
    began: float = field(default_factory=time.monotonic)
    phase: str = "starting"
    is_alone: bool = False
    """Whether the workers have trained together, and it is the turn of the one alone."""
    place: str = ""
    """Addresses of the master and its metrics; empty before it listens."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The master's metrics, as last read."""
    bytes_by_step: list[tuple[float, int]] = field(default_factory=list)
    """Mean step of the workers, and the bytes that all sockets had sent by then."""

    @property
    def bytes_sent(self) -> int:
        """Bytes that all sockets have sent: the workers' and the master's."""
        by_workers = sum(int(worker.stats.get("bytes_sent", 0)) for worker in self.workers)
        return by_workers + int(self.metrics.get("gradwire_sent_bytes_total", 0))

    def saved(self, worker: Progress) -> Path:
        """Return the file with a worker's final parameters."""
        return self.folder / f"{worker.name}.pt"


async def run_together(race: Race) -> None:
    """Train with all workers together."""
    race.phase = "compiling, if this is the first time"
    said: list[str] = []
    options = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--public-metrics"]
    options += ["--datagram-bytes", str(DATAGRAM_BYTES)]
    with local_keys(len(race.workers), run_key_file_from_environment()) as keys:
        async with local_master_process(options, keys.master_environment, said.append) as master:
            race.phase = f"{len(race.workers)} workers"
            race.place = f"master at {master.address}, page at http://{master.http}/"
            scraping = asyncio.create_task(_scrape_on(race, f"http://{master.http}/metrics"))
            try:
                await _run_workers(race, master.address, keys.worker_key_files)
                await _scrape(race, f"http://{master.http}/metrics")
            finally:
                scraping.cancel()
                with suppress(asyncio.CancelledError):
                    await scraping


async def run_alone(race: Race) -> None:
    """Train the same model for as many steps with one worker, without gradwire."""
    race.phase, race.is_alone = "one worker alone, for comparison", True
    child = await _start_worker(race, race.alone, {"OMP_NUM_THREADS": "1"}, "--alone", seed=0)
    try:
        _check(race.alone, await child.wait())
    finally:
        await child.stop()


async def _run_workers(race: Race, master: str, key_files: Sequence[Path]) -> None:
    children: list[Child] = []
    waiting: dict[asyncio.Task[int], Progress] = {}
    try:
        for rank, progress in enumerate(race.workers):
            environ = worker_environment(
                rank, len(race.workers), master, key_files[rank], is_whole_run=True
            )
            environ["GRADWIRE_DATAGRAM_BYTES"] = str(DATAGRAM_BYTES)
            child = await _start_worker(race, progress, environ, seed=rank)
            children.append(child)
            waiting[asyncio.create_task(child.wait())] = progress
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                status = task.result()
                _check(waiting.pop(task), status)
    finally:
        await asyncio.gather(*(child.stop() for child in children))
        await asyncio.gather(*waiting, return_exceptions=True)


async def _start_worker(
    race: Race, progress: Progress, environ: dict[str, str], *options: str, seed: int
) -> Child:
    arguments = ["--steps", str(race.steps), "--density", str(race.density)]
    arguments += ["--seed", str(seed), "--save", str(race.saved(progress)), *options]
    return await Child.start(
        [sys.executable, "-m", "gradwire.cli.demo.train", *arguments],
        environ=environ,
        on_stdout=progress.on_stdout,
        on_stderr=progress.on_stderr,
    )


def _check(progress: Progress, status: int) -> None:
    if status:
        said = "\n".join(progress.messages)
        raise GradwireError(f"{progress.name} ended with status {status}:\n{said}")


async def _scrape_on(race: Race, url: str) -> None:
    while True:
        with suppress(aiohttp.ClientError):
            await _scrape(race, url)
        await asyncio.sleep(SCRAPE_SECONDS)


async def _scrape(race: Race, url: str) -> None:
    """Read the master's metrics, as Prometheus does."""
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
        text = await response.text()
    for line in text.splitlines():
        if line.startswith("gradwire_"):
            name, _, value = line.rpartition(" ")
            race.metrics[name.removesuffix(OF_RUN)] = float(value)
    step = sum(worker.step for worker in race.workers) / len(race.workers)
    race.bytes_by_step.append((step, race.bytes_sent))


def run_all(race: Race, on_tick: Callable[[], None], tick_seconds: float) -> None:
    """Run both parts, and call `on_tick` every `tick_seconds`.

    Ctrl-C, SIGTERM and a closed terminal end this function and all its processes.
    """

    async def run_parts() -> None:
        ticking = asyncio.create_task(_tick(on_tick, tick_seconds))
        try:
            await run_together(race)
            await run_alone(race)
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking

    run_until_signal(run_parts())


async def _tick(on_tick: Callable[[], None], seconds: float) -> None:
    while True:
        on_tick()
        await asyncio.sleep(seconds)
