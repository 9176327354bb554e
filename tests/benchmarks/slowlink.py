"""14.6 million parameters, two workers, and 100 Mbit/s for both: gradwire beside its rivals.

Two processes of one thread each, and gradwire's master, in a network namespace whose loopback
passes 100 Mbit/s, for all of them and both ways together. They train the same MLP on the same
handwritten digits, batch 8 each: by DistributedDataParallel on gloo, dense, with the fp16 hook, and
with PowerSGD's of rank 1 and 4; by gradwire; and with no communication at all, which is what the
machine can do. Bytes are what the loopback has carried, headers and all.

The clock of every method begins after its first two steps, for which the link is not slow:
PowerSGD sends everything in them, and would take a third of the time for that.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Picture

from benchmarks.figures import Figure, at_least, below, beside, machine, within
from benchmarks.programs import Program
from benchmarks.slowlink_worker import (
    ALONE,
    DENSE,
    FP16,
    GRADWIRE,
    POWER_SGD,
    WORKERS,
)
from support.local_master import MasterProcess
from support.namespaces import Machine, ip, unconnected_machines

RATE: Final = "100mbit"
QUEUE: Final = ("burst", "128kb", "latency", "100ms")
"""A packet of the loopback may be 64 KiB."""

PACE_SECONDS: Final = 6.0
PACE_ROUNDS: Final = 3
"""How long each quick method trains to find out how quick, and how often, in turn."""

SECONDS: Final = 60.0
WINDOW_SECONDS: Final = 10.0
"""Losses of batches are averaged over this."""

RIVALS: Final = (DENSE, FP16, *POWER_SGD)
QUICK: Final = (ALONE, GRADWIRE, *POWER_SGD)
SLOW: Final = (DENSE, FP16)

DENSITY: Final = 0.001
"""What gradwire aims at. An update then takes 23 KB, and is on the link four times per step: from
two workers to the master, and from the master to the other one."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """How a method trains: plain SGD with this learning rate and momentum."""

    rate: float
    momentum: float = 0.0


OPTIMIZERS: Final = {
    ALONE: Optimizer(0.05),
    GRADWIRE: Optimizer(0.05),
    DENSE: Optimizer(0.2),
    FP16: Optimizer(0.2),
    "powersgd-1": Optimizer(0.1),
    "powersgd-4": Optimizer(0.1),
}
"""What was best for about as many steps as a minute gives, of a small grid with batch 16 in one
process: loss 2.16, 2.05, 2.07 and 2.26 after 8 steps at 0.1, 0.2, 0.4 and 0.8; 1.95, 1.57, 1.99 and
5.49 after 15; 0.17, 1.22, 1.19 and none at all after 120, and 0.32 at 0.02 with momentum 0.9.
Workers of gradwire add up their steps, so half the rate is the same for them."""

PACE_AIM: Final = 1.5
ALONE_AIM: Final = 0.85
MEGABYTES_AIM: Final = 0.5


@dataclass(frozen=True, slots=True)
class Training:
    """What came of training for some seconds."""

    steps_per_second: float
    """Of one worker."""
    megabytes_per_step: float
    """Of all workers."""
    times: Sequence[float]
    """When the first worker had made its steps."""
    losses: Sequence[float]
    """Of the batches of these."""
    train_loss: float
    """Of everything that is trained on, after the last step."""
    held_out_loss: float


def run() -> list[Figure]:
    """Measure."""
    return measure(SECONDS, PACE_SECONDS, PACE_ROUNDS)


def measure(seconds: float, pace_seconds: float, rounds: int) -> list[Figure]:
    """Measure with so many seconds of training."""
    paces: dict[str, list[Training]] = {method: [] for method in QUICK}
    for _ in range(rounds):
        for method in QUICK:
            paces[method].append(train(method, pace_seconds))
    long = {method: train(method, seconds) for method in (GRADWIRE, *RIVALS)}
    return figures_of(paces, long, seconds)


def figures_of(
    paces: Mapping[str, Sequence[Training]], long: Mapping[str, Training], seconds: float
) -> list[Figure]:
    """Compare.

    Parameters
    ----------
    paces : mapping
        For each quick method, what came of training for a short time, as often as that was done.
    long : mapping
        For each method but the one that does not communicate, what came of `seconds` of it.
    seconds : float
    """
    rounds = len(paces[GRADWIRE])
    pace = {
        method: median(training.steps_per_second for training in paces[method]) for method in QUICK
    } | {method: long[method].steps_per_second for method in SLOW}
    return [
        *_paces(pace, rounds),
        *_sizes({method: long[method].megabytes_per_step for method in long}),
        *_outcomes(long, seconds),
        *_curves(long, seconds),
    ]


def _paces(pace: Mapping[str, float], rounds: int) -> list[Figure]:
    best, ours = max(POWER_SGD, key=pace.__getitem__), pace[GRADWIRE]
    figures = [
        at_least("steps per second, against the best", ours, "/s", best, pace[best], aim=PACE_AIM,
                 runs=rounds),
        at_least("steps per second, against the machine", ours, "/s", "no communication",
                 pace[ALONE], aim=ALONE_AIM, runs=rounds),
    ]  # fmt: skip
    return figures + [
        beside("seconds per step", 1 / ours, "s", rival, 1 / pace[rival],
               runs=1 if rival in SLOW else rounds)
        for rival in RIVALS
    ]  # fmt: skip


def _sizes(sizes: Mapping[str, float]) -> list[Figure]:
    ours = sizes[GRADWIRE]
    smallest = min(RIVALS, key=sizes.__getitem__)
    return [
        within("per step and for both workers, against the least", ours, "MB", smallest,
               sizes[smallest], aim=MEGABYTES_AIM, runs=1),
        *(beside("per step and for both workers", ours, "MB", rival, sizes[rival], runs=1)
          for rival in RIVALS),
    ]  # fmt: skip


def _outcomes(long: Mapping[str, Training], seconds: float) -> list[Figure]:
    ours = long[GRADWIRE]
    return [
        below(f"loss after {seconds:g} s", ours.train_loss, "nats", rival,
              long[rival].train_loss, limit=1.0, runs=1)
        for rival in RIVALS
    ] + [
        beside(f"held-out loss after {seconds:g} s", ours.held_out_loss, "nats", rival,
               long[rival].held_out_loss, runs=1)
        for rival in RIVALS
    ]  # fmt: skip


def _curves(long: Mapping[str, Training], seconds: float) -> list[Figure]:
    figures = []
    for end in _window_ends(seconds):
        ours = _mean_loss(long[GRADWIRE], end)
        for rival in RIVALS:
            loss = _mean_loss(long[rival], end)
            figures.append(beside(_curve_name(end), ours, "nats", rival, loss, runs=1))
    return figures


def _window_ends(seconds: float) -> list[float]:
    return [(index + 1) * WINDOW_SECONDS for index in range(int(seconds / WINDOW_SECONDS))]


def _curve_name(end: float) -> str:
    return f"loss of batches, {end - WINDOW_SECONDS:g} to {end:g} s"


def _mean_loss(training: Training, end: float) -> float:
    """Return the mean loss of the batches of a window; where there is none, of the last before."""
    done = [loss for time, loss in zip(training.times, training.losses, strict=True) if time < end]
    before = sum(time < end - WINDOW_SECONDS for time in training.times)
    return mean(done[before:] or done[-1:] or training.losses[:1])


# One training.


def train(method: str, seconds: float, optimizer: Optimizer | None = None) -> Training:
    """Train with both workers for so many seconds."""
    how = optimizer or OPTIMIZERS[method]
    with ExitStack() as stack:
        link = stack.enter_context(_link())
        folder = stack.enter_context(TemporaryDirectory())
        environ = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        if method == GRADWIRE:
            master = stack.enter_context(MasterProcess(prefix=link.prefix))
            environ["GRADWIRE_MASTER"] = master.address
        workers = [
            stack.enter_context(
                Program(
                    "benchmarks.slowlink_worker",
                    *(method, str(rank), folder, "--seconds", str(seconds)),
                    *("--rate", str(how.rate), "--momentum", str(how.momentum)),
                    *("--density", str(DENSITY)),
                    prefix=link.prefix,
                    environ=environ,
                )
            )
            for rank in range(WORKERS)
        ]
        for worker in workers:
            worker.read()  # it is ready
        _slow_down(link)
        before = _carried(link)
        for worker in workers:
            worker.tell()
        # In step, the others wait for the first one, which does not come any more.
        alone = method in (ALONE, GRADWIRE)
        said = [worker.read() for worker in (workers if alone else workers[:1])]
        carried = _carried(link) - before
        steps = mean(len(each["times"]) for each in said)
        return Training(
            steps_per_second=mean(len(each["times"]) / each["times"][-1] for each in said),
            megabytes_per_step=carried / 1e6 / steps,
            times=said[0]["times"],
            losses=said[0]["losses"],
            train_loss=said[0]["train_loss"],
            held_out_loss=said[0]["held_out_loss"],
        )


@contextmanager
def _link() -> Iterator[Machine]:
    """Make a machine with nothing but a loopback, as fast as it can be."""
    with unconnected_machines() as (link, _):
        ip("-n", link.namespace, "link", "set", "lo", "up")
        yield link


def _slow_down(link: Machine) -> None:
    command = ["tc", "-n", link.namespace, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE]
    subprocess.run([*command, *QUEUE], check=True, capture_output=True)


def _carried(link: Machine) -> int:
    """Return the bytes that the loopback has carried so far."""
    shown = json.loads(ip("-n", link.namespace, "-s", "-j", "link", "show", "lo"))
    return int(shown[0]["stats64"]["tx"]["bytes"])


# The picture.


def draw(figures: list[Figure], folder: Path) -> None:
    """Draw the losses against the seconds."""
    ends = _window_ends(SECONDS)
    picture = Picture(figsize=(7.2, 4.4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for i, method in enumerate((GRADWIRE, *RIVALS)):
        ours = method == GRADWIRE
        rival = RIVALS[0] if ours else method
        points = [
            next(f for f in figures if f.figure == _curve_name(end) and f.rival == rival)
            for end in ends
        ]
        losses = [point.value if ours else point.rival_value for point in points]
        axes.plot(ends, losses, marker="o" if ours else "s", color=f"C{i}", label=method,
                  linewidth=2.5 if ours else 1.5, linestyle="-" if ours else "--")  # fmt: skip
    axes.set_yscale("log")
    axes.grid(which="both", color="0.92")
    axes.set_xlabel("seconds")
    axes.set_ylabel(f"loss of the batches of the last {WINDOW_SECONDS:g} s, nats")
    axes.set_title(
        f"14.6 M parameters, {WORKERS} workers, {RATE} for all of them\n{machine()}", fontsize=9
    )
    picture.legend(fontsize=8, loc="outside lower center", ncols=5)
    picture.savefig(folder / "slow-link.png", dpi=110)
