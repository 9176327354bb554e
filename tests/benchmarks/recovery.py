"""What a death costs those who live, on loopback: of the master, of a worker; and what others cost.

A master is killed and started anew at once, while sixteen workers train: the time until an update
is applied somewhere again, from when it listens. A worker is killed: the steps that the others do
not make. One stands still: the memory that the master keeps for it. One joins late: what its
parameters take, beside the same bytes over TCP, and what the others notice of it.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import nan
from statistics import median
from typing import Final, NamedTuple

from benchmarks import late, steps
from benchmarks.figures import Figure, at_most, beside, within
from benchmarks.masters import Master, form
from benchmarks.programs import Program, start_together
from gradwire_server.config import MasterConfig

RESTART_SECONDS_MAX: Final = 60.0
"""Until all workers have applied something again."""

STEP_SECONDS: Final = 0.05
PARAMETERS: Final = 100_000

STILL_CHANGE: Final = 0.1
"""With such changes a worker's updates of 2 million parameters are some 50 KB: in a minute, more
than the master keeps for one worker by far."""

MEMORY_SAMPLES_MIN: Final = 12
MEGABYTE: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    settling_seconds: float = 2.0
    """From when all train until something happens to them."""

    restart_forms: Sequence[bool] = (False, True)
    """Whether there are keys where the master dies."""
    restarts: int = 3
    restart_workers: int = 16
    processes: int = 4
    """That these workers are spread over: as many processes as workers would wait for each other
    rather than for the master."""

    deaths: int = 3
    death_workers: int = 4
    """Besides those that die."""
    death_idle_seconds: float = 2.0
    """Until a worker counts as dead."""
    window_seconds: float = 6.0
    """Around a death, its discovery included; and as long without one."""

    still_seconds: float = 60.0
    still_workers: int = 4
    still_parameters: int = 2_000_000

    joins: int = 7
    join_workers: int = 4
    join_parameters: int = 14_600_000
    join_step_seconds: float = 0.5


FULL: Final = Plan()
QUICK: Final = Plan(
    settling_seconds=0.2,
    restart_forms=(True,),
    restarts=1,
    restart_workers=2,
    processes=1,
    deaths=1,
    death_workers=1,
    death_idle_seconds=0.5,
    window_seconds=0.8,
    still_seconds=0.6,
    still_workers=1,
    still_parameters=20_000,
    joins=1,
    join_workers=1,
    join_parameters=100_000,
    join_step_seconds=0.005,
)


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    return [
        *(figure for keys in plan.restart_forms for figure in _restarts(plan, keys=keys)),
        *_deaths(plan),
        *_still(plan),
        *_late_joins(plan),
    ]


class Step(NamedTuple):
    """One step of a worker."""

    at: float
    """When it ended, by the clock of this machine."""
    seconds: float
    """In `Session.step`."""
    applied: int
    """Updates of others until then."""
    reconnections: int


# The master dies.


def _restarts(plan: Plan, *, keys: bool) -> list[Figure]:
    began_to_listen: list[float] = []
    first: list[float] = []
    every: list[float] = []
    count = plan.restart_workers
    for _ in range(plan.restarts):
        with _cluster(keys=keys) as cluster:
            workers = cluster.workers(count, each=count // plan.processes)
            _let_pass(plan.settling_seconds)
            _steps_of(workers)
            cluster.master.kill()
            executed = time.monotonic()
            cluster.master.start_again()
            listening = time.monotonic()
            back = _back(workers, count)
            began_to_listen.append(listening - executed)
            first.append(min(back) - listening)
            every.append(max(back) - listening)
    what = f"{count} workers {form(keys=keys)}, from the restarted master's listening"
    rival = "its start, until it listens"
    start = median(began_to_listen)
    return [
        within(f"{what} to the first update applied", median(first), "s", rival, start, aim=2,
               runs=plan.restarts),
        beside(f"{what} until each has applied one", median(every), "s", rival, start,
               runs=plan.restarts),
    ]  # fmt: skip


def _back(workers: Sequence[Program], count: int) -> list[float]:
    """Return when each worker has applied an update over a new connection."""
    back: dict[int, float] = {}
    reconnected: dict[int, int] = {}
    deadline = time.monotonic() + RESTART_SECONDS_MAX
    while len(back) < count:
        assert time.monotonic() < deadline, f"{count - len(back)} workers are not back"
        _let_pass(0.2)
        for worker, made in enumerate(_steps_of(workers)):
            for step in made:
                if not step.reconnections or worker in back:
                    continue
                if step.applied > reconnected.setdefault(worker, step.applied):
                    back[worker] = step.at
    return list(back.values())


# A worker dies.


def _deaths(plan: Plan) -> list[Figure]:
    quiet: list[float] = []
    around: list[float] = []
    lost, made = 0, 0
    options = ("--idle-timeout-seconds", str(plan.death_idle_seconds))
    with _cluster(*options) as cluster:
        workers = cluster.workers(plan.death_workers + plan.deaths)
        others, dying = workers[plan.deaths :], workers[: plan.deaths]
        _let_pass(plan.settling_seconds)
        for victim in dying:
            for gaps in (quiet, around):
                _steps_of(others)
                if gaps is around:
                    victim.kill()
                _let_pass(plan.window_seconds)
                taken = _steps_of(others)
                gaps.append(max(_longest_gap(steps) for steps in taken))
            made += min(map(len, taken))
            lost += max(0, int(around[-1] / STEP_SECONDS) - int(quiet[-1] / STEP_SECONDS))
    who = (f"steps of {1e3 * STEP_SECONDS:.0f} ms of {plan.death_workers} workers when another is "
           "killed")  # fmt: skip
    return [
        within(f"{who}: lost", lost, "steps", "made", made, aim=0, runs=plan.deaths),
        beside(f"{who}: longest gap", 1e3 * median(around), "ms", "when nobody is",
               1e3 * median(quiet), runs=plan.deaths),
    ]  # fmt: skip


def _longest_gap(made: Sequence[Step]) -> float:
    return max(later.at - step.at for step, later in pairwise(made))


# A worker stands still.


def _still(plan: Plan) -> list[Figure]:
    seconds = plan.still_seconds
    options = ("--idle-timeout-seconds", str(2 * seconds))
    with _cluster(*options, idle_seconds=2 * seconds) as cluster:
        workers = cluster.workers(plan.still_workers, plan.still_parameters, change=STILL_CHANGE)
        while not _is_full(quiet := _memory_over(cluster.master, seconds)):
            pass  # what is kept for workers that come back is still growing
        os.kill(workers[0].pid, signal.SIGSTOP)
        try:
            still = _memory_over(cluster.master, seconds)
        finally:
            os.kill(workers[0].pid, signal.SIGCONT)
    third = len(still) // 3
    # What is queued for it, and the two sums in place of what there is no room for.
    bound = (MasterConfig().relay_backlog_bytes_max + 2 * 4 * plan.still_parameters) / MEGABYTE
    what = f"memory of the master with a worker that stands still for {seconds:.0f} s"
    return [
        within(f"{what}: more than before", max(0.0, max(still) - max(quiet)) / MEGABYTE, "MB",
               "before", max(quiet) / MEGABYTE, aim=round(bound, 1), runs=1),
        at_most(f"{what}: at most in the last third", max(still[-third:]) / MEGABYTE, "MB",
                "in the second third", max(still[third:-third]) / MEGABYTE, aim=1.05, runs=1),
    ]  # fmt: skip


def _memory_over(master: Master, seconds: float) -> list[float]:
    """Return what the master takes, as time passes."""
    seen = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen.append(master.memory())
        _let_pass(min(0.25, seconds / MEMORY_SAMPLES_MIN))
    return seen


def _is_full(seen: Sequence[float]) -> bool:
    """Return whether it does not grow any more."""
    half = len(seen) // 2
    return max(seen[half:]) < 1.02 * max(seen[:half])


# A worker joins late.


def _late_joins(plan: Plan) -> list[Figure]:
    joins: list[float] = []
    tcp: list[float] = []
    beside_joins: list[float] = []
    alone: list[float] = []
    with _cluster() as cluster, _sender(4 * plan.join_parameters) as port:
        workers = cluster.workers(plan.join_workers, plan.join_parameters, plan.join_step_seconds)
        options = ("--parameters", str(plan.join_parameters), "--tcp-port", str(port))
        with Program(late.__name__, *options, environ=cluster.environ()) as joiner:
            for i in range(plan.joins + 1):
                for what, times, busy in (("join", joins, beside_joins), ("tcp", tcp, alone)):
                    _steps_of(workers)
                    joiner.tell()
                    seconds = joiner.read()[what]
                    taken = _steps_of(workers)
                    if i:
                        times.append(seconds)
                        busy += [step.seconds for made in taken for step in made]
    size = f"{4 * plan.join_parameters / MEGABYTE:.1f} MB"
    return [
        at_most(f"late join of {plan.join_parameters / 1e6:g} M parameters, {plan.join_workers} "
                "training", median(joins), "s", f"{size} over TCP", median(tcp), aim=3,
                runs=plan.joins),
        at_most("step of those who train meanwhile", 1e3 * _median(beside_joins), "ms",
                "without a join", 1e3 * _median(alone), aim=1.1, runs=plan.joins),
    ]  # fmt: skip


def _median(seconds: Sequence[float]) -> float:
    """Return the median; not a number where no step was made meanwhile, as in a quick run."""
    return median(seconds) if seconds else nan


@contextmanager
def _sender(size: int) -> Iterator[int]:
    """Send so many bytes to whoever connects; yield the port."""
    payload = bytes(size)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(payload)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


# Processes.


class _Cluster:
    """A master, and workers that train."""

    def __init__(self, stack: ExitStack, master: Master, idle_seconds: float | None) -> None:
        self.master = master
        self._stack = stack
        self._idle_seconds = idle_seconds

    def environ(self) -> dict[str, str]:
        """Return what workers find in their environment."""
        environ = self.master.environ()
        if self._idle_seconds is not None:
            environ["GRADWIRE_IDLE_TIMEOUT_SECONDS"] = str(self._idle_seconds)
        return environ

    def workers(
        self,
        count: int,
        parameters: int = PARAMETERS,
        step_seconds: float = STEP_SECONDS,
        *,
        change: float = 1e-3,
        each: int = 1,
    ) -> list[Program]:
        """Start so many workers, some in each process; return these when all train."""
        options = ("--parameters", str(parameters), "--step-seconds", str(step_seconds),
                   "--change", str(change))  # fmt: skip
        start = partial(
            Program,
            *(steps.__name__, *options, "--workers", str(each)),
            environ=self.environ(),
            quiet=True,
        )
        return start_together(self._stack, [start for _ in range(0, count, each)])


@contextmanager
def _cluster(
    *options: str, keys: bool = False, idle_seconds: float | None = None
) -> Iterator[_Cluster]:
    with ExitStack() as stack:
        master = stack.enter_context(Master(*options, keys=keys, listen=_free_address()))
        yield _Cluster(stack, master, idle_seconds)


def _steps_of(workers: Sequence[Program]) -> list[list[Step]]:
    """Return the steps of each worker in these processes since this was asked last."""
    for worker in workers:
        worker.tell()
    return [[Step(*s) for s in made] for worker in workers for made in worker.read()["steps"]]


def _free_address() -> str:
    """Return one that nobody listens at: the master is started there more than once."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def _let_pass(seconds: float) -> None:
    time.sleep(seconds)
