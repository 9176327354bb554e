"""``--measure train.py``: a training's figures, taken from a short real run of it.

The script runs unchanged, as ``gradwire run -n 2`` would run it: a master and two workers on this
machine. Their sessions write what they do to files (`stats_file`), which are read meanwhile. When
time is up the workers are told to end; they leave, and so does the master.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

from gradwire.cli.launch.keys import given_run_key_file, local_keys
from gradwire.cli.launch.processes import Child, local_master, worker_environment
from gradwire.cli.launch.signals import run_until_signal
from gradwire.errors import DeadlineError, GradwireError, UsageError
from gradwire.features.stats_file import VARIABLE

WORKERS: Final = 2

FIRST_STEP_SECONDS_MAX: Final = 300.0
"""How long a script may load data and compile before it makes its first step."""

POLL_SECONDS: Final = 0.25

SETTLED_SHARE: Final = 0.5
"""Of the time that was measured, the part in which thresholds are looked for and caches fill."""


class ScriptFailedError(GradwireError):
    """The script has ended with another status than 0; what it wrote has been shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a real run says of a training."""

    parameters: int
    step_seconds: float
    """Without the session's part."""
    session_seconds: float
    """The session's part of a step."""
    density: float
    update_bytes: float
    encode_seconds: float
    """Of an update."""
    apply_seconds: float | None
    """Of a peer's update; None if none was applied."""
    steps: int
    """Of all workers together."""


def measure(script: Sequence[str], seconds: float, say: Callable[[str], None]) -> Measured:
    """Run a script for a while, and return what its training is like.

    Parameters
    ----------
    script : sequence of str
        Its path and its arguments.
    seconds : float
        How long it trains, beginning with its first step; or until it is done, if that is sooner.
    say : callable
        Called with each line that it writes, and with what is being done.

    Raises
    ------
    UsageError
        If there is no such script, or it makes no step with a session.
    ScriptFailedError
        If it fails.
    DeadlineError
        If it makes no step in `FIRST_STEP_SECONDS_MAX`.
    """
    if not Path(script[0]).is_file():
        raise UsageError(f"--measure={script[0]!r}; there is no such script")
    return run_until_signal(_measure(script, seconds, say))


async def _measure(script: Sequence[str], seconds: float, say: Callable[[str], None]) -> Measured:
    with (
        TemporaryDirectory(prefix="gradwire-estimate-") as folder,
        local_keys(WORKERS, given_run_key_file()) as keys,
    ):
        options = ["--listen", "127.0.0.1:0", "--http", "off"]
        async with local_master(options, keys.of_master, _prefixed(say, "master")) as master:
            files = [Path(folder, f"rank-{rank}.json") for rank in range(WORKERS)]
            children: list[Child] = []
            try:
                for rank, file in enumerate(files):
                    environ = worker_environment(
                        rank, WORKERS, master.address, keys.worker_key_files[rank], of_a_world=True
                    )
                    child = await Child.start(
                        [sys.executable, *script],
                        environ={**environ, VARIABLE: str(file)},
                        on_stdout=_prefixed(say, str(rank)),
                        on_stderr=_prefixed(say, str(rank)),
                    )
                    children.append(child)
                run = _Run(files)
                await _watch(run, children, seconds, say)
            finally:
                await asyncio.gather(*(child.stop() for child in children))
        run.read()
        return run.measured()


async def _watch(
    run: "_Run", children: Sequence[Child], seconds: float, say: Callable[[str], None]
) -> None:
    """Wait until the script is done or has trained for long enough.

    Raises
    ------
    ScriptFailedError
        If it fails.
    """
    waiting = {asyncio.create_task(child.wait()) for child in children}
    patience = monotonic() + FIRST_STEP_SECONDS_MAX
    ends_at: float | None = None
    try:
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if task.result():
                    raise ScriptFailedError(f"the script ended with status {task.result()}")
            run.read()
            if ends_at is None and run.has_begun:
                ends_at = monotonic() + seconds
                say(f"measuring {seconds:g} s of training")
            if ends_at is None and monotonic() > patience:
                raise DeadlineError(
                    f"the script has made no session.step() in {FIRST_STEP_SECONDS_MAX:g} s"
                )
            if ends_at is not None and monotonic() >= ends_at:
                return
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


class _Run:
    """What the files of all workers have said so far."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._read: dict[Path, list[Mapping[str, Any]]] = {file: [] for file in files}

    def read(self) -> None:
        """Read what is new in them."""
        for file, found in self._read.items():
            try:
                now = json.loads(file.read_text(encoding="utf-8"))
            except FileNotFoundError:
                continue
            if not found or found[-1] != now:
                found.append(now)

    @property
    def has_begun(self) -> bool:
        """Whether every worker has made a step."""
        return all(found and found[-1]["stats"]["steps"] for found in self._read.values())

    def measured(self) -> Measured:
        """Return the mean of all workers.

        Raises
        ------
        UsageError
            If there is too little.
        """
        return mean_of([of_worker(found) for found in self._read.values()])


def of_worker(found: Sequence[Mapping[str, Any]]) -> Measured:
    """Return what one worker's numbers say, from one moment to a later one.

    The first part is left out where there are numbers enough: thresholds are looked for then.

    Raises
    ------
    UsageError
        If it has not made two steps or sent nothing.
    """
    if not found or found[-1]["step_seconds"] is None:
        raise UsageError(
            "the script has not made two steps: it has to call session.step() in its loop, and to "
            "run for longer than that (--measure-seconds)"
        )
    last = found[-1]
    settled = [each for each in found if each["seconds"] <= SETTLED_SHARE * last["seconds"]]
    first = settled[-1]["stats"] if settled else dict.fromkeys(last["stats"], 0)

    def between(name: str) -> float:
        return float(last["stats"][name] - first[name])

    steps = between("steps") - between("steps_deferred")
    updates, applied = between("updates_sent"), between("updates_applied")
    if not updates:
        raise UsageError("the script's workers have sent no update: has it trained at all?")
    # A step that changes much sends several, and what is said here of one is said of all of these.
    together = updates / steps
    return Measured(
        parameters=last["parameters"],
        step_seconds=last["step_seconds"],
        session_seconds=last["session_seconds"],
        density=between("elements_sent") / steps / last["parameters"],
        update_bytes=between("bytes_encoded") / steps,
        encode_seconds=between("encode_seconds") / steps,
        apply_seconds=between("apply_seconds") / applied * together if applied else None,
        steps=int(last["stats"]["steps"]),
    )


def mean_of(workers: Sequence[Measured]) -> Measured:
    """Return the mean of what several workers' numbers say."""
    applying = [worker.apply_seconds for worker in workers if worker.apply_seconds is not None]
    return Measured(
        parameters=workers[0].parameters,
        step_seconds=fmean(worker.step_seconds for worker in workers),
        session_seconds=fmean(worker.session_seconds for worker in workers),
        density=fmean(worker.density for worker in workers),
        update_bytes=fmean(worker.update_bytes for worker in workers),
        encode_seconds=fmean(worker.encode_seconds for worker in workers),
        apply_seconds=fmean(applying) if applying else None,
        steps=sum(worker.steps for worker in workers),
    )


def _prefixed(say: Callable[[str], None], name: str) -> Callable[[str], None]:
    return lambda line: say(f"[{name}] {line}")
