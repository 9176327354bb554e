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
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import flood, trainer
from benchmarks.bomb import Bomber
from benchmarks.figures import Figure, at_least, below, within
from benchmarks.programs import FIRST_CORE, LAST_CORE, Program, on_core
from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Credentials,
    Disconnected,
    Endpoint,
    Event,
    RunKey,
)
from gradwire_protocol.limits import FRAGMENT_BYTES_MIN, MESSAGE_BYTES_MAX, WINDOW_BYTES
from gradwire_udp import SocketCounters, UdpDriver, new_event_loop, open_socket

WORKERS: Final = 8
RATE: Final = 50_000
"""Forged INITs per second."""

SECONDS: Final = 5.0
"""Of each phase, quiet or under attack."""

RUNS: Final = 3
HANDSHAKES: Final = 20
"""Honest ones in each attack."""

QUIET_SECONDS: Final = 0.5
"""After a bomb, for the master to take it all in."""

CLOSED_SECONDS_MAX: Final = 5.0
"""Until it has closed the connection of who exceeds his credit."""

MEGABYTE: Final = 1e6
BOMBS: Final = {
    "large messages": (MESSAGE_BYTES_MAX, 1_344),
    "small messages": (FRAGMENT_BYTES_MIN + 1, FRAGMENT_BYTES_MIN),
}
"""Bytes of each message, and of its fragments."""


def run() -> list[Figure]:
    """Measure."""
    return [*_under_a_flood(), *_bombed()]


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


def _under_a_flood() -> list[Figure]:
    quiet: list[_Phase] = []
    attacked: list[_Phase] = []
    with _master() as master, ExitStack() as stack:
        for i in range(WORKERS):
            stack.enter_context(master.trainer(i))
        for _ in range(RUNS):
            quiet.append(_phase(master, attack=False))
            attacked.append(_phase(master, attack=True))
    handshakes = sorted(h for phase in attacked for h in phase.handshakes)
    undisturbed = sorted(h for phase in quiet for h in phase.handshakes)
    p95 = handshakes[int(0.95 * len(handshakes))]
    rate = sum(phase.flood["sent"] / phase.flood["seconds"] for phase in attacked) / RUNS
    told, heard = (
        sum(phase.flood[name] for phase in attacked) for name in ("bytes_received", "bytes_sent")
    )
    under = f"under {rate:,.0f} forged INITs per second"
    return [
        at_least(f"updates of {WORKERS} workers {under}",
                 median(phase.updates_per_second for phase in attacked), "1/s", "quiet",
                 median(phase.updates_per_second for phase in quiet), aim=0.8, runs=RUNS),
        within(f"honest handshake {under}, p95", 1e3 * p95, "ms", "quiet",
               1e3 * undisturbed[int(0.95 * len(undisturbed))], aim=2000, runs=RUNS),
        within(f"memory more {under}",
               max(0.0, max(p.memory for p in attacked) - quiet[0].memory) / MEGABYTE, "MB",
               "the master before", quiet[0].memory / MEGABYTE, aim=20, runs=RUNS),
        below("bytes out towards unvalidated addresses", told, "B", "bytes in", heard, limit=1,
              runs=RUNS),
    ]  # fmt: skip


def _phase(master: "_Master", *, attack: bool) -> _Phase:
    if not attack:
        return _watched(master)
    options = ("--port", str(master.port), "--rate", str(RATE), "--seconds", str(SECONDS),
               "--key-id", master.run_key.worker_key("worker-0").key_id.hex())  # fmt: skip
    with Program(flood.__name__, *options, core=LAST_CORE) as attacker:
        phase = _watched(master)
        return replace(phase, flood=attacker.read())


def _watched(master: "_Master") -> _Phase:
    updates, began = master.updates_accepted(), time.monotonic()
    handshakes, memory = master.watch(SECONDS)
    rate = (master.updates_accepted() - updates) / (time.monotonic() - began)
    return _Phase(rate, memory, handshakes)


# Bombs.


def _bombed() -> list[Figure]:
    figures = []
    for name, (total, fragment_bytes) in BOMBS.items():
        growth = []
        for _ in range(RUNS):
            with _master() as master:
                before = master.memory()
                bomber = Bomber(master.port, master.credentials("bomber"))
                count = bomber.throw(total, fragment_bytes)
                assert bomber.stays(QUIET_SECONDS), "it kept within its credit"
                growth.append(master.memory() - before)
                bomber.begin(count, total, fragment_bytes)
                assert not bomber.stays(CLOSED_SECONDS_MAX), "it had no credit for one more"
                bomber.close()
        figures.append(
            within(f"memory more under a reassembly bomb of {name}",
                   max(growth) / MEGABYTE, "MB", "its credit", WINDOW_BYTES / MEGABYTE,
                   aim=WINDOW_BYTES / MEGABYTE, runs=RUNS)
        )  # fmt: skip
    return figures


# The master, and who dials it.


class _Master:
    """A real one, with a key, and how to ask it things."""

    def __init__(self, program: Program, run_key: RunKey, folder: Path) -> None:
        self.run_key = run_key
        self._program = program
        self._folder = folder
        self._address = str(program.announcement["master"])
        self.port = int(self._address.rpartition(":")[2])
        self._honest = 0

    def trainer(self, i: int) -> Program:
        """Return a worker that trains."""
        key = self._folder / f"worker-{i}.key"
        _write(key, self.run_key.worker_key(f"worker-{i}").format())
        environ = {"GRADWIRE_MASTER": self._address, "GRADWIRE_KEY_FILE": str(key)}
        return Program(trainer.__name__, core=LAST_CORE, environ=environ)

    def credentials(self, name: str) -> Credentials:
        """Return what someone with this name dials with."""
        return Credentials(key=self.run_key.worker_key(name), unix_time_ns=time.time_ns)

    def updates_accepted(self) -> float:
        """Return how many there were so far."""
        url = f"http://{self._program.announcement['http']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:  # our own
            for line in response.read().decode().splitlines():
                if line.startswith("gradwire_updates_accepted_total "):
                    return float(line.split()[1])
        raise RuntimeError("no such metric")

    def memory(self) -> float:
        """Return the bytes of memory that it has."""
        pages = Path(f"/proc/{self._program.pid}/statm").read_text(encoding="ascii").split()[1]
        return float(pages) * os.sysconf("SC_PAGE_SIZE")

    def watch(self, seconds: float) -> tuple[list[float], float]:
        """Dial in every now and then; return how long that took, and the most memory seen."""
        took, memory = [], self.memory()
        began = time.monotonic()
        with asyncio.Runner(loop_factory=lambda: new_event_loop("auto")) as runner:
            for i in range(HANDSHAKES):
                due = began + i * seconds / HANDSHAKES
                time.sleep(max(0.0, due - time.monotonic()))
                self._honest += 1
                credentials = self.credentials(f"honest-{self._honest}")
                took.append(runner.run(_handshake(self.port, credentials)))
                memory = max(memory, self.memory())
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return took, max(memory, self.memory())


@contextmanager
def _master() -> Iterator[_Master]:
    run_key = RunKey(os.urandom(32))
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "run.key", run_key.format())
        with Program("gradwire", "master", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
                     "--key-file", str(folder / "run.key"), core=FIRST_CORE,
                     quiet=True) as program, on_core(LAST_CORE):  # fmt: skip
            yield _Master(program, run_key, folder)


def _write(path: Path, key: str) -> None:
    path.touch(mode=0o600)
    path.write_text(key + "\n", encoding="ascii")


class _Dialler:
    """Notes when it is connected."""

    def __init__(self) -> None:
        self.connected = asyncio.get_running_loop().create_future()

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        if isinstance(event, Connected) and not self.connected.done():
            self.connected.set_result(True)
        elif isinstance(event, Disconnected) and not self.connected.done():
            self.connected.set_result(False)

    def handle_timer(self, now: float) -> None:
        """Have no timers."""

    def next_timer(self) -> float | None:
        return None


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
