"""``--measure train.py``: a training's figures, taken from a short real run of it.

The script runs unchanged, as under ``gradwire run -n 2``: with a master and two workers on this
machine. Their sessions write statistics to files (`stats_file`), which are read meanwhile. When
time is up the workers are told to end, and then the master.
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

from gradwire.cli.launch.keys import local_keys, run_key_file_from_environment
from gradwire.cli.launch.processes import Child, local_master_process, worker_environment
from gradwire.cli.launch.signals import run_until_signal
from gradwire.errors import DeadlineError, GradwireError, UsageError
from gradwire.features.stats_file import VARIABLE

WORKERS: Final = 2

FIRST_STEP_SECONDS_MAX: Final = 300.0
"""Time for a script to load data and compile before its first step."""

POLL_SECONDS: Final = 0.25

SETTLED_SHARE: Final = 0.5
"""Part of the measured time that is left out: thresholds are not found yet, and caches fill."""

USUAL_DENSITY: Final = {"GRADWIRE_WARM_UP_DENSITY": "0"}
"""So that the updates are those of a long run: its first ones are denser."""


class ScriptFailedError(GradwireError):
    """The script ended with another status than 0; its output has been shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of a real run."""

    parameters: int
    step_seconds: float
    """A step without the session."""
    session_seconds: float
    """Time of the session in a step."""
    density: float
    update_bytes: float
    encode_seconds: float
    """For one update."""
    apply_seconds: float | None
    """For one update of a peer; None if none was applied."""
    steps: int
    """Of all workers together."""


def measure(script: Sequence[str], seconds: float, say: Callable[[str], None]) -> Measured:
    """Run a script, given by its path and arguments, and return the figures of its training.

    It trains for at most `seconds` from its first step on. `say` is called with each line that the
    script writes, and with what is being done. `UsageError` if the script does not exist, or makes
    no step with a session; `ScriptFailedError` if it fails; `DeadlineError` if it makes no step in
    `FIRST_STEP_SECONDS_MAX`.
    """
    if not Path(script[0]).is_file():
        raise UsageError(f"--measure={script[0]!r}; there is no such script")
    return run_until_signal(_measure(script, seconds, say))


async def _measure(script: Sequence[str], seconds: float, say: Callable[[str], None]) -> Measured:
    with (
        TemporaryDirectory(prefix="gradwire-estimate-") as folder,
        local_keys(WORKERS, run_key_file_from_environment()) as keys,
    ):
        options = ["--listen", "127.0.0.1:0", "--http", "off"]
        async with local_master_process(
            options, keys.master_environment, _prefixed(say, "master"), say
        ) as master:
            files = [Path(folder, f"rank-{rank}.json") for rank in range(WORKERS)]
            children: list[Child] = []
            try:
                for rank, file in enumerate(files):
                    environ = worker_environment(
                        rank,
                        WORKERS,
                        master.address,
                        keys.worker_key_files[rank],
                        is_whole_run=True,
                    )
                    child = await Child.start(
                        [sys.executable, *script],
                        environ={**environ, **USUAL_DENSITY, VARIABLE: str(file)},
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
    """Wait until the script has ended or trained for long enough."""
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
    """The contents of all workers' files so far."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._read: dict[Path, list[Mapping[str, Any]]] = {file: [] for file in files}

    def read(self) -> None:
        """Read the files again."""
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
        """Return the mean of all workers' figures."""
        return mean_figures([worker_figures(found) for found in self._read.values()])


def worker_figures(found: Sequence[Mapping[str, Any]]) -> Measured:
    """Return one worker's figures, from the contents of its file.

    The first `SETTLED_SHARE` of the time is left out, if there are contents from then. `UsageError`
    if the worker has not made two steps, or has sent nothing.
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
    # A step with many changes sends several updates: they count as one.
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


def mean_figures(workers: Sequence[Measured]) -> Measured:
    """Return the mean of several workers' figures."""
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
