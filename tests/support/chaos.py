"""Chaos: a master and workers as real processes, of which always some are killed or stand still.

`Chaos` starts them on loopback, kills a worker every few seconds and starts another one in its
place, kills the master and starts it anew at its address, and lets a worker stand still for longer
than the idle timeout. In the end all workers finish, and `Outcome.check` compares what each process
has written down about itself.

The seed decides who is killed and when. What the processes do meanwhile is up to the machine, so
one seed has many histories.

Two things cost updates, and are left out: a worker that dies with the master and with another one,
which is why some time lies between two deaths; and a new worker that reaches a master which has
just been started anew before those do that trained, which is why the master lives on while a worker
starts, and no worker is started before the run is back.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic
from typing import Any, Final

from gradwire_protocol.limits import MIB
from support.chaos_outcome import Outcome, Sample
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.waiting import JOB, wait_until

WORKER: Final = Path(__file__).with_name("chaos_worker.py")
IDLE_SECONDS: Final = 3.0
QUIET_SECONDS: Final = 1.0
"""Between two deaths: what was sent before the first has arrived by the second."""

TICK_SECONDS: Final = 0.05
SAMPLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens, and how often."""

    seed: int
    seconds: float = 60.0
    workers: int = 6
    elements: int = 5_000
    pace_seconds: float = 0.03
    """Between two steps of a worker."""
    kill_seconds: float = 5.0
    """Between the deaths of two workers."""
    master_seconds: float = 20.0
    """Between two deaths of the master."""
    masters_min: int = 0
    """How often it has to die before the end."""
    still_seconds: float = 10.0
    """How long a worker stands still."""
    mode: str = "sharing"
    """How the workers train together."""
    still_every_seconds: float = 25.0
    """Between two times that one begins to."""


@dataclass(slots=True)
class ChaosWorker:
    """A worker's process, and the account that it keeps."""

    name: str
    process: subprocess.Popen[bytes]
    account: Path
    still_until: float | None = None
    killed: bool = False

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has written; of one that was killed, the last line may be half a line."""
        if not self.account.exists():
            return []
        text = self.account.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]

    @property
    def has_joined(self) -> bool:
        """Whether it takes part."""
        return self.account.exists() and self.account.stat().st_size > 0

    @property
    def runs(self) -> bool:
        """Whether it could be killed."""
        return not self.killed and self.still_until is None and self.has_joined


class Chaos:
    """Runs a plan.

    Parameters
    ----------
    plan : Plan
    folder : Path
        Where accounts and logs are written.
    options : str
        Of the master.
    tell : callable
        Called with a line now and then.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *options: str,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._options = ["--idle-timeout-seconds", str(IDLE_SECONDS), *options]
        self._tell = tell
        self._random = Random(plan.seed)
        self._outcome = Outcome(plan.workers)
        self._workers: list[ChaosWorker] = []
        self._started: list[ChaosWorker] = []
        self._stack = ExitStack()
        self._masters = 0
        self._killed_at = 0.0

    def run(self) -> Outcome:
        """Do all of it, and end every process; `AssertionError` where one ends by itself."""
        with self._stack:
            self._master = self._start_master("127.0.0.1:0")
            for _ in range(self._plan.workers):
                self._start_worker()
            self._wait(lambda: all(w.has_joined for w in self._workers), "the workers to join")
            self._go_on()
            self._end()
        return self._outcome

    # What happens.

    def _go_on(self) -> None:
        plan = self._plan
        began, never = monotonic(), Event()
        death, master = self._soon(plan.kill_seconds), self._soon(plan.master_seconds)
        still = self._soon(plan.still_every_seconds / 2)
        sample = told = now = 0.0
        while now < plan.seconds or self._outcome.masters_killed < plan.masters_min:
            now = monotonic() - began
            self._check_alive()
            self._wake(now)
            if now >= sample:
                self._sample(now)
                sample = now + SAMPLE_SECONDS
            if now >= told:
                self._say(now)
                told = now + max(plan.seconds / 20, 5.0)
            quiet = monotonic() - self._killed_at >= QUIET_SECONDS
            if now >= master:
                if quiet and all(worker.has_joined for worker in self._workers):
                    self._kill_master()
                    master = now + self._soon(plan.master_seconds)
            elif now >= death and quiet:
                self._kill_worker()
                death = now + self._soon(plan.kill_seconds)
            elif now >= still:
                self._hold_still(now)
                still = now + self._soon(plan.still_every_seconds)
            never.wait(TICK_SECONDS)

    def _soon(self, seconds: float) -> float:
        """Return about so many seconds."""
        return seconds * self._random.uniform(0.8, 1)

    def _kill_worker(self) -> None:
        # The first one lives: its account is that of the whole history.
        victims = [worker for worker in self._workers[1:] if worker.runs]
        if len(victims) < 2:
            return
        victim = self._random.choice(victims)
        self._kill(victim)
        self._workers.remove(victim)
        self._outcome.workers_killed += 1
        self._start_worker()

    def _kill_master(self) -> None:
        address = self._master.address
        self._master.signal(signal.SIGKILL)
        self._master.wait()
        self._killed_at = monotonic()
        self._outcome.masters_killed += 1
        self._master = self._start_master(address)
        self._wait(self._run_is_back, "the run to be back")
        self._killed_at = monotonic()

    def _hold_still(self, now: float) -> None:
        standing = [worker for worker in self._workers[1:] if worker.runs]
        if standing:
            worker = self._random.choice(standing)
            worker.process.send_signal(signal.SIGSTOP)
            worker.still_until = now + self._plan.still_seconds
            self._outcome.stood_still += 1

    def _wake(self, now: float) -> None:
        for worker in self._workers:
            if worker.still_until is not None and now >= worker.still_until:
                worker.process.send_signal(signal.SIGCONT)
                worker.still_until = None

    def _end(self) -> None:
        self._wake(float("inf"))
        self._wait(lambda: all(w.has_joined for w in self._workers), "the last to join")
        http = self._master.announcement["http"]
        self._wait(lambda: len(_live(http)) == len(self._workers), "all to be back")
        for worker in self._workers:
            assert worker.process.stdin is not None
            worker.process.stdin.write(b"finish\n")
            worker.process.stdin.flush()
        self._wait(
            lambda: all(w.process.poll() is not None for w in self._workers), "all to finish"
        )
        outcome = self._outcome
        outcome.metrics = metrics(http)
        outcome.ended = [worker.name for worker in self._workers]
        for worker in self._started:
            lines = worker.lines
            for line in lines:
                assert "error" not in line, f"{worker.name}: {line['error']}"
            if lines:
                outcome.accounts.append((worker.name, lines))

    # Processes.

    def _start_master(self, listen: str) -> MasterProcess:
        self._masters += 1
        log = (self._folder / f"master-{self._masters}.log").open("w", encoding="utf-8")
        self._stack.enter_context(log)
        master = MasterProcess(*self._options, listen=listen, log=log)
        return self._stack.enter_context(master)

    def _start_worker(self) -> None:
        name = f"worker-{len(self._started)}"
        account = self._folder / f"{name}.jsonl"
        plan = self._plan
        options = {
            "master": self._master.address,
            "elements": plan.elements,
            "pace_seconds": plan.pace_seconds,
            "account": str(account),
            "settings": {
                "idle_timeout_seconds": IDLE_SECONDS,
                "finish_timeout_seconds": JOB,
                "mode": plan.mode,
            },
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(WORKER), json.dumps(options)],
                stdin=subprocess.PIPE,
                stderr=log,
            )
        worker = ChaosWorker(name, process, account)
        self._stack.callback(self._kill, worker)
        self._workers.append(worker)
        self._started.append(worker)

    def _kill(self, worker: ChaosWorker) -> None:
        worker.killed = True
        worker.process.kill()
        worker.process.wait()
        if worker.process.stdin is not None:
            worker.process.stdin.close()
        self._killed_at = monotonic()

    def _check_alive(self) -> None:
        for worker in self._workers:
            status = worker.process.poll()
            assert status is None, (
                f"{worker.name} has ended with status {status}: {worker.lines[-1:]}; its log is "
                f"{(self._folder / worker.name).with_suffix('.log')}"
            )

    # What is seen.

    def _run_is_back(self) -> bool:
        status = _status(self._master.announcement["http"])
        return status is not None and any(w["phase"] == "live" for w in status["workers"])

    def _sample(self, now: float) -> None:
        for who, pid in (
            (f"master {self._masters}", self._master.announcement["pid"]),
            (self._workers[0].name, self._workers[0].process.pid),
        ):
            self._outcome.samples.append(
                Sample(now, who, _memory(pid), len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208
            )

    def _say(self, now: float) -> None:
        outcome = self._outcome
        steps = self._workers[0].lines[-1].get("steps", 0)
        used = [
            f"{s.who} {s.memory / MIB:.0f} MiB, {s.descriptors} open" for s in outcome.samples[-2:]
        ]
        self._tell(
            f"{now:.0f} s: {outcome.workers_killed} workers and {outcome.masters_killed} masters "
            f"killed, {outcome.stood_still} stood still, {steps} steps of the first worker; "
            + "; ".join(used)
        )

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, seconds=JOB)


def _status(http: str) -> dict[str, Any] | None:
    """Return what a master says of its run; None while it says nothing."""
    try:
        return run_status(http)
    except OSError:
        return None


def _live(http: str) -> list[dict[str, Any]]:
    """Return who takes part."""
    status = _status(http)
    return [w for w in status["workers"] if w["phase"] == "live"] if status else []


def _memory(pid: int) -> int:
    resident = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(resident) * os.sysconf("SC_PAGESIZE")
