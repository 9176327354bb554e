"""What ``gradwire estimate`` says beside what happens, between two machines with a slow cable.

Workers are processes whose steps take a fixed time, as on an accelerator; costs are measured on
this machine as the command does it. When all have joined, the cable is limited, by `tc`'s tbf on
the side that sends, and left alone until its queues are full; then it is looked at.
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.figures import Figure, beside
from benchmarks.masters import Master, form
from benchmarks.programs import Program
from gradwire.cli.estimate.calibration import calibrate
from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.model import Estimate, estimate
from gradwire.cli.estimate.sizes import update_bytes
from gradwire.features.stats_file import VARIABLE
from support.namespaces import DEVICE, Machine, can_have_machines, two_machines

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

    def inputs(self, observed: Mapping[str, float], parameters: int, **known: Any) -> Inputs:
        """Return what the command would be told."""
        density, size = observed["density"], observed["update_bytes"]
        return Inputs(
            step_seconds=observed["step_seconds"],
            parameters=parameters,
            density=density,
            workers=self.workers,
            link=UNLIMITED,
            link_up=self.up / self.workers,
            master_link=self.down,
            rtt_seconds=RTT_SECONDS,
            size_ratio=size / update_bytes(parameters, density),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    cases: Sequence[Case] = CASES
    parameters: int = 1_000_000
    keys: bool = True
    """Whether the master and its workers have keys."""


FULL: Final = Plan()
QUICK: Final = Plan(
    cases=(
        Case("2 workers", 0.02, 0.01, 2, up=1e7, down=1e7, settle_seconds=0.5, watch_seconds=1.0),
    ),
    parameters=20_000,
)


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    if not can_have_machines():
        print("no network namespaces here: nothing can be slow", file=sys.stderr)
        return []
    figures = []
    for case in plan.cases:
        observed = observe(case, plan)
        costs = calibrate(plan.parameters, case.density, codec_threads=1, say=lambda _: None)
        predicted = estimate(case.inputs(observed, plan.parameters, costs=costs))
        figures += compare(f"{case.name}, {form(keys=plan.keys)}", predicted, observed)
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


def observe(case: Case, plan: Plan) -> dict[str, float]:
    """Run a case; return what was seen at its workers."""
    with ExitStack() as stack:
        here, there = stack.enter_context(two_machines())
        folder = Path(stack.enter_context(TemporaryDirectory()))
        master = stack.enter_context(
            Master(keys=plan.keys, listen=f"{here.address}:0", prefix=here.prefix)
        )
        files = [folder / f"{i}.json" for i in range(case.workers)]
        for file in files:
            stack.enter_context(_worker(case, plan.parameters, there, master, file))
        _limit(there, case.up)
        _limit(here, case.down)
        time.sleep(case.settle_seconds)
        before = _read(files)
        time.sleep(case.watch_seconds)
        after = _read(files)
    return _observed(before, after, plan.parameters)


def _worker(case: Case, parameters: int, machine: Machine, master: Master, file: Path) -> Program:
    return Program(
        "benchmarks.estimate_worker",
        "--parameters", str(parameters),
        "--step-seconds", str(case.step_seconds),
        "--density", str(case.density),
        prefix=machine.prefix,
        quiet=True,
        environ=master.environ() | {VARIABLE: str(file)},
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
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], parameters: int
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
        "density": between("elements_sent") / sent / parameters,
        "update_bytes": between("bytes_encoded") / sent,
        "linear": 100 * steps * step_seconds / seconds,
        "sent": 100 * sent / steps,
        "one_by_one": 100 * (1 - between("updates_conflated") / applied),
        "staleness": sum(staleness) / len(staleness),
    }
