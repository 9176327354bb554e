"""``gradwire run``: a master and workers on this machine."""

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final, Literal, TextIO

import typer

from gradwire.cli.launch.ends import SIGNALLED, how
from gradwire.cli.launch.gpus import about_gpus, gpu_of, visible_gpus
from gradwire.cli.launch.keys import local_keys
from gradwire.cli.launch.lasting_master import (
    DEATHS_MAX,
    DEATHS_SECONDS,
    LastingMaster,
    lasting_master,
)
from gradwire.cli.launch.processes import (
    Child,
    master_options,
    threads_of_each,
    worker_environment,
)
from gradwire.cli.launch.signals import handle_ending_signals
from gradwire.errors import UsageError
from gradwire_protocol.crypto.keys import WorkerKey
from gradwire_udp.files.keys import read_keys

COLOURS: Final = (36, 33, 32, 35, 34, 31)
"""ANSI colours of the prefixes, by rank."""

LOOPBACK: Final = "127.0.0.1"

OnFailure = Literal["stop", "continue", "restart"]


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...",
            help="What every worker runs, with its own options.",
            show_default=False,
        ),
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
            help="Join a master that runs already, instead of starting one.",
        ),
    ] = None,
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
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            help="What to do when a worker fails: 'stop' stops the others, 'continue' lets them go "
            "on, 'restart' starts it again, unless another one is done already, and stops all if "
            "it fails three times within a minute."
        ),
    ] = "stop",
) -> None:
    """Start a master and local workers, and show what they print, each line with its rank.

    What stands behind the command, as in `gradwire run -n 2 python train.py -n 5`, belongs to the
    command. Every worker finds the master's address in GRADWIRE_MASTER, and its place on this
    machine in LOCAL_RANK. Without --master the run has no other workers: each also finds its place
    in RANK and WORLD_SIZE, and a script that calls torch.distributed.init_process_group as well
    finds MASTER_ADDR and a free MASTER_PORT. The command ends when all workers have ended. When a
    worker fails, it stops the others, and ends with the exit status of that worker, unless
    --on-failure says otherwise: where the others go on, the status is 0 if one of them succeeds. A
    master that dies is started again, at the same port and with the same keys, and the workers go
    on; one that dies three times within a minute ends the run. Ctrl-C and SIGTERM are passed on to
    the workers; a worker that has not ended 10 seconds after SIGTERM is killed. Processes that a
    worker has left running in its process group end with it. Master and workers get new keys for
    every launch, so that no other user of this machine can join.
    """
    launcher = Launcher(command, workers, one_gpu_each=one_gpu_each, on_failure=on_failure)
    if master is not None:
        _check_key(key_file, workers)
        work = launcher.run(master, [key_file] * workers, is_whole_run=False)
    else:
        work = launcher.run_with_master(master_options(listen, http, os.environ), key_file)
    raise typer.Exit(asyncio.run(launcher.supervise(work)))


def _check_key(key_file: Path | None, workers: int) -> None:
    """Refuse one key for several workers: the master keeps only the newest worker of a key."""
    if workers > 1 and key_file is not None and isinstance(read_keys(key_file), WorkerKey):
        raise UsageError(
            f"{key_file} is the key of one worker, and these are {workers}: each would take the "
            "place of the one before. Start one (-n 1), or give a run key, from which each makes a "
            "key of its own"
        )


class Launcher:
    """Runs workers and passes on their output."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        *,
        one_gpu_each: bool = False,
        on_failure: OnFailure = "stop",
    ) -> None:
        self._command = command
        self._on_failure = on_failure
        self._failures: dict[int, deque[float]] = {}
        """By rank: when it failed last."""
        self._gpus = visible_gpus(os.environ)
        self._one_gpu_each = one_gpu_each
        self._about_gpus = about_gpus(self._gpus, workers, one_each=one_gpu_each)
        self._workers = workers
        self._children: list[Child] = []
        self._environs: list[Mapping[str, str]] = []
        """By rank: the variables of a worker."""
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

    async def run_with_master(self, options: Sequence[str], key_file: Path | None) -> int:
        """Run the workers with a master of their own; return the exit status."""
        printer = _printer(sys.stderr, "master")
        with local_keys(self._workers, key_file) as keys:
            async with lasting_master(
                options, keys.master_environment, printer, _say, _say
            ) as master:
                first = master.child
                served = f", metrics at http://{first.http}/metrics" if first.http else ""
                _say(f"master at {first.address}{served}")
                work = self.run(first.address, keys.worker_key_files, is_whole_run=True)
                return await _while_it_lasts(master, work)

    async def run(
        self, master: str, key_files: Sequence[Path | None], *, is_whole_run: bool
    ) -> int:
        """Run the workers; return the exit status of the first one that failed, or 0."""
        meeting_place = process_group_address(os.environ) if is_whole_run else {}
        if self._workers > 1 and "OMP_NUM_THREADS" not in os.environ:
            threads = threads_of_each(self._workers)
            _say(
                f"each of {self._workers} workers computes with {threads} of {os.cpu_count()} "
                "processors; set OMP_NUM_THREADS for another number"
            )
        if self._about_gpus is not None:
            _say(self._about_gpus)
        try:
            for rank in range(self._workers):
                environ = worker_environment(
                    rank, self._workers, master, key_files[rank], is_whole_run=is_whole_run
                )
                if self._one_gpu_each:
                    environ |= gpu_of(rank, self._gpus)
                self._environs.append(environ | meeting_place)
                self._children.append(await self._start(rank))
            self._all_started = True
            return await self._wait()
        finally:
            await self._stop_all()

    async def _start(self, rank: int) -> Child:
        try:
            return await Child.start(
                self._command,
                environ=self._environs[rank],
                on_stdout=_printer(sys.stdout, str(rank)),
                on_stderr=_printer(sys.stderr, str(rank)),
            )
        except OSError as error:
            raise UsageError(f"cannot run {self._command[0]!r}: {error.strerror}") from None

    async def _wait(self) -> int:
        """Wait for the workers, and do what is wanted when one fails; return the exit status."""
        waiting = {asyncio.create_task(c.wait()): i for i, c in enumerate(self._children)}
        first_failure, one_succeeded = 0, False
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    status = task.result()
                    rank = waiting.pop(task)
                    one_succeeded |= not status
                    if not status or (first_failure and self._on_failure != "continue"):
                        continue
                    if not one_succeeded and self._starts_again(rank):
                        _say(f"rank {rank} {how(status)}: it is started again")
                        child = self._children[rank] = await self._start(rank)
                        if self._signals:  # it came while this one started
                            is_first = len(self._signals) == 1
                            self._pass_on(self._signals[0] if is_first else signal.SIGKILL, [child])
                        waiting[asyncio.create_task(child.wait())] = rank
                        continue
                    first_failure = first_failure or status
                    goes_on = self._on_failure == "continue" and waiting and not self._signals
                    rest = f": {len(waiting)} of {self._workers} go on" if goes_on else ""
                    if status - SIGNALLED not in self._signals:
                        _say(f"rank {rank} {how(status)}{rest}")
                    if not goes_on:
                        await self._stop_all()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if self._on_failure == "continue" and one_succeeded and not self._signals:
            return 0
        return first_failure

    def _starts_again(self, rank: int) -> bool:
        """Note that a worker has failed; return whether it is to be started again."""
        if self._on_failure != "restart" or self._signals:
            return False
        failures = self._failures.setdefault(rank, deque(maxlen=DEATHS_MAX))
        failures.append(monotonic())
        again_and_again = len(failures) == DEATHS_MAX
        return not (again_and_again and failures[-1] - failures[0] <= DEATHS_SECONDS)

    async def _stop_all(self) -> None:
        await asyncio.gather(*(child.stop() for child in self._children))

    def _on_signal(self, number: int, task: asyncio.Task[int]) -> None:
        """Pass a signal on to the workers; send them SIGKILL at the second one."""
        self._signals.append(number)
        is_first = len(self._signals) == 1
        if is_first and self._all_started:
            name = signal.Signals(number).name
            once_more = " (once more kills them)" if number == signal.SIGINT else ""
            with suppress(BrokenPipeError):
                _say(f"{name} is passed on to the workers, which end now{once_more}")
        if is_first and not self._all_started:
            task.cancel()
        else:
            self._pass_on(number if is_first else signal.SIGKILL, self._children)

    def _pass_on(self, number: int, children: Sequence[Child]) -> None:
        for child in children:
            child.send_signal(number)
        if number == signal.SIGTERM:
            self._stopping = asyncio.create_task(self._stop_all())


async def _while_it_lasts(master: LastingMaster, work: Coroutine[Any, Any, int]) -> int:
    """Return what workers end with; stop them when their master is given up.

    Raises the `MasterLostError` then. A master that was told to end has told its workers.
    """
    working = asyncio.ensure_future(work)
    lasting = asyncio.create_task(master.last())
    try:
        await asyncio.wait((working, lasting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            lost = lasting.result()
            if lost.status:
                _say("the master is given up, and the workers are stopped")
                raise lost
            _say(str(lost))
        return await working
    finally:
        for task in (lasting, working):
            task.cancel()
        await asyncio.gather(lasting, working, return_exceptions=True)


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


def _printer(stream: TextIO, name: str) -> Callable[[str], None]:
    """Return a function that writes a line with a prefix."""
    prefix = f"[{name}] "
    if stream.isatty() and "NO_COLOR" not in os.environ:
        colour = COLOURS[int(name) % len(COLOURS)] if name.isdecimal() else 2
        prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
    return lambda line: _write(stream, f"{prefix}{line}\n")


def _say(text: str) -> None:
    """Write a line of the command's own."""
    _write(sys.stderr, f"gradwire run: {text}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # Python would try to write the rest of the buffer at its end, and show a second error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        raise
