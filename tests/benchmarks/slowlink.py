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
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.figures import Figure, at_least, below, beside, machine, within
from benchmarks.masters import Master, form
from benchmarks.programs import Program, start_together
from benchmarks.slowlink_methods import ALONE, DENSE, FP16, GRADWIRE, POWER_SGD, WIDTHS, WORKERS
from support.namespaces import Machine, can_have_machines, ip, unconnected_machines

RATE: Final = "100mbit"
QUEUE: Final = ("burst", "128kb", "latency", "100ms")
"""A packet of the loopback may be 64 KiB."""

SLOW: Final = (DENSE, FP16)
"""Methods that are too slow for `Plan.pace_seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    rivals: Sequence[str] = (DENSE, FP16, *POWER_SGD)
    """At least one that sends by PowerSGD."""
    pace_seconds: float = 6.0
    """How long each method that is not slow trains to find out how fast it is."""
    pace_rounds: int = 3
    """How often, in turn."""
    seconds: float = 60.0
    """How long each trains to find out what becomes of it."""
    window_seconds: float = 10.0
    """Losses of batches are averaged over this."""
    widths: Sequence[int] = WIDTHS
    keys: bool = True
    """Whether gradwire's master and workers have keys."""

    @property
    def paced(self) -> Sequence[str]:
        """The methods that are not slow."""
        return (ALONE, GRADWIRE, *(rival for rival in self.rivals if rival not in SLOW))

    @property
    def window_ends(self) -> Sequence[float]:
        """When losses have been averaged."""
        count = int(self.seconds / self.window_seconds)
        return [(index + 1) * self.window_seconds for index in range(count)]


FULL: Final = Plan()
QUICK: Final = Plan(
    rivals=("powersgd-1",),
    pace_seconds=0.2,
    pace_rounds=1,
    seconds=0.2,
    window_seconds=0.1,
    widths=(784, 16, 10),
)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """How a method trains: plain SGD with this learning rate and momentum."""

    rate: float
    momentum: float = 0.0


OPTIMIZERS: Final = {
    ALONE: Optimizer(0.05),
    GRADWIRE: Optimizer(0.1),
    DENSE: Optimizer(0.2),
    FP16: Optimizer(0.2),
    "powersgd-1": Optimizer(0.1),
    "powersgd-4": Optimizer(0.1),
}
"""What was best for about as many steps as a minute gives, of a small grid with batch 16 in one
process: loss 2.16, 2.05, 2.07 and 2.26 after 8 steps at 0.1, 0.2, 0.4 and 0.8; 1.95, 1.57, 1.99 and
5.49 after 15; 0.17, 1.22, 1.19 and none at all after 120, and 0.32 at 0.02 with momentum 0.9."""

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


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    if not can_have_machines():
        print("no network namespaces here: nothing can be slow", file=sys.stderr)
        return []
    paces: dict[str, list[Training]] = {method: [] for method in plan.paced}
    for _ in range(plan.pace_rounds):
        for method in plan.paced:
            paces[method].append(train(plan, method, plan.pace_seconds))
    long = {
        method: paces[method][-1]
        if method in paces and plan.pace_seconds == plan.seconds  # it was as long, as in `QUICK`
        else train(plan, method, plan.seconds)
        for method in (GRADWIRE, *plan.rivals)
    }
    return figures_of(paces, long, plan)


def figures_of(
    paces: Mapping[str, Sequence[Training]], long: Mapping[str, Training], plan: Plan
) -> list[Figure]:
    """Compare.

    Parameters
    ----------
    paces : mapping
        For each of `Plan.paced`, what came of training for a short time, as often as that was done.
    long : mapping
        For gradwire and each rival, what came of `Plan.seconds` of it.
    plan : Plan
    """
    pace = {
        method: median(training.steps_per_second for training in paces[method]) for method in paces
    } | {method: long[method].steps_per_second for method in long if method in SLOW}
    sizes = {method: long[method].megabytes_per_step for method in long}
    figures = [
        *_paces(pace, plan),
        *_sizes(sizes, plan),
        *_outcomes(long, plan),
        *_curves(long, plan),
    ]
    said = form(keys=plan.keys)
    return [replace(figure, figure=f"{figure.figure}, {said}") for figure in figures]


def _paces(pace: Mapping[str, float], plan: Plan) -> list[Figure]:
    rounds = plan.pace_rounds
    low_rank = [rival for rival in plan.rivals if rival in POWER_SGD]
    best, ours = max(low_rank, key=pace.__getitem__), pace[GRADWIRE]
    figures = [
        at_least("steps per second, against the best", ours, "/s", best, pace[best], aim=PACE_AIM,
                 runs=rounds),
        at_least("steps per second, against the machine", ours, "/s", "no communication",
                 pace[ALONE], aim=ALONE_AIM, runs=rounds),
    ]  # fmt: skip
    return figures + [
        beside("seconds per step", 1 / ours, "s", rival, 1 / pace[rival],
               runs=1 if rival in SLOW else rounds)
        for rival in plan.rivals
    ]  # fmt: skip


def _sizes(sizes: Mapping[str, float], plan: Plan) -> list[Figure]:
    ours = sizes[GRADWIRE]
    smallest = min(plan.rivals, key=sizes.__getitem__)
    return [
        within("per step and for both workers, against the least", ours, "MB", smallest,
               sizes[smallest], aim=MEGABYTES_AIM, runs=1),
        *(beside("per step and for both workers", ours, "MB", rival, sizes[rival], runs=1)
          for rival in plan.rivals),
    ]  # fmt: skip


def _outcomes(long: Mapping[str, Training], plan: Plan) -> list[Figure]:
    ours = long[GRADWIRE]
    return [
        below(f"loss after {plan.seconds:g} s", ours.train_loss, "nats", rival,
              long[rival].train_loss, limit=1.0, runs=1)
        for rival in plan.rivals
    ] + [
        beside(f"held-out loss after {plan.seconds:g} s", ours.held_out_loss, "nats", rival,
               long[rival].held_out_loss, runs=1)
        for rival in plan.rivals
    ]  # fmt: skip


def _curves(long: Mapping[str, Training], plan: Plan) -> list[Figure]:
    figures = []
    for end in plan.window_ends:
        ours = _mean_loss(long[GRADWIRE], end, plan)
        for rival in plan.rivals:
            loss = _mean_loss(long[rival], end, plan)
            figures.append(beside(_curve_name(end, plan), ours, "nats", rival, loss, runs=1))
    return figures


def _curve_name(end: float, plan: Plan) -> str:
    return f"loss of batches, {end - plan.window_seconds:g} to {end:g} s"


def _mean_loss(training: Training, end: float, plan: Plan) -> float:
    """Return the mean loss of the batches of a window; where there is none, of the last before."""
    done = [loss for time, loss in zip(training.times, training.losses, strict=True) if time < end]
    before = sum(time < end - plan.window_seconds for time in training.times)
    return mean(done[before:] or done[-1:] or training.losses[:1])


# One training.


def train(plan: Plan, method: str, seconds: float) -> Training:
    """Train with both workers for so many seconds."""
    how = OPTIMIZERS[method]
    with ExitStack() as stack:
        link = stack.enter_context(_link())
        folder = stack.enter_context(TemporaryDirectory())
        environ = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        if method == GRADWIRE:
            master = stack.enter_context(Master(keys=plan.keys, prefix=link.prefix))
            environ |= master.environ()
        workers = start_together(
            stack,
            (
                partial(
                    Program,
                    "benchmarks.slowlink_worker",
                    *(method, str(rank), folder, "--seconds", str(seconds)),
                    *("--rate", str(how.rate), "--momentum", str(how.momentum)),
                    *("--widths", *map(str, plan.widths)),
                    prefix=link.prefix,
                    environ=environ,
                )
                for rank in range(WORKERS)
            ),
        )
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


def draw(figures: list[Figure], folder: Path, plan: Plan) -> None:
    """Draw the losses against the seconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    ends, said = plan.window_ends, form(keys=plan.keys)
    values = {(figure.figure, figure.rival): figure for figure in figures}
    picture = Picture(figsize=(7.2, 4.4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    for i, method in enumerate((GRADWIRE, *plan.rivals)):
        ours = method == GRADWIRE
        rival = plan.rivals[0] if ours else method
        points = [values[f"{_curve_name(end, plan)}, {said}", rival] for end in ends]
        losses = [point.value if ours else point.rival_value for point in points]
        axes.plot(ends, losses, marker="o" if ours else "s", color=f"C{i}", label=method,
                  linewidth=2.5 if ours else 1.5, linestyle="-" if ours else "--")  # fmt: skip
    axes.set_yscale("log")
    axes.grid(which="both", color="0.92")
    axes.set_xlabel("seconds")
    axes.set_ylabel(f"loss of the batches of the last {plan.window_seconds:g} s, nats")
    axes.set_title(
        f"14.6 M parameters, {WORKERS} workers, {RATE} for all of them, {said}\n{machine()}",
        fontsize=9,
    )
    picture.legend(fontsize=8, loc="outside lower center", ncols=5)
    picture.savefig(folder / "slow-link.png", dpi=110)
