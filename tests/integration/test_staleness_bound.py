"""Real workers whose staleness is bounded, one of them slow, and then dead."""

from contextlib import ExitStack

import pytest

from support.driven_worker import DrivenWorker
from support.health import run_status
from support.local_master import MasterProcess
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)

BOUND = 2


def sequences(http: str) -> dict[int, int]:
    """Return by rank how many updates the master has; with a bound, every step sends one."""
    return {int(rank): sequence for rank, sequence in run_status(http)["versions"].items()}


def test_a_slow_worker_holds_others_within_the_bound_and_a_dead_one_does_not() -> None:
    bounded: dict[str, object] = {
        "staleness_bound": BOUND,
        "staleness_timeout_seconds": 4.0,
    }
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--idle-timeout-seconds", "10"))
        http = master.announcement["http"]
        workers = [
            stack.enter_context(DrivenWorker(master.address, elements=1_000, settings=bounded))
            for _ in range(3)
        ]
        ranks = [worker.ask("join")["rank"] for worker in workers]
        for worker in workers:
            worker.tell("step", times=1)
        for worker in workers:
            worker.answer()
        # Each has said that it begins, and has made a step.
        wait_until(lambda: sequences(http) == dict.fromkeys(ranks, 2), "the first steps")
        before = sequences(http)
        slow, *fast = workers
        for worker in fast:
            worker.tell("step", times=200)
        leads = []
        for _ in range(10):
            slow.ask("step", times=1)
            made = {rank: now - before[rank] for rank, now in sequences(http).items()}
            leads += [made[rank] - made[ranks[0]] for rank in ranks[1:]]

        slow.kill()
        for worker in fast:
            assert "error" not in worker.answer()
        # The last ones may still be on their way..
        all_made = {rank: before[rank] + 200 for rank in ranks[1:]}
        wait_until(lambda: sequences(http).items() >= all_made.items(), "the updates of every step")
        for worker in fast:
            worker.tell("finish")
        ends = [worker.answer() for worker in fast]

        assert max(leads) <= BOUND + 1
        assert ends[0]["digest"] == ends[1]["digest"]
