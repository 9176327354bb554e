"""``gradwire run``: a master and workers on this machine."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from gradwire.cli.launch.master import Master, MasterEndedError, local_keys, operator_token
from gradwire.cli.launch.processes import SIGNALLED, Child, Failures, ending_signals, how
from gradwire.cli.launch.progress import LINE_SECONDS, TERMINAL_SECONDS, Foot, follow
from gradwire.errors import DeadlineError, UsageError
from gradwire_protocol.crypto.keys import WorkerKey
from gradwire_udp.files.keys import read_keys

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
            metavar="HOST:PORT", help="Where the master serves its page and /metrics, or 'off'."
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
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            help="What to do when a worker fails: 'stop' stops the others, 'continue' lets them go "
            "on, 'restart' starts it again. If it fails three times within a minute, all are "
            "stopped, or go on if one of them has already finished."
        ),
    ] = "stop",
) -> None:
    """Start a master and local workers, and show what they print, each line with its rank.

    Options after the command, as in `gradwire run -n 2 python train.py -n 5`, are the command's.

    Every worker finds the master's address in GRADWIRE_MASTER and its place on this machine in
    LOCAL_RANK, so that its GPU is cuda:LOCAL_RANK. Without --master, the run has no other workers:
    each also finds its place in RANK and WORLD_SIZE, and a script that calls
    torch.distributed.init_process_group finds MASTER_ADDR and a free MASTER_PORT.

    A line at the foot of a terminal shows how far the workers are, by what they log; elsewhere one
    appears every 10 seconds.

    The command ends when all workers have ended. When a worker fails, it stops the others and ends
    with that worker's exit status, unless --on-failure says otherwise; where the others go on, the
    status is 0 if one of them succeeds. A master that dies is started again at the same port with
    the same keys, and the workers go on; if it dies three times within a minute, the run ends.
    Ctrl-C and SIGTERM are passed on to the workers; a worker that has not ended 10 seconds after
    SIGTERM is killed. Processes that a worker leaves running in its process group end with it.

    Master and workers get new keys for every launch, so no other user of this machine can join.
    Orders, on the master's page or by `gradwire operate`, take a token; the command names its file.
    """
    launcher = Launcher(command, workers, on_failure=on_failure)
    if master is None:
        work = launcher.run_with_master(listen, http, key_file)
    else:
        _check_key(key_file, workers)
        work = launcher.run(master, [key_file] * workers)
    raise typer.Exit(asyncio.run(launcher.supervise(work)))


def _check_key(key_file: Path | None, workers: int) -> None:
    """Refuse one key for several workers: the master keeps only the newest worker of a key."""
    if workers > 1 and key_file is not None and isinstance(read_keys(key_file), WorkerKey):
        raise UsageError(
            f"{key_file} is the key of one worker, and these are {workers}: start one (-n 1), or "
            "give a run key, from which each makes a key of its own"
        )


class Launcher:
    """Runs workers, with a master or without, and shows what they print."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        *,
        on_failure: OnFailure = "stop",
        steps: int | None = None,
    ) -> None:
        self._command = command
        self._steps = steps
        """How many each worker makes, where that is known."""
        self._workers = workers
        self._on_failure = on_failure
        # More threads than processors would slow all down.
        self._threads = max((os.cpu_count() or 1) // workers, 1)
        self._children: dict[int, Child] = {}
        """The latest process of each rank."""
        self._signals: list[int] = []
        """What was sent to the workers."""
        self._foot = Foot()
        self._say = partial(self._write, sys.stderr, "gradwire run: ")
        self._one_succeeded = False
        self._status = 0
        """Of the first failure."""

    async def supervise(self, work: Coroutine[Any, Any, None]) -> int:
        """Do the work of one of the next two functions; return the exit status."""
        self._working = asyncio.create_task(work)
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        await asyncio.wait([self._working])
        error = None if self._working.cancelled() else self._working.exception()
        while isinstance(error, BaseExceptionGroup):
            [error, *_] = error.exceptions
        if error is not None:
            raise error
        return self._status

    async def run_with_master(self, listen: str, http: str, key_file: Path | None) -> None:
        """Run the workers with a master of their own."""
        show = partial(self._write, sys.stderr, "[master] ")
        with (
            local_keys(self._workers, key_file) as (run_key_file, worker_key_files),
            operator_token() as (new, _),
        ):
            given = os.environ.get("GRADWIRE_HTTP_OPERATOR_TOKEN_FILE")
            token_file = Path(given) if given else new
            options = ["--http-operator-token-file", str(token_file)]
            async with (
                Master(listen, http, run_key_file, show, self._say, options) as master,
                asyncio.TaskGroup() as group,
            ):
                served = f", watch it at http://{master.http}/" if master.http else ""
                self._say(f"master at {master.address}{served}")
                tasks = [group.create_task(self._keep_master(master))]
                if master.http:
                    self._say(f"orders take the token in {token_file}")
                    tasks.append(group.create_task(self._follow(master.http, token_file)))
                await self.run(master.address, worker_key_files, is_whole_run=True)
                for task in tasks:
                    task.cancel()

    async def run(
        self, master: str, key_files: Sequence[Path | None], *, is_whole_run: bool = False
    ) -> None:
        """Run the workers; `is_whole_run` says that the run has no others."""
        if self._workers > 1 and "OMP_NUM_THREADS" not in os.environ:
            self._say(
                f"each of {self._workers} workers computes with {self._threads} of "
                f"{os.cpu_count()} processors; set OMP_NUM_THREADS for another number"
            )
        common = self._environ(master, is_whole_run=is_whole_run)
        async with asyncio.TaskGroup() as group:
            for rank, key_file in enumerate(key_files):
                place = {"LOCAL_RANK": str(rank)}
                if is_whole_run:
                    place["RANK"] = str(rank)
                if key_file is not None:
                    place["GRADWIRE_KEY_FILE"] = str(key_file)
                group.create_task(self._keep_worker(rank, common | place))
        if self._one_succeeded and not self._signals:
            self._status = 0

    def _environ(self, master: str, *, is_whole_run: bool) -> dict[str, str]:
        """Return the variables of all workers: gradwire's, and those of torchrun."""
        defaults = {"OMP_NUM_THREADS": str(self._threads)}
        ours = {
            "GRADWIRE_MASTER": master,
            "GRADWIRE_LAUNCHED": "1",
            "LOCAL_WORLD_SIZE": str(self._workers),
            # Without it, Python would hold back lines that it writes to a pipe.
            "PYTHONUNBUFFERED": "1",
        }
        if is_whole_run:
            # A script that also calls ``init_process_group`` would fail without an address. The
            # port is free now, but not reserved until rank 0 of the group listens.
            with socket.create_server(("127.0.0.1", 0)) as server:
                address, port = server.getsockname()
            defaults |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
            ours["WORLD_SIZE"] = str(self._workers)
        return defaults | os.environ | ours

    async def _follow(self, http: str, token_file: Path) -> None:
        """Show how far the workers are."""
        following = partial(follow, http, token_file, steps=self._steps)
        if sys.stderr.isatty():
            try:
                await following(self._foot.show, TERMINAL_SECONDS)
            finally:
                self._foot.show("")
        else:
            await following(self._say, LINE_SECONDS)

    async def _keep_master(self, master: Master) -> None:
        """Start the master again whenever it dies; its workers train on and come back."""
        failures = Failures()
        while status := await master.child.wait():
            if failures.are_too_many():
                end = f"{how(status)}, for the third time within a minute"
                raise MasterEndedError(status, end, master.last_lines)
            self._say(
                f"the master {how(status)}: it is started again at {master.address}, and the "
                "workers train on and come back"
            )
            with suppress(MasterEndedError, DeadlineError):
                await master.start_again()
                self._say(f"the master is back at {master.address}")
        self._say("the master has ended, as it was told to")

    async def _keep_worker(self, rank: int, environ: Mapping[str, str]) -> None:
        """Run a worker, and start it again where that is wanted."""
        failures = Failures()
        while status := await self._run_worker(rank, environ):
            end = f"rank {rank} {how(status)}"
            is_wanted = self._on_failure == "restart" and not self._signals
            if is_wanted and not self._one_succeeded and not failures.are_too_many():
                self._say(f"{end}: it is started again")
                continue
            if status - SIGNALLED not in self._signals:
                self._say(end)
            self._status = self._status or status
            is_last_try = self._on_failure == "restart" and not self._one_succeeded
            # After a signal all have been told to end, and some may still save.
            if (is_last_try or self._on_failure == "stop") and not self._signals:
                self._end(status)
            return
        self._one_succeeded = True

    async def _run_worker(self, rank: int, environ: Mapping[str, str]) -> int:
        """Run a worker to its end, and stop it where this is cancelled; return its exit status."""
        prefix = f"[{rank}] "
        try:
            child = self._children[rank] = await Child.start(
                self._command,
                environ,
                partial(self._write, sys.stdout, prefix),
                partial(self._write, sys.stderr, prefix),
            )
        except OSError as error:
            raise UsageError(f"cannot run {self._command[0]!r}: {error.strerror}") from None
        for number in self._signals:  # they came while it started
            child.send_signal(number)
        try:
            return await child.wait()
        finally:
            await child.stop()

    def _end(self, status: int) -> None:
        """Stop the workers, and then the master; the first status that is given counts."""
        self._status = self._status or status
        if not self._working.cancelling():
            self._working.cancel()

    def _on_signal(self, number: int) -> None:
        """Pass a signal on to the workers; send them SIGKILL at the second one."""
        if not self._children:
            self._end(SIGNALLED + number)
        elif not self._signals:
            name = signal.Signals(number).name
            once_more = " (once more kills them)" if number == signal.SIGINT else ""
            self._say(f"{name} is passed on to the workers, which end now{once_more}")
        self._signals.append(signal.SIGKILL if self._signals else number)
        for child in self._children.values():
            child.send_signal(self._signals[-1])

    def _write(self, stream: TextIO, prefix: str, line: str) -> None:
        try:
            self._foot.hide()
            stream.write(f"{prefix}{line}\n")
            stream.flush()
            self._foot.show_again()
        except BrokenPipeError:
            # The reader is gone, as after ``| head``: end as other programs do then. Python would
            # try to write the rest of the buffer at its end, and show a second error.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
            self._end(SIGNALLED + signal.SIGPIPE)
