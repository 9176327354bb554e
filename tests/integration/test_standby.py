"""Two masters as real processes: the first one is killed, and workers go on with its standby."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gradwire.cli.app import main
from support.driven_worker import answers_of, ask_all, check_applied, finish, start, tell_all
from support.health import metrics, run_status
from support.local_master import MasterProcess, free_address
from support.tiers import variants
from support.waiting import SILENCE, wait_for_process

WORKERS = 3
QUICK = ("--idle-timeout-seconds", str(SILENCE), "--takeover-seconds", "1")
RECOVERY = ("--recovery-seconds", str(2 * SILENCE))
"""Of the standby, whose workers come back; the primary has none to wait for."""


class Pair:
    """A primary and its standby, and workers that know the first one."""

    def __init__(self, stack: ExitStack, options: tuple[str, ...], settings: dict[str, Any]):
        self.stack = stack
        self.addresses = free_address(), free_address()
        self.options = (*QUICK, *options)
        self.primary = self.start_primary()
        self.standby = self.start_standby()
        # Nobody has called either of them so far.
        wait_for_process(lambda: self.state_of(self.primary)["standby_connected"], "the standby")
        settings = {"idle_timeout_seconds": SILENCE, **settings}
        self.workers = start(stack, self.primary.address, WORKERS, **settings)
        wait_for_process(
            lambda: run_status(self.standby.announcement["http"])["parameters"], "its copy"
        )

    def start_primary(self) -> MasterProcess:
        mine, other = self.addresses
        return self.stack.enter_context(
            MasterProcess("--standby", other, *self.options, listen=mine)
        )

    def start_standby(self) -> MasterProcess:
        other, mine = self.addresses
        return self.stack.enter_context(
            MasterProcess("--standby-of", other, *RECOVERY, *self.options, listen=mine)
        )

    def state_of(self, master: MasterProcess) -> dict[str, Any]:
        state: dict[str, Any] = run_status(master.announcement["http"])["master"]
        return state

    def train_until_all_are_at(self, master: MasterProcess) -> None:
        """Train until all workers are live there.

        A worker that was ahead of the standby compares its replica with the master's, between two
        steps: one that makes no step waits.
        """
        http = master.announcement["http"]

        def are_there() -> bool:
            ask_all(self.workers, "step", times=1)
            live = [each for each in run_status(http)["workers"] if each["phase"] == "live"]
            return len(live) == WORKERS

        wait_for_process(are_there, "the workers to be there")


@pytest.mark.parametrize("kind", variants("sealed", "open", "tcp"))
def test_workers_go_on_with_the_standby_when_the_primary_is_killed(
    kind: str, tmp_path: Path
) -> None:
    options: tuple[str, ...] = ()
    settings: dict[str, Any] = {}
    if kind == "sealed":
        key = tmp_path / "run.key"
        assert main(["keygen", str(key)]) == 0
        options, settings = ("--key-file", str(key)), {"key_file": str(key)}
    if kind == "tcp":
        settings = {"transport": "tcp"}
    with ExitStack() as stack:
        pair = Pair(stack, options, settings)
        ask_all(pair.workers, "step", times=50)
        assert pair.state_of(pair.primary)["role"] == "primary"
        assert pair.state_of(pair.standby)["in_charge"] is False

        tell_all(pair.workers, "step", times=50)
        pair.primary.signal(signal.SIGKILL)
        answers_of(pair.workers)
        pair.train_until_all_are_at(pair.standby)

        state = pair.state_of(pair.standby)
        assert (state["role"], state["in_charge"]) == ("standby", True)
        assert state["term"] >= 2
        counted = metrics(pair.standby.announcement["http"])
        assert counted["gradwire_term"] >= 2
        assert counted["gradwire_in_charge"] == 1
        ask_all(pair.workers, "step", times=20)
        check_applied(finish(pair.workers))
