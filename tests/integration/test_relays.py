"""A relay as a real process: it is killed, and its workers go on at the master and at its like."""

import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from gradwire.cli.app import main
from support.driven_worker import answers_of, ask_all, finish, start, tell_all
from support.health import metrics, run_status
from support.local_master import MasterProcess
from support.processes import Running, completed
from support.tiers import variants
from support.waiting import SILENCE, wait_for_process

WORKERS = 3
QUICK = ("--idle-timeout-seconds", str(SILENCE))
RELAY = (sys.executable, "-m", "gradwire", "relay")


class RelayProcess:
    """``gradwire relay`` as a process of its own."""

    def __init__(self, parent: str, *options: str, listen: str = "127.0.0.1:0") -> None:
        command = [*RELAY, "--of", parent, "--listen", listen, *QUICK, *options]
        self.process = Running(command)
        announced = self.process.read_line("a relay's announcement")
        self.address = str(json.loads(announced)["relay"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.end()


@pytest.mark.parametrize("kind", variants("sealed", "open", "tcp"))
def test_workers_of_a_relay_that_is_killed_lose_nothing(kind: str, tmp_path: Path) -> None:
    options: tuple[str, ...] = ()
    settings: dict[str, Any] = {"idle_timeout_seconds": SILENCE}
    if kind == "sealed":
        key = tmp_path / "run.key"
        assert main(["keygen", str(key)]) == 0
        options, settings = ("--key-file", str(key)), {**settings, "key_file": str(key)}
    if kind == "tcp":
        settings = {**settings, "transport": "tcp"}
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess(*QUICK, *options))
        relay = stack.enter_context(RelayProcess(master.address, *options))
        workers = start(stack, relay.address, WORKERS, **settings)
        ask_all(workers, "step", times=50)
        assert metrics(master.http)["gradwire_relays"] == 1

        tell_all(workers, "step", times=50)
        relay.process.send_signal(signal.SIGKILL)
        answers_of(workers)

        def are_back() -> bool:
            ask_all(workers, "step", times=1)
            live = [w for w in run_status(master.http)["workers"] if w["phase"] == "live"]
            return len(live) == WORKERS

        wait_for_process(lambda: not metrics(master.http)["gradwire_relays"], "its loss")
        wait_for_process(are_back, "the workers to be at the master")
        again = stack.enter_context(RelayProcess(master.address, *options, listen=relay.address))
        late = start(stack, again.address, 1, **settings)
        ask_all([*workers, *late], "step", times=20)

        ends = finish([*workers, *late])
        sent = [end["updates_sent"] for end in ends]
        for end in ends[:WORKERS]:
            assert end["updates_applied"] == sum(sent) - end["updates_sent"]
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait() == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [((), "--of"), (("--of", "host:port"), "port")],
)
def test_a_relay_that_cannot_begin_says_why(options: tuple[str, ...], named: str) -> None:
    ended = completed([*RELAY, *options])

    assert ended.returncode == 2
    assert named in ended.stderr
