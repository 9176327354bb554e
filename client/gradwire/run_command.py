"""``gradwire run``: a master and workers on this machine."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final, TextIO

import typer

from gradwire.errors import UsageError
from gradwire.processes import Child, local_master, worker_environment

COLOURS: Final = (36, 33, 32, 35, 34, 31)
"""ANSI colours of the prefixes, by rank."""


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
) -> None:
    """Start a master and local workers, and show what they print, each line with its rank.

    Every worker finds the master's address in GRADWIRE_MASTER, and its place in RANK, WORLD_SIZE
    and LOCAL_RANK. Ends when all workers have ended, or, with its exit status, when the first one
    fails: the others are then stopped. Ctrl-C is passed on to the workers.
    """
    launcher = Launcher(command, workers)
    if master is not None:
        status = asyncio.run(launcher.run(master, of_a_world=False))
    else:
        status = asyncio.run(launcher.run_with_master(["--listen", listen, "--http", http]))
    raise typer.Exit(status)


class Launcher:
    """Runs workers and passes on what they print.

    Parameters
    ----------
    command : sequence of str
    workers : int
    """

    def __init__(self, command: Sequence[str], workers: int) -> None:
        self._command = command
        self._workers = workers
        self._children: list[Child] = []
        self._signals = 0

    async def run_with_master(self, options: Sequence[str]) -> int:
        """Run the workers with a master of their own; return the exit status."""
        async with local_master(options, _printer(sys.stderr, "master")) as master:
            served = f", metrics at http://{master.http}/metrics" if master.http else ""
            sys.stderr.write(f"gradwire run: master at {master.address}{served}\n")
            return await self.run(master.address, of_a_world=True)

    async def run(self, master: str, *, of_a_world: bool) -> int:
        """Run the workers; return the exit status of the first that failed, or 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._pass_on, number)
        try:
            for rank in range(self._workers):
                await self._start(rank, master, of_a_world=of_a_world)
            return await self._wait()
        finally:
            for child in self._children:
                child.send_signal(signal.SIGKILL)

    async def _start(self, rank: int, master: str, *, of_a_world: bool) -> None:
        environ = worker_environment(rank, self._workers, master, of_a_world=of_a_world)
        try:
            child = await Child.start(
                self._command,
                environ=environ,
                on_stdout=_printer(sys.stdout, str(rank)),
                on_stderr=_printer(sys.stderr, str(rank)),
            )
        except OSError as error:
            raise UsageError(f"cannot run {self._command[0]!r}: {error.strerror}") from None
        self._children.append(child)

    async def _wait(self) -> int:
        """Wait for the workers; stop the others when one fails."""
        waiting = {asyncio.create_task(c.wait()): i for i, c in enumerate(self._children)}
        first_failure = 0
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                rank = waiting.pop(task)
                status = task.result()
                if status and not first_failure:
                    first_failure = status
                    sys.stderr.write(f"gradwire run: rank {rank} ended with status {status}\n")
                    await self._stop_all()
        return first_failure

    async def _stop_all(self) -> None:
        await asyncio.gather(*(c.stop() for c in self._children if c.is_running))

    def _pass_on(self, number: int) -> None:
        """Pass a signal on; insist when it comes again."""
        self._signals += 1
        for child in self._children:
            child.send_signal(number if self._signals == 1 else signal.SIGKILL)


def _printer(stream: TextIO, name: str) -> Callable[[str], None]:
    """Return a function that writes a line with a prefix."""
    prefix = f"[{name}] "
    if stream.isatty() and "NO_COLOR" not in os.environ:
        colour = COLOURS[int(name) % len(COLOURS)] if name.isdecimal() else 2
        prefix = f"\x1b[{colour}m{prefix}\x1b[0m"

    def show(line: str) -> None:
        stream.write(f"{prefix}{line}\n")
        stream.flush()

    return show
