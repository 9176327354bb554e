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
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

WORKERS = 3
QUICK = ("--idle-timeout-seconds", "3", "--recovery-seconds", "4", "--takeover-seconds", "1")


class Pair:
    """A primary and its standby, and workers that know the first one."""

    def __init__(self, stack: ExitStack, options: tuple[str, ...], settings: dict[str, Any]):
        self.stack = stack
        self.addresses = free_address(), free_address()
        self.options = (*QUICK, *options)
        self.primary = self.start_primary()
        self.standby = self.start_standby()
        settings = {"idle_timeout_seconds": 3.0, **settings}
        self.workers = start(stack, self.primary.address, WORKERS, **settings)
        wait_until(
            lambda: self.state_of(self.primary)["standby_connected"], "the standby", seconds=60
        )
        wait_until(lambda: run_status(self.standby.announcement["http"])["parameters"], "its copy")

    def start_primary(self) -> MasterProcess:
        mine, other = self.addresses
        return self.stack.enter_context(
            MasterProcess("--standby", other, *self.options, listen=mine)
        )

    def start_standby(self) -> MasterProcess:
        other, mine = self.addresses
        return self.stack.enter_context(
            MasterProcess("--standby-of", other, *self.options, listen=mine)
        )

    def state_of(self, master: MasterProcess) -> dict[str, object]:
        state: dict[str, object] = run_status(master.announcement["http"])["master"]
        return state

    def wait_for_workers_at(self, master: MasterProcess) -> None:
        http = master.announcement["http"]
        wait_until(
            lambda: (
                len([w for w in run_status(http)["workers"] if w["phase"] == "live"]) == WORKERS
            ),
            "the workers to be there",
            seconds=60,
        )


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
        pair.wait_for_workers_at(pair.standby)

        state = pair.state_of(pair.standby)
        assert (state["role"], state["in_charge"], state["term"]) == ("standby", True, 2)
        counted = metrics(pair.standby.announcement["http"])
        assert counted["gradwire_term"] == 2
        assert counted["gradwire_in_charge"] == 1
        ask_all(pair.workers, "step", times=20)
        check_applied(finish(pair.workers))


@pytest.mark.deep("a primary that is back")
def test_a_primary_that_is_back_is_given_the_run_by_a_standby_that_is_started_anew() -> None:
    with ExitStack() as stack:
        pair = Pair(stack, (), {})
        tell_all(pair.workers, "step", times=20)
        pair.primary.signal(signal.SIGKILL)
        answers_of(pair.workers)
        pair.wait_for_workers_at(pair.standby)

        pair.primary = pair.start_primary()
        pair.standby.stop(signal.SIGTERM)
        pair.standby = pair.start_standby()
        wait_until(lambda: pair.state_of(pair.primary)["in_charge"], "the primary", seconds=60)

        check_applied(finish(pair.workers))
        assert pair.state_of(pair.primary)["term"] == 3
