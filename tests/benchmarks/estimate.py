"""What ``gradwire estimate`` says beside what happens, between two machines with a slow cable.

Workers are processes whose steps take a fixed time, as on an accelerator; costs are measured on
this machine as the command does it. When all have joined, the cable is limited, by `tc`'s tbf on
the side that sends, and left alone until its queues are full; then it is looked at.
"""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.figures import Figure, beside
from benchmarks.programs import Program
from gradwire.estimate.calibration import calibrate
from gradwire.estimate.model import Estimate, Inputs, estimate
from gradwire.estimate.sizes import update_bytes
from gradwire.stats_file import VARIABLE
from support.local_master import MasterProcess
from support.namespaces import DEVICE, Machine, two_machines

PARAMETERS: Final = 1_000_000
UNLIMITED: Final = 1e10
RTT_SECONDS: Final = 0.0005
"""Of the virtual cable, as good as nothing."""
BURST_BYTES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Case:
    """Workers, and what is slow between them."""

    name: str
    step_seconds: float
    density: float
    workers: int
    """On the other machine than the master."""
    up: float = UNLIMITED
    """What all of them send together, in bits per second: each its part."""
    down: float = UNLIMITED
    """What the master sends them."""
    settle_seconds: float = 5.0
    watch_seconds: float = 15.0

    def inputs(self, observed: Mapping[str, float], **known: Any) -> Inputs:
        """Return what the command would be told."""
        density, size = observed["density"], observed["update_bytes"]
        return Inputs(
            step_seconds=observed["step_seconds"],
            parameters=PARAMETERS,
            density=density,
            workers=self.workers,
            link=UNLIMITED,
            link_up=self.up / self.workers,
            master_link=self.down,
            rtt_seconds=RTT_SECONDS,
            size_ratio=size / update_bytes(PARAMETERS, density),
            **known,
        )


CASES: Final = (
    Case("4 workers, nothing is slow", 0.1, 0.01, 4),
    Case("2 workers send 1 Mbit/s each", 0.1, 0.02, 2, up=2e6, settle_seconds=25.0),
    Case(
        "4 workers, their master sends 20 Mbit/s",
        0.1,
        0.05,
        4,
        down=2e7,
        settle_seconds=70.0,
        watch_seconds=30.0,
    ),
)


def run() -> list[Figure]:
    """Measure."""
    figures = []
    for case in CASES:
        observed = observe(case)
        costs = calibrate(PARAMETERS, case.density, codec_threads=1, say=lambda _: None)
        figures += compare(case.name, estimate(case.inputs(observed, costs=costs)), observed)
    return figures


def compare(name: str, predicted: Estimate, observed: Mapping[str, float]) -> list[Figure]:
    """Return what was predicted beside what was observed."""
    wanted = {
        "of linear scaling": (100 * predicted.samples, "linear", "%"),
        "of steps sent": (100 * predicted.sent, "sent", "%"),
        "arrive one by one": (100 * predicted.one_by_one, "one_by_one", "%"),
        "staleness": (predicted.staleness, "staleness", "updates"),
    }
    return [
        beside(f"{name}: {figure}, predicted", value, unit, "observed", observed[key], runs=1)
        for figure, (value, key, unit) in wanted.items()
    ]


def observe(case: Case) -> dict[str, float]:
    """Run a case; return what was seen at its workers."""
    with ExitStack() as stack:
        here, there = stack.enter_context(two_machines())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        master = stack.enter_context(
            MasterProcess("--insecure", listen=f"{here.address}:0", prefix=here.prefix)
        )
        files = [folder / f"{i}.json" for i in range(case.workers)]
        for file in files:
            stack.enter_context(_worker(case, there, master, file))
        _limit(there, case.up)
        _limit(here, case.down)
        time.sleep(case.settle_seconds)
        before = _read(files)
        time.sleep(case.watch_seconds)
        after = _read(files)
    return _observed(before, after)


def _worker(case: Case, machine: Machine, master: MasterProcess, file: Path) -> Program:
    return Program(
        "benchmarks.estimate_worker",
        "--parameters", str(PARAMETERS),
        "--step-seconds", str(case.step_seconds),
        "--density", str(case.density),
        prefix=machine.prefix,
        quiet=True,
        environ={"GRADWIRE_MASTER": master.address, VARIABLE: str(file)},
    )  # fmt: skip


def _limit(machine: Machine, rate: float) -> None:
    """Have a machine send no more than so many bits per second, for as long as it is there."""
    if rate < UNLIMITED:
        limit = f"rate {rate:.0f}bit burst {BURST_BYTES} latency 50ms"
        command = ["tc", "-n", machine.namespace, "qdisc", "add", "dev", DEVICE, "root", "tbf"]
        subprocess.run([*command, *limit.split()], check=True)


def _read(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _observed(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the mean of all workers' numbers, from one moment to the other."""

    def between(name: str) -> float:
        pairs = zip(before, after, strict=True)
        return float(sum(late["stats"][name] - early["stats"][name] for early, late in pairs))

    seconds = sum(b["seconds"] - a["seconds"] for a, b in zip(before, after, strict=True))
    step_seconds = sum(each["step_seconds"] for each in after) / len(after)
    steps, applied = between("steps"), between("updates_applied")
    sent = steps - between("steps_deferred")
    staleness = [each["stats"]["staleness"] for each in after]
    return {
        "step_seconds": step_seconds,
        "density": between("elements_sent") / sent / PARAMETERS,
        "update_bytes": between("bytes_encoded") / sent,
        "linear": 100 * steps * step_seconds / seconds,
        "sent": 100 * sent / steps,
        "one_by_one": 100 * (1 - between("updates_conflated") / applied),
        "staleness": sum(staleness) / len(staleness),
    }
