"""``gradwire run``: a master and workers on this machine."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from gradwire.cli.launch.block import Block
from gradwire.cli.launch.gpus import about_gpus, gpu_of, visible_gpus
from gradwire.cli.launch.keys import local_keys
from gradwire.cli.launch.processes import (
    Child,
    local_master_process,
    master_options,
    threads_of_each,
    worker_environment,
)
from gradwire.cli.launch.progress import Progress
from gradwire.cli.launch.signals import handle_ending_signals
from gradwire.errors import UsageError
from gradwire_protocol.crypto.keys import WorkerKey
from gradwire_udp import split_address
from gradwire_udp.files.keys import read_keys

COLOURS: Final = (36, 33, 32, 35, 34, 31)
"""ANSI colours of the prefixes, by rank."""

LOOPBACK: Final = "127.0.0.1"


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="What every worker runs.", show_default=False),
    ],
    *,
    workers: Annotated[
        int, typer.Option("-n", "--workers", min=1, help="Workers to start on this machine.")
    ] = 2,
    master: Annotated[
        str | None,
        typer.Option(
            envvar="GRADWIRE_MASTER",
            metavar="HOST:PORT",
            help="Join a master that runs already, or is announced there, instead of starting one.",
        ),
    ] = None,
    masters: Annotated[
        int,
        typer.Option(
            min=1, help="Masters to start: each has a part of the parameters, and a core to itself."
        ),
    ] = 1,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where the master listens; port 0 is a free one."),
    ] = "127.0.0.1:0",
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Where the master serves /metrics and /healthz, or 'off'."
        ),
    ] = "127.0.0.1:0",
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar="GRADWIRE_KEY_FILE",
            metavar="PATH",
            help="The run key of the master that is started; by default a new one. With --master, "
            "the key of the workers.",
        ),
    ] = None,
    one_gpu_each: Annotated[
        bool,
        typer.Option(
            "--one-gpu-each",
            help="Let each worker see one GPU only, for scripts that train on 'cuda'. Without it, "
            "workers see all, and a worker's is cuda:LOCAL_RANK.",
        ),
    ] = False,
    no_progress: Annotated[
        bool,
        typer.Option("--no-progress", help="Show nothing but what master and workers print."),
    ] = False,
) -> None:
    """Start a master and local workers, and show what they print, each line with its rank.

    Every worker finds the master's address in GRADWIRE_MASTER, and its place on this machine in
    LOCAL_RANK. Without --master the run has no other workers: each also finds its place in RANK and
    WORLD_SIZE, and a script that calls torch.distributed.init_process_group as well finds
    MASTER_ADDR and a free MASTER_PORT. In a terminal, lines at its foot show how far the workers
    are; elsewhere one line does, every 10 seconds. The command ends when all workers have ended.
    When a worker fails, it stops the others, and ends with the exit status of that worker. Ctrl-C
    and SIGTERM are passed on to the workers; a worker that has not ended 10 seconds after SIGTERM
    is killed.
    Processes that a worker has left running in its process group end with it. Master and workers
    get new keys for every launch, so that no other user of this machine can join.
    """
    launcher = Launcher(command, workers, one_gpu_each=one_gpu_each, has_progress=not no_progress)
    if master is not None:
        if masters > 1:
            raise UsageError(
                f"--masters {masters} are to be started, and --master {master} runs already: leave "
                "one of them out"
            )
        _check_key(key_file, workers)
        work = launcher.run(master, [key_file] * workers, is_whole_run=False)
    else:
        if masters > 1:
            _check_ports(masters, {"--listen": listen, "--http": http})
        options = master_options(listen, http, os.environ)
        work = launcher.run_with_masters(masters, options, key_file)
    raise typer.Exit(asyncio.run(launcher.supervise(work)))


def _check_key(key_file: Path | None, workers: int) -> None:
    """Refuse one key for several workers: the master keeps only the newest worker of a key."""
    if workers > 1 and key_file is not None and isinstance(read_keys(key_file), WorkerKey):
        raise UsageError(
            f"{key_file} is the key of one worker, and these are {workers}: each would take the "
            "place of the one before. Start one (-n 1), or give a run key, from which each makes a "
            "key of its own"
        )


def _check_ports(masters: int, options: Mapping[str, str]) -> None:
    """Refuse one port for several masters."""
    for option, address in options.items():
        if address != "off" and split_address(address)[1]:
            raise UsageError(
                f"{option} {address}: {masters} masters cannot listen at one port. With port 0 "
                "each takes a free one, and workers are told which"
            )


class Launcher:
    """Runs workers and passes on their output."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        *,
        one_gpu_each: bool = False,
        has_progress: bool = True,
    ) -> None:
        self._command = command
        self._block = Block()
        self._has_progress = has_progress
        self._pages: list[str] = []
        """Where masters that were started here serve theirs."""
        self._gpus = visible_gpus(os.environ)
        self._one_gpu_each = one_gpu_each
        self._about_gpus = about_gpus(self._gpus, workers, one_each=one_gpu_each)
        self._workers = workers
        self._children: list[Child] = []
        self._all_started = False
        self._signals: list[int] = []
        self._stopping: asyncio.Task[None] | None = None
        """Kills the workers that do not end after SIGTERM."""

    async def supervise(self, work: Coroutine[Any, Any, int]) -> int:
        """Run one of the coroutines below, handle signals meanwhile; return the exit status."""
        task = asyncio.create_task(work)
        handle_ending_signals(lambda number: self._on_signal(number, task))
        try:
            return await task
        except BrokenPipeError:
            # The reader of stdout is gone, as after ``| head``: end as other programs do then.
            return 128 + signal.SIGPIPE
        except asyncio.CancelledError:
            if not self._signals:
                raise
            return 128 + self._signals[0]

    async def run_with_masters(
        self, masters: int, options: Sequence[str], key_file: Path | None
    ) -> int:
        """Run the workers with masters of their own; return the exit status."""
        async with AsyncExitStack() as stack:
            keys = stack.enter_context(local_keys(self._workers, key_file))
            started = []
            for number in range(masters):
                name = "master" if masters == 1 else f"master {number}"
                master = await stack.enter_async_context(
                    local_master_process(
                        options,
                        keys.master_environment,
                        self._printer(sys.stderr, name),
                        self._say,
                    )
                )
                served = f", page at http://{master.http}/" if master.http else ""
                self._say(f"{name} at {master.address}{served}")
                started.append(master.address)
                self._pages += filter(None, [master.http])
            return await self.run(",".join(started), keys.worker_key_files, is_whole_run=True)

    async def run(
        self, master: str, key_files: Sequence[Path | None], *, is_whole_run: bool
    ) -> int:
        """Run the workers; return the exit status of the first one that failed, or 0."""
        meeting_place = process_group_address(os.environ) if is_whole_run else {}
        if self._workers > 1 and "OMP_NUM_THREADS" not in os.environ:
            threads = threads_of_each(self._workers)
            self._say(
                f"each of {self._workers} workers computes with {threads} of {os.cpu_count()} "
                "processors; set OMP_NUM_THREADS for another number"
            )
        if self._about_gpus is not None:
            self._say(self._about_gpus)
        progress = asyncio.create_task(self._show_progress())
        try:
            for rank in range(self._workers):
                environ = worker_environment(
                    rank, self._workers, master, key_files[rank], is_whole_run=is_whole_run
                )
                if self._one_gpu_each:
                    environ |= gpu_of(rank, self._gpus)
                await self._start(environ | meeting_place)
            self._all_started = True
            return await self._wait()
        finally:
            await self._stop_all()
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
            self._block.show([])

    async def _show_progress(self) -> None:
        if self._has_progress:
            await Progress(self._block, self._pages, self._count).show_on()

    def _count(self) -> tuple[int, int]:
        """Return how many workers run, and how many were started."""
        return sum(child.is_running for child in self._children), len(self._children)

    async def _start(self, environ: Mapping[str, str]) -> None:
        rank = environ["LOCAL_RANK"]
        try:
            child = await Child.start(
                self._command,
                environ=environ,
                on_stdout=self._printer(sys.stdout, rank),
                on_stderr=self._printer(sys.stderr, rank),
            )
        except OSError as error:
            raise UsageError(f"cannot run {self._command[0]!r}: {error.strerror}") from None
        self._children.append(child)

    async def _wait(self) -> int:
        """Wait for the workers; stop the others when one fails."""
        waiting = {asyncio.create_task(c.wait()): i for i, c in enumerate(self._children)}
        first_failure = 0
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    status = task.result()
                    rank = waiting.pop(task)
                    if status and not first_failure:
                        first_failure = status
                        self._say(f"rank {rank} ended with status {status}")
                        await self._stop_all()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return first_failure

    async def _stop_all(self) -> None:
        await asyncio.gather(*(child.stop() for child in self._children))

    def _say(self, text: str) -> None:
        self._block.write(sys.stderr, f"gradwire run: {text}\n")

    def _printer(self, stream: TextIO, name: str) -> Callable[[str], None]:
        """Return a function that writes a line with a prefix."""
        prefix = f"[{name}] "
        if stream.isatty() and "NO_COLOR" not in os.environ:
            colour = COLOURS[int(name) % len(COLOURS)] if name.isdecimal() else 2
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        return lambda line: self._block.write(stream, f"{prefix}{line}\n")

    def _on_signal(self, number: int, task: asyncio.Task[int]) -> None:
        """Pass a signal on to the workers; send them SIGKILL at the second one."""
        self._signals.append(number)
        is_first = len(self._signals) == 1
        if is_first and not self._all_started:
            task.cancel()
        else:
            for child in self._children:
                child.send_signal(number if is_first else signal.SIGKILL)
            if number == signal.SIGTERM:
                self._stopping = asyncio.create_task(self._stop_all())


def process_group_address(environ: Mapping[str, str]) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT for a process group of torch.distributed on this machine.

    gradwire needs neither. A script that also calls ``init_process_group`` would fail without them.
    The port is free now, but not reserved until rank 0 of the group listens. Variables that are in
    the environment already are left out.
    """
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    address = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    return {name: value for name, value in address.items() if name not in environ}
