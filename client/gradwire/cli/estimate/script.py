"""``--script train.py``: the step and the parameters of a script, from a short run of it.

The script runs unchanged and alone, as the only worker of a master on this machine. What passes
between two calls of `Session.step` is its step without gradwire. So a child process, ``python -m``
this module, has these calls timed, runs the script, and ends it.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

import typer

from gradwire.cli.launch.local_master import local_master
from gradwire.cli.launch.signals import exit_on_signals
from gradwire.errors import UsageError
from gradwire.session.session import Session
from gradwire_udp.files.keys import write_key
from gradwire_udp.process import end_with_parent

STEPS: Final = 40
WARM_UP: Final = 5
"""First steps that do not count: caches fill, and code is compiled."""

SECONDS_MAX: Final = 300
"""Time to load data, compile and train. The steps that a script has made by then count."""

ALONE: Final = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


def measure(script: Path, arguments: Sequence[str]) -> tuple[int, float]:
    """Return how many parameters a script trains, and the median seconds of its step.

    What it prints goes to stderr. `UsageError` if it makes too few steps with a session;
    `typer.Exit` if it fails.
    """
    exit_on_signals()
    typer.echo(f"running {script} alone, for {STEPS} steps or {SECONDS_MAX} s", err=True)
    with TemporaryDirectory(prefix="gradwire-estimate-") as folder, local_master() as master:
        key_file, file = Path(folder, "worker.key"), Path(folder, "steps.json")
        write_key(key_file, master.key("estimate").format() + "\n")
        ours = {"GRADWIRE_MASTER": master.address, "GRADWIRE_KEY_FILE": str(key_file), **ALONE}
        command = [sys.executable, "-m", __name__, str(os.getpid()), str(file), str(script)]
        with subprocess.Popen(  # nosec B603
            [*command, *arguments], env=os.environ | ours, stdout=sys.stderr.fileno()
        ) as child:
            try:
                if child.wait(SECONDS_MAX):
                    typer.echo(f"{script} ended with status {child.returncode}", err=True)
                    raise typer.Exit(1)
            except subprocess.TimeoutExpired:
                typer.echo(f"{SECONDS_MAX} s are over, and {script} is ended", err=True)
            finally:
                child.kill()
        return figures_of(json.loads(file.read_text("utf-8")) if file.exists() else {})


def figures_of(found: dict[str, Any]) -> tuple[int, float]:
    """Return the parameters and the median step from what the child has written."""
    seconds = found.get("seconds", ())
    if len(seconds) < 2:
        raise UsageError(
            f"the script has made {len(seconds)} whole steps, and needs 2: it has to call "
            "session.step() in its loop, and to take the master from the environment"
        )
    return found["parameters"], median(seconds[min(WARM_UP, len(seconds) // 2) :])


def _time_steps(file: Path) -> None:
    """Have the calls of `Session.step` timed; the last one ends the script."""
    step = Session.step
    seconds: list[float] = []
    ended: float | None = None

    def timed_step(session: Session) -> None:
        nonlocal ended
        if ended is not None:
            seconds.append(perf_counter() - ended)
            parameters = session._participant.shared.parameters.vector.size
            whole = file.with_suffix(".new")  # it may be killed while it writes
            whole.write_text(json.dumps({"parameters": parameters, "seconds": seconds}), "utf-8")
            whole.replace(file)
            if len(seconds) % 8 == 1:
                sys.stderr.write(f"step {len(seconds)} took {seconds[-1]:.3g} s\n")
        if len(seconds) == STEPS:
            session.close("measured")
            raise SystemExit
        step(session)
        ended = perf_counter()

    Session.step = timed_step  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    parent, name, *sys.argv = sys.argv[1:]
    end_with_parent(int(parent), signal.SIGKILL)
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    _time_steps(Path(name))
    runpy.run_path(sys.argv[0], run_name="__main__")
