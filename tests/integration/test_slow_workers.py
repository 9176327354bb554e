"""A real worker that is stopped for a while, and costs nobody anything."""

import signal
from contextlib import ExitStack

from gradwire_protocol.limits import MIB
from support.driven_worker import (
    DrivenWorker,
    ask_all,
    check_applied,
    finish,
    start,
)
from support.health import metrics
from support.local_master import MasterProcess
from support.waiting import PROCESS, wait_for_process


def step(workers: list[DrivenWorker], times: int) -> None:
    """Let workers train, all at once."""
    assert not any("error" in answer for answer in ask_all(workers, "step", times=times))


def test_a_worker_that_is_stopped_holds_up_nobody_and_ends_with_the_same_bits() -> None:
    options = ["--relay-backlog-mib-max", "1"]
    with ExitStack() as stack:
        master = stack.enter_context(
            MasterProcess("--idle-timeout-seconds", str(PROCESS), *options)
        )
        http = master.announcement["http"]
        stopped, *others = workers = start(stack, master.address, 4, idle_timeout_seconds=PROCESS)
        step(workers, 20)
        rank = stopped.ask("look")["rank"]

        stopped.process.send_signal(signal.SIGSTOP)
        queued = []
        try:
            for _ in range(4):
                step(others, 100)
                counted = metrics(http)
                queued.append(counted[f'gradwire_relay_queue_bytes{{rank="{rank}"}}'])
            wait_for_process(
                lambda: metrics(http)["gradwire_conflated_workers"] == 1, "the others to keep up"
            )
            counted = metrics(http)
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        assert max(queued) < MIB
        assert counted["gradwire_conflated_workers"] == 1
        assert counted["gradwire_updates_unstable"] > 0
        wait_for_process(
            lambda: metrics(http)["gradwire_conflated_workers"] == 0, "the sum to be delivered"
        )
        step(workers, 20)
        check_applied(finish(workers))

        counted = metrics(http)
        assert counted["gradwire_sums_sent_total"] >= 1
        assert counted["gradwire_updates_conflated_total"] > 0
        assert counted['gradwire_leaves_total{reason="too_slow"}'] == 0
