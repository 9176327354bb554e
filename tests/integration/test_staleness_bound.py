"""Real workers whose staleness is bounded, one of them slow, and then dead."""

from contextlib import ExitStack

from support.driven_worker import answers_of, ask_all, finish, start, tell_all
from support.health import run_status
from support.local_master import MasterProcess
from support.waiting import SILENCE, wait_for_process

BOUND = 2


def sequences(http: str) -> dict[int, int]:
    """Return by rank how many updates the master has; with a bound, every step sends one."""
    return {int(rank): sequence for rank, sequence in run_status(http)["versions"].items()}


def test_a_slow_worker_holds_others_within_the_bound_and_a_dead_one_does_not() -> None:
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--idle-timeout-seconds", str(2 * SILENCE)))
        http = master.announcement["http"]
        workers = start(stack, master.address, 3, 1_000, staleness_bound=BOUND)
        ranks = [answer["rank"] for answer in ask_all(workers, "look")]
        ask_all(workers, "step", times=1)
        # Each has said that it begins, and has made a step. A worker waits for those of whom it
        # has heard.
        wait_for_process(
            lambda: {each["updates_stable"] for each in ask_all(workers, "look")} == {2},
            "all to hear of the first steps",
        )
        before = sequences(http)
        assert before == dict.fromkeys(ranks, 2)
        slow, *fast = workers
        tell_all(fast, "step", times=200)
        leads = []
        for _ in range(10):
            slow.ask("step", times=1)
            made = {rank: now - before[rank] for rank, now in sequences(http).items()}
            leads += [made[rank] - made[ranks[0]] for rank in ranks[1:]]

        slow.kill()
        assert not any("error" in answer for answer in answers_of(fast))
        # The last ones may still be on their way.
        all_made = {rank: before[rank] + 200 for rank in ranks[1:]}
        wait_for_process(lambda: sequences(http).items() >= all_made.items(), "all updates")
        finish(fast)

        assert max(leads) <= BOUND + 1
