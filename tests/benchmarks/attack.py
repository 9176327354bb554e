"""What attackers can do to a master that is at work: real processes and sockets, on loopback.

Eight workers train while forged INITs come, 50,000 a second from many addresses, and honest workers
dial in between. Then a worker with a key tries to fill the master's memory with messages that it
never ends. Load is bounded in number and time.
"""

import asyncio
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from benchmarks import flood, trainer
from benchmarks.bomb import Bomber
from benchmarks.figures import Figure, at_least, below, within
from benchmarks.masters import Master
from benchmarks.programs import FIRST_CORE, LAST_CORE, Program, on_core
from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
    WorkerKey,
)
from gradwire_protocol.limits import FRAGMENT_BYTES_MIN, MESSAGE_BYTES_MAX, WINDOW_BYTES
from gradwire_udp import SocketCounters, UdpDriver, new_event_loop, open_socket
from support.applications import Untimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    workers: int = 8
    rate: int = 50_000
    """Forged INITs per second."""
    seconds: float = 5.0
    """Of each phase, quiet or under attack."""
    runs: int = 3
    handshakes: int = 20
    """Honest ones in each phase."""
    quiet_seconds: float = 0.5
    """After a bomb, for the master to take it all in."""


FULL: Final = Plan()
QUICK: Final = Plan(workers=1, rate=500, seconds=0.5, runs=1, handshakes=2, quiet_seconds=0.05)

CLOSED_SECONDS_MAX: Final = 30.0
"""Until it has closed the connection of who exceeds his credit."""

MEGABYTE: Final = 1e6
BOMBS: Final = {
    "large messages": (MESSAGE_BYTES_MAX, 1_344),
    "small messages": (FRAGMENT_BYTES_MIN + 1, FRAGMENT_BYTES_MIN),
}
"""Bytes of each message, and of its fragments."""


def run(plan: Plan) -> list[Figure]:
    """Measure."""
    return [*_under_a_flood(plan), *_bombed(plan)]


# INITs.


@dataclass(slots=True)
class _Phase:
    """What was seen in so many seconds."""

    updates_per_second: float
    memory: float
    """Most that was seen, in bytes."""
    handshakes: list[float]
    """How long each of the honest ones took, in seconds."""
    flood: Mapping[str, float] = field(default_factory=dict)


def _under_a_flood(plan: Plan) -> list[Figure]:
    quiet: list[_Phase] = []
    attacked: list[_Phase] = []
    runs = plan.runs
    with _victim() as victim, ExitStack() as stack:
        for i in range(plan.workers):
            stack.enter_context(victim.trainer(i))
        for _ in range(runs):
            quiet.append(_phase(victim, plan, attack=False))
            attacked.append(_phase(victim, plan, attack=True))
    handshakes = sorted(h for phase in attacked for h in phase.handshakes)
    undisturbed = sorted(h for phase in quiet for h in phase.handshakes)
    p95 = handshakes[int(0.95 * len(handshakes))]
    rate = sum(phase.flood["sent"] / phase.flood["seconds"] for phase in attacked) / runs
    told, heard = (
        sum(phase.flood[name] for phase in attacked) for name in ("bytes_received", "bytes_sent")
    )
    under = f"under {rate:,.0f} forged INITs per second"
    return [
        at_least(f"updates of {plan.workers} workers {under}",
                 median(phase.updates_per_second for phase in attacked), "1/s", "quiet",
                 median(phase.updates_per_second for phase in quiet), aim=0.8, runs=runs),
        within(f"honest handshake {under}, p95", 1e3 * p95, "ms", "quiet",
               1e3 * undisturbed[int(0.95 * len(undisturbed))], aim=2000, runs=runs),
        within(f"memory more {under}",
               max(0.0, max(p.memory for p in attacked) - quiet[0].memory) / MEGABYTE, "MB",
               "the master before", quiet[0].memory / MEGABYTE, aim=20, runs=runs),
        below("bytes out towards unvalidated addresses", told, "B", "bytes in", heard, limit=1,
              runs=runs),
    ]  # fmt: skip


def _phase(victim: "_Victim", plan: Plan, *, attack: bool) -> _Phase:
    if not attack:
        return _watched(victim, plan)
    options = ("--port", str(victim.master.port), "--rate", str(plan.rate),
               "--seconds", str(plan.seconds),
               "--key-id", victim.worker_key("worker-0").key_id.hex())  # fmt: skip
    with Program(flood.__name__, *options, core=LAST_CORE) as attacker:
        phase = _watched(victim, plan)
        return replace(phase, flood=attacker.read())


def _watched(victim: "_Victim", plan: Plan) -> _Phase:
    updates, began = victim.updates_accepted(), time.monotonic()
    handshakes, memory = victim.watch(plan.seconds, plan.handshakes)
    rate = (victim.updates_accepted() - updates) / (time.monotonic() - began)
    return _Phase(rate, memory, handshakes)


# Bombs.


def _bombed(plan: Plan) -> list[Figure]:
    figures = []
    for name, (total, fragment_bytes) in BOMBS.items():
        growth = []
        for _ in range(plan.runs):
            with _victim() as victim:
                before = victim.master.memory()
                bomber = Bomber(victim.master.port, victim.credentials("bomber"))
                count = bomber.throw(total, fragment_bytes)
                assert bomber.stays(plan.quiet_seconds), "it kept within its credit"
                growth.append(victim.master.memory() - before)
                assert bomber.exceed(count, total, fragment_bytes, CLOSED_SECONDS_MAX), (
                    "it had no credit for more"
                )
                bomber.close()
        figures.append(
            within(f"memory more under a reassembly bomb of {name}",
                   max(growth) / MEGABYTE, "MB", "its credit", WINDOW_BYTES / MEGABYTE,
                   aim=WINDOW_BYTES / MEGABYTE, runs=plan.runs)
        )  # fmt: skip
    return figures


# The master, and who dials it.


class _Victim:
    """A master with a key, and how to ask it things."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self._honest = 0

    def trainer(self, i: int) -> Program:
        """Return a worker that trains."""
        environ = self.master.environ(f"worker-{i}")
        return Program(trainer.__name__, core=LAST_CORE, environ=environ)

    def worker_key(self, name: str) -> WorkerKey:
        """Return the key of a worker with this name."""
        assert self.master.run_key is not None
        return self.master.run_key.worker_key(name)

    def credentials(self, name: str) -> Credentials:
        """Return what a worker with this name dials with."""
        return Credentials(key=self.worker_key(name), unix_time_ns=time.time_ns)

    def updates_accepted(self) -> float:
        """Return how many there were so far."""
        url = f"http://{self.master.http_address}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:  # our own
            for line in response.read().decode().splitlines():
                if line.startswith("gradwire_updates_accepted_total{"):
                    return float(line.split()[-1])
        raise RuntimeError("no such metric")

    def watch(self, seconds: float, handshakes: int) -> tuple[list[float], float]:
        """Dial in every now and then; return how long that took, and the most memory seen."""
        took, memory = [], self.master.memory()
        began = time.monotonic()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            for i in range(handshakes):
                due = began + i * seconds / handshakes
                time.sleep(max(0.0, due - time.monotonic()))
                self._honest += 1
                credentials = self.credentials(f"honest-{self._honest}")
                took.append(runner.run(_handshake(self.master.port, credentials)))
                memory = max(memory, self.master.memory())
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return took, max(memory, self.master.memory())


@contextmanager
def _victim() -> Iterator[_Victim]:
    with Master(keys=True, http="127.0.0.1:0", core=FIRST_CORE) as master, on_core(LAST_CORE):
        yield _Victim(master)


class _Dialler(Untimed):
    """Notes when it is connected."""

    def __init__(self) -> None:
        self.connected = asyncio.get_running_loop().create_future()

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        if isinstance(event, Connected) and not self.connected.done():
            self.connected.set_result(True)
        elif isinstance(event, Disconnected) and not self.connected.done():
            self.connected.set_result(False)


async def _handshake(port: int, credentials: Credentials) -> float:
    """Return how many seconds it takes to be let in; infinity where that fails."""
    dialler = _Dialler()
    endpoint = Endpoint(ConnectionConfig(), random_bytes=os.urandom, credentials=credentials)
    driver = UdpDriver(open_socket(("127.0.0.1", 0)), endpoint, dialler,
                       asyncio.get_running_loop(), SocketCounters())  # fmt: skip
    began = time.monotonic()
    connection = endpoint.connect(("127.0.0.1", port), driver.now())
    driver.turn()
    connected = await dialler.connected
    took = time.monotonic() - began
    connection.close(0, "that was all", driver.now())
    driver.turn()
    driver.close()
    return took if connected else float("inf")
