"""``gradwire demo``, with fewer steps, while a stranger throws random bytes at its master."""

import json
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from gradwire_protocol.wire.packets import ACCEPT, INIT, TRANSPORT, VERSION, VERSIONS
from support.processes import Running, children_of, has_ended
from support.tiers import IS_DEEP, count

pytestmark = pytest.mark.timeout(240)

WORKERS = count(4, quick=2, of="workers of the demo")
STEPS = count(150, quick=20, of="steps of the demo")
DROPPED = count(10_000, quick=1_000, of="random datagrams that the demo's master drops")
DEMO_SECONDS_MAX = 200.0
DATAGRAMS_PER_BURST = 40
BURSTS = 10
BURST_SECONDS = 0.02
"""Two thousand datagrams a second: more than the demo itself sends."""


@dataclass(frozen=True)
class Outcome:
    """What a demo left behind."""

    result: dict[str, Any]
    table: str
    messages: list[str]
    picture: bytes
    dropped: float
    """What the master had counted as dropped by the end of the flood."""


def random_datagram(rng: random.Random) -> bytes:
    """Return bytes; two times in three with the beginning of a datagram of ours."""
    noise = rng.randbytes(rng.randrange(1, 1400))
    if rng.random() < 1 / 3:
        return noise
    return bytes([rng.choice((INIT, ACCEPT, VERSIONS, TRANSPORT)), VERSION]) + noise


def flood(host: str, port: int, metrics: str, ended: threading.Event) -> float:
    """Throw random bytes at a master until it has dropped enough; return how many it dropped.

    It is not a number of datagrams: a full socket buffer loses some, and a busy machine most.
    """
    rng = random.Random(1)
    dropped = 0.0
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        while dropped < DROPPED:
            for _ in range(BURSTS):
                for _ in range(DATAGRAMS_PER_BURST):
                    sock.sendto(random_datagram(rng), (host, port))
                if ended.wait(BURST_SECONDS):
                    return dropped
            dropped = dropped_at(metrics)
    return dropped


def dropped_at(metrics: str) -> float:
    with urlopen(metrics, timeout=5) as response:
        text = response.read().decode()
    counts = re.findall(r"^gradwire_datagrams_dropped_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, counts))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("demo")
    process = start_demo(folder, "--json", "demo.json", "--steps", str(STEPS))
    assert process.stderr is not None
    ended = threading.Event()
    watchdog = threading.Timer(DEMO_SECONDS_MAX, process.kill)
    watchdog.start()
    messages = []
    dropped: list[float] = []

    def throw(host: str, port: int, metrics: str) -> None:
        dropped.append(flood(host, port, metrics, ended))

    thrower: threading.Thread | None = None
    try:
        for line in process.stderr:
            messages.append(line.rstrip())
            place = re.match(r"master at ([\d.]+):(\d+), page at (\S+)/", line)
            if place:
                arguments = (place[1], int(place[2]), f"{place[3]}/metrics")
                thrower = threading.Thread(target=throw, args=arguments)
                thrower.start()
        table, _ = process.communicate()
    finally:
        watchdog.cancel()
        process.end()
        ended.set()
        if thrower is not None:
            thrower.join()
    assert process.returncode == 0, "\n".join(messages)
    return Outcome(
        result=json.loads((folder / "demo.json").read_text(encoding="utf-8")),
        table=table,
        messages=messages,
        picture=(folder / "gradwire-demo.png").read_bytes(),
        dropped=sum(dropped),
    )


def start_demo(folder: Path, *options: str) -> Running:
    return Running(
        [sys.executable, "-m", "gradwire", "demo", "-n", str(WORKERS), *options],
        cwd=folder,
        stderr=subprocess.PIPE,
    )


def test_the_result_has_what_it_promises_and_nothing_else(outcome: Outcome) -> None:
    assert set(outcome.result) == {
        "workers", "steps", "parameters", "loss_start", "loss_single", "loss_shared",
        "bytes_sent", "bytes_dense", "compression", "digests", "updates_sent",
        "updates_applied", "seconds",
    }  # fmt: skip
    assert (outcome.result["workers"], outcome.result["steps"]) == (WORKERS, STEPS)


def test_all_replicas_hold_the_same_bits(outcome: Outcome) -> None:
    assert len(outcome.result["digests"]) == WORKERS
    assert len(set(outcome.result["digests"])) == 1


def test_every_update_was_applied_by_everyone_else_once(outcome: Outcome) -> None:
    assert outcome.result["updates_sent"] >= WORKERS * STEPS
    assert outcome.result["updates_applied"] == (WORKERS - 1) * outcome.result["updates_sent"]


@pytest.mark.deep("steps enough to learn something")
def test_sharing_learns_more_than_one_worker_alone(outcome: Outcome) -> None:
    result = outcome.result

    assert result["loss_shared"] < result["loss_single"] - 0.1 < result["loss_start"] - 1


def test_compression_is_what_all_reduce_sends_over_what_the_sockets_sent(outcome: Outcome) -> None:
    result = outcome.result

    assert result["bytes_dense"] == 4 * result["parameters"] * 2 * (WORKERS - 1) * STEPS
    assert result["compression"] == result["bytes_dense"] / result["bytes_sent"]
    # To begin with, the first worker's parameters went to the master and to the others, in some 0.9
    # of their size. Two workers that train for some steps send little more.
    share = 1.0 if IS_DEEP else 0.8
    assert result["bytes_sent"] > share * WORKERS * 4 * result["parameters"]


def test_the_random_bytes_reached_the_master_and_were_dropped(outcome: Outcome) -> None:
    assert outcome.dropped >= DROPPED


def test_the_table_the_progress_and_the_picture_are_there(outcome: Outcome) -> None:
    assert outcome.result["digests"][0] in outcome.table
    assert any(f"of {STEPS}" in message for message in outcome.messages)
    assert outcome.picture.startswith(b"\x89PNG\r\n")


@pytest.mark.deep("signals that end the demo")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_demo_and_all_its_processes(number: int, tmp_path: Path) -> None:
    with start_demo(tmp_path) as process:
        line = ""
        while "step" not in line or "master at" in line or len(children_of(process.pid)) < 2:
            line = process.read_line("the first steps", process.stderr)
            assert line
        started = children_of(process.pid)

        process.send_signal(number)
        process.communicate(timeout=60)

    assert process.returncode == 128 + number
    assert [child for child in started if not has_ended(child)] == []
