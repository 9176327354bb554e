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
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from benchmarks import late, steps
from benchmarks.figures import Figure, at_most, beside, within
from benchmarks.programs import Program
from gradwire_protocol import RunKey
from gradwire_server.config import MasterConfig

RESTARTS: Final = 3
RESTART_WORKERS: Final = 16
RESTART_SECONDS_MAX: Final = 60.0
"""Until all sixteen have applied something again."""

PROCESSES: Final = 4
"""That sixteen workers are spread over: as many processes as workers would wait for each other
rather than for the master."""

STEP_SECONDS: Final = 0.05
PARAMETERS: Final = 100_000

DEATHS: Final = 3
DEATH_WORKERS: Final = 4
DEATH_IDLE_SECONDS: Final = 2.0
WINDOW_SECONDS: Final = 6.0
"""Around a death, its discovery included; and as long without one."""

STILL_SECONDS: Final = 60.0
STILL_WORKERS: Final = 4
STILL_PARAMETERS: Final = 2_000_000
STILL_CHANGE: Final = 0.1
"""With such changes a worker's updates are some 50 KB: in a minute, more than the master keeps for
one worker by far."""

MEGABYTE: Final = 1e6

JOINS: Final = 7
JOIN_WORKERS: Final = 4
JOIN_PARAMETERS: Final = 14_600_000
JOIN_STEP_SECONDS: Final = 0.5


def run() -> list[Figure]:
    """Measure."""
    return [
        *_restarts(sealed=False), *_restarts(sealed=True), *_deaths(), *_still(), *_late_joins(),
    ]  # fmt: skip


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


def _restarts(*, sealed: bool) -> list[Figure]:
    began_to_listen: list[float] = []
    first: list[float] = []
    every: list[float] = []
    for _ in range(RESTARTS):
        with _cluster(sealed=sealed) as cluster:
            workers = cluster.workers(RESTART_WORKERS, each=RESTART_WORKERS // PROCESSES)
            _let_pass(2.0)
            _steps_of(workers)
            cluster.kill_master()
            executed = time.monotonic()
            cluster.start_master()
            listening = time.monotonic()
            back = _back(workers)
            began_to_listen.append(listening - executed)
            first.append(min(back) - listening)
            every.append(max(back) - listening)
    keys = "with keys" if sealed else "without keys"
    what = f"{RESTART_WORKERS} workers {keys}, from the restarted master's listening"
    rival = "its start, until it listens"
    start = median(began_to_listen)
    return [
        within(f"{what} to the first update applied", median(first), "s", rival, start, aim=2,
               runs=RESTARTS),
        beside(f"{what} until each has applied one", median(every), "s", rival, start,
               runs=RESTARTS),
    ]  # fmt: skip


def _back(workers: Sequence[Program]) -> list[float]:
    """Return when each worker has applied an update over a new connection."""
    back: dict[int, float] = {}
    reconnected: dict[int, int] = {}
    deadline = time.monotonic() + RESTART_SECONDS_MAX
    while len(back) < RESTART_WORKERS:
        assert time.monotonic() < deadline, f"{RESTART_WORKERS - len(back)} workers are not back"
        _let_pass(0.2)
        for worker, made in enumerate(_steps_of(workers)):
            for step in made:
                if not step.reconnections or worker in back:
                    continue
                if step.applied > reconnected.setdefault(worker, step.applied):
                    back[worker] = step.at
    return list(back.values())


# A worker dies.


def _deaths() -> list[Figure]:
    quiet: list[float] = []
    around: list[float] = []
    lost, made = 0, 0
    options = ("--idle-timeout-seconds", str(DEATH_IDLE_SECONDS))
    with _cluster(*options) as cluster:
        workers = cluster.workers(DEATH_WORKERS + DEATHS)
        others, dying = workers[DEATHS:], workers[:DEATHS]
        _let_pass(2.0)
        for victim in dying:
            for gaps in (quiet, around):
                _steps_of(others)
                if gaps is around:
                    victim.kill()
                _let_pass(WINDOW_SECONDS)
                taken = _steps_of(others)
                gaps.append(max(_longest_gap(steps) for steps in taken))
            made += min(map(len, taken))
            lost += max(0, int(around[-1] / STEP_SECONDS) - int(quiet[-1] / STEP_SECONDS))
    who = f"steps of {1e3 * STEP_SECONDS:.0f} ms of {DEATH_WORKERS} workers when another is killed"
    return [
        within(f"{who}: lost", lost, "steps", "made", made, aim=0, runs=DEATHS),
        beside(f"{who}: longest gap", 1e3 * median(around), "ms", "when nobody is",
               1e3 * median(quiet), runs=DEATHS),
    ]  # fmt: skip


def _longest_gap(made: Sequence[Step]) -> float:
    return max(later.at - step.at for step, later in pairwise(made))


# A worker stands still.


def _still() -> list[Figure]:
    options = ("--idle-timeout-seconds", str(2 * STILL_SECONDS))
    with _cluster(*options, idle_seconds=2 * STILL_SECONDS) as cluster:
        workers = cluster.workers(STILL_WORKERS, STILL_PARAMETERS, change=STILL_CHANGE)
        while not _is_full(quiet := _memory_over(cluster, STILL_SECONDS)):
            pass  # what is kept for workers that come back is still growing
        os.kill(workers[0].pid, signal.SIGSTOP)
        try:
            still = _memory_over(cluster, STILL_SECONDS)
        finally:
            os.kill(workers[0].pid, signal.SIGCONT)
    third = len(still) // 3
    # What is queued for it, and the two sums in place of what there is no room for.
    bound = (MasterConfig().relay_backlog_bytes_max + 2 * 4 * STILL_PARAMETERS) / MEGABYTE
    what = f"memory of the master with a worker that stands still for {STILL_SECONDS:.0f} s"
    return [
        within(f"{what}: more than before", max(0.0, max(still) - max(quiet)) / MEGABYTE, "MB",
               "before", max(quiet) / MEGABYTE, aim=round(bound, 1), runs=1),
        at_most(f"{what}: at most in the last third", max(still[-third:]) / MEGABYTE, "MB",
                "in the second third", max(still[third:-third]) / MEGABYTE, aim=1.05, runs=1),
    ]  # fmt: skip


def _memory_over(cluster: "_Cluster", seconds: float) -> list[float]:
    """Return what the master takes, as time passes."""
    seen = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seen.append(cluster.memory())
        _let_pass(0.25)
    return seen


def _is_full(seen: Sequence[float]) -> bool:
    """Return whether it does not grow any more."""
    half = len(seen) // 2
    return max(seen[half:]) < 1.02 * max(seen[:half])


# A worker joins late.


def _late_joins() -> list[Figure]:
    joins: list[float] = []
    tcp: list[float] = []
    beside_joins: list[float] = []
    alone: list[float] = []
    with _cluster() as cluster, _sender(4 * JOIN_PARAMETERS) as port:
        workers = cluster.workers(JOIN_WORKERS, JOIN_PARAMETERS, JOIN_STEP_SECONDS)
        options = ("--parameters", str(JOIN_PARAMETERS), "--tcp-port", str(port))
        with Program(late.__name__, *options, environ=cluster.environ()) as joiner:
            for i in range(JOINS + 1):
                for what, times, busy in (("join", joins, beside_joins), ("tcp", tcp, alone)):
                    _steps_of(workers)
                    joiner.tell()
                    seconds = joiner.read()[what]
                    taken = _steps_of(workers)
                    if i:
                        times.append(seconds)
                        busy += [step.seconds for made in taken for step in made]
    size = f"{4 * JOIN_PARAMETERS / MEGABYTE:.1f} MB"
    return [
        at_most(f"late join of {JOIN_PARAMETERS / 1e6:g} M parameters, {JOIN_WORKERS} training",
                median(joins), "s", f"{size} over TCP", median(tcp), aim=3, runs=JOINS),
        at_most("step of those who train meanwhile", 1e3 * median(beside_joins), "ms",
                "without a join", 1e3 * median(alone), aim=1.1, runs=JOINS),
    ]  # fmt: skip


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
    """A master that can be started again, and workers."""

    def __init__(
        self, options: Sequence[str], key_folder: Path | None, idle_seconds: float | None
    ) -> None:
        self.stack = ExitStack()
        self._options = list(options)
        self._key_folder = key_folder
        self._idle_seconds = idle_seconds
        self._run_key = RunKey(os.urandom(32))
        self._address = _free_address()
        if key_folder is not None:
            _write(key_folder / "run.key", self._run_key.format())
            self._options += ["--key-file", str(key_folder / "run.key")]

    def start_master(self) -> None:
        """Start it, at the address that it had."""
        self._master = self.stack.enter_context(
            Program("gradwire", "master", "--listen", self._address, "--http", "off",
                    *self._options, quiet=True)
        )  # fmt: skip

    def kill_master(self) -> None:
        """End it without a word."""
        self._master.kill()

    def memory(self) -> float:
        """Return the bytes of memory that the master has."""
        pages = Path(f"/proc/{self._master.pid}/statm").read_text(encoding="ascii").split()[1]
        return float(pages) * os.sysconf("SC_PAGE_SIZE")

    def environ(self) -> dict[str, str]:
        """Return what workers find in their environment."""
        environ = {"GRADWIRE_MASTER": self._address}
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
        programs = []
        for first in range(0, count, each):
            keys = [self._key_file(f"worker-{i}") for i in range(first, first + each)]
            whose = ("--key-files", *map(str, keys)) if keys[0] else ("--workers", str(each))
            programs.append(
                self.stack.enter_context(
                    Program(steps.__name__, *options, *whose, environ=self.environ(), quiet=True)
                )
            )
        return programs

    def _key_file(self, name: str) -> Path | None:
        if self._key_folder is None:
            return None
        path = self._key_folder / f"{name}.key"
        _write(path, self._run_key.worker_key(name).format())
        return path


@contextmanager
def _cluster(
    *options: str, sealed: bool = False, idle_seconds: float | None = None
) -> Iterator[_Cluster]:
    with TemporaryDirectory() as folder:
        cluster = _Cluster(options, Path(folder) if sealed else None, idle_seconds)
        with cluster.stack:
            cluster.start_master()
            yield cluster


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


def _write(path: Path, key: str) -> None:
    path.touch(mode=0o600)
    path.write_text(key + "\n", encoding="ascii")


def _let_pass(seconds: float) -> None:
    time.sleep(seconds)
