"""How long a user waits: an import, a first and a later join, a launch, and the prompt after it.

Each is measured in a new process, in turn with what stands beside it. *Cold* means that no kernel
was ever compiled here: the cache is an empty folder. A launch is ``gradwire run`` of two workers
that make one step, beside the same script with a master that runs already.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.figures import Figure, beside, within
from benchmarks.masters import Master

CACHE: Final = "NUMBA_CACHE_DIR"
"""Variable that names the folder of compiled kernels."""

IMPORT: Final = """
import json, time
began = time.perf_counter()
import {module}
print(json.dumps(time.perf_counter() - began))
"""

JOIN: Final = """
import json, time
import numpy, gradwire
target = numpy.zeros(1000, numpy.float32)
gradwire.join  # imported before the clock runs
began = time.perf_counter()
session = gradwire.join(target, run=str(began), log_level="warning")
print(json.dumps(time.perf_counter() - began), flush=True)
session.step()
session.finish()
"""

WORKER: Final = """
import time
import numpy, gradwire
with gradwire.join(numpy.zeros(1000, numpy.float32), log_level="warning") as session:
    session.step()
print("ended", time.time(), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    runs: int = 5
    cold_runs: int = 3
    compiles: bool = True
    """Whether what is called cold is: compiling takes far longer than all the rest."""


FULL: Final = Plan()
QUICK: Final = Plan(runs=1, cold_runs=1, compiles=False)


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    with ExitStack() as stack:
        # Without keys, which cost two files and some 100 microseconds; `run` has them always.
        master = stack.enter_context(Master(keys=False))
        folder = Path(stack.enter_context(TemporaryDirectory()))
        return [_imports(plan), *_joins(plan, master, folder), *_launches(plan, folder)]


def _imports(plan: Plan) -> Figure:
    ours, numpy = [], []
    for _ in range(plan.runs + 1):  # the first fills the caches of files
        numpy.append(_seconds(IMPORT.format(module="numpy")))
        ours.append(_seconds(IMPORT.format(module="gradwire")))
    return within("import gradwire", median(ours[1:]), "s", "import numpy", median(numpy[1:]),
                  aim=0.3, runs=plan.runs)  # fmt: skip


def _joins(plan: Plan, master: Master, folder: Path) -> list[Figure]:
    """Join with an empty cache, and then with what that has left there."""
    cold, warm = [], []
    for index in range(plan.cold_runs):
        environ = master.environ() | _cache(plan, folder, index)
        cold.append(_seconds(JOIN, environ))
        warm += [_seconds(JOIN, environ) for _ in range(2)]
    return [
        within("first join, cold", median(cold), "s", "warm", median(warm), aim=5,
               runs=plan.cold_runs),
        within("join, warm", median(warm), "s", "cold", median(cold), aim=1,
               runs=2 * plan.cold_runs),
    ]  # fmt: skip


def _launches(plan: Plan, folder: Path) -> list[Figure]:
    """Launch two workers; return what that takes, and how long after them the prompt comes."""
    script = folder / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    environ = {**os.environ, **_cache(plan, folder, 0)}
    taken, after, floor = [], [], []
    for index in range(plan.runs + 1):
        began = time.time()
        written = _output([sys.executable, "-m", "gradwire", "run", "-n", "2", "--", sys.executable,
                           str(script)], environ)  # fmt: skip
        over = time.time()
        last = max(float(line.rpartition(" ")[2]) for line in written if "ended" in line)
        began_alone = time.time()
        _output([sys.executable, "-c", "import numpy, gradwire; gradwire.join"], environ)
        if index:  # the first may compile
            taken.append(over - began)
            after.append(over - last)
            floor.append(time.time() - began_alone)
    return [
        beside("gradwire run, two workers and one step", median(taken), "s",
               "a process that imports gradwire.join", median(floor), runs=plan.runs),
        within("prompt after the last worker of gradwire run", median(after), "s",
               "the whole launch", median(taken), aim=1, runs=plan.runs),
    ]  # fmt: skip


def _cache(plan: Plan, folder: Path, index: int) -> dict[str, str]:
    """Return the variable of a cache that is empty at first."""
    return {CACHE: str(folder / f"kernels{index}")} if plan.compiles else {}


def _seconds(code: str, environ: Mapping[str, str] | None = None) -> float:
    """Run a program that writes how long something took."""
    [line] = _output([sys.executable, "-c", code], {**os.environ, **(environ or {})})
    return float(json.loads(line))


def _output(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    done = subprocess.run(
        command, env=environ, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout.splitlines()
