"""Workers that lose their connection, train on by themselves, and come back as who they were.

``pytest tests/simulation/test_coming_back.py -k '[17]'`` shows one history again.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from gradwire.errors import ConnectionLostError, RefusedError
from gradwire.replica.repair import Repair
from gradwire.worker.inbox import Rebase
from gradwire.worker.state import Stage
from gradwire_protocol.messages.admission import RefusalCode, Refuse, Resume, Welcome
from gradwire_protocol.messages.snapshots import BLOCKS_UNDER_WAY_MAX, count_blocks
from gradwire_server.config import MasterConfig
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.updates.update_rate import BURST_UPDATES_MIN
from support.ledger import Ledger
from support.network import Link, link_of
from support.peer import ScriptedPeer, resume_of
from support.simulated_worker import SimulatedWorker
from support.training import SimulatedRun, worker_id_of

IDLE_SECONDS = 3.0
NOTHING = Link(loss=1.0)


def begin(
    seed: int, link: Link | None = None, *, elements: int = 400, **limits: Any
) -> SimulatedRun:
    """Let a run begin whose master keeps so much for a worker that is cut off."""
    usual = {"idle_timeout_seconds": IDLE_SECONDS, "update_log_bytes_max": 2**20}
    return SimulatedRun(
        seed,
        link or link_of(Random(seed)),
        elements=elements,
        idle_timeout_seconds=IDLE_SECONDS,
        master=MasterConfig(**{**usual, **limits}),
    )


@pytest.mark.seeds(150)
def test_histories_in_which_workers_are_cut_off_for_longer_than_the_idle_timeout(
    seed: int,
) -> None:
    random = Random(seed)
    run = begin(seed, update_log_bytes_max=random.choice([1, 2_000, 2**20]))
    run.join_and_wait(random.randint(2, 5))
    for worker in random.sample(run.workers, random.randint(1, len(run.workers))):
        for _ in range(random.choice([1, 1, 2])):
            start = random.uniform(0, 12)
            run.network.after(start, partial(run.cut_off, worker, random.uniform(1, 9)))
    if random.random() < 0.3:
        run.network.after(random.uniform(0, 9), run.join)

    run.train(60, interval=0.3)
    run.network.run_for(10)  # whoever is cut off at the end may not have noticed yet
    run.wait_until_all_are_back()

    run.finish()


@pytest.mark.parametrize(("log_bytes_max", "rebases"), [(2**20, 0), (1, 1)])
def test_who_is_back_gets_what_is_kept_and_else_the_replica(
    log_bytes_max: int, rebases: int
) -> None:
    run = begin(1, update_log_bytes_max=log_bytes_max)
    run.join_and_wait(3)
    lost, ranks = run.workers[1], [worker.rank for worker in run.workers]

    run.cut_off(lost, 10.0)
    run.train(40, interval=0.5)
    run.wait_until_all_are_back()

    assert (lost.reconnections, lost.rebases) == (1, rebases)
    assert [worker.rank for worker in run.workers] == ranks
    assert run.sample("rejoins_total") == 1
    run.finish()


def swallow_large_packets(run: SimulatedRun, worker: SimulatedWorker) -> None:
    """Let only small packets of a worker through: acknowledgements, and no updates."""
    run.network.on_datagram = lambda source, _, datagram: (
        source != worker.name or len(datagram) < 100
    )


def test_a_path_that_swallows_updates_for_a_while_costs_the_connection_and_not_the_worker() -> None:
    run = begin(1)
    run.join_and_wait(3)
    run.train(3)
    lost = run.workers[1]

    swallow_large_packets(run, lost)
    run.train(40, interval=0.3)
    assert "small datagrams" in str(lost.lost)
    run.network.on_datagram = lambda *_: True
    run.wait_until_all_are_back()

    run.finish()


def test_a_path_that_swallows_them_again_after_that_ends_the_worker() -> None:
    run = begin(1)
    run.join_and_wait(2)
    lost = run.workers[1]
    run.network.on_datagram = lambda source, _, datagram: (
        # What it dials and joins with gets through.
        source != lost.name or len(datagram) < 68 or lost.worker.stage is not Stage.LIVE
    )

    for _ in range(100):
        lost.step() if lost.live and not lost.closed else None
        run.network.run_for(0.5)

    assert lost.closed
    assert "the path carries small datagrams, but none of" in str(lost.error)
    assert lost.reconnections == 1


@pytest.mark.seeds(10)
def test_of_the_replica_who_is_back_gets_only_the_blocks_that_differ(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers that nobody trains do not travel."""
    monkeypatch.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", 64)
    run = begin(seed, update_log_bytes_max=1, elements=3000)
    run.join_and_wait(3)
    for worker in run.workers:
        worker.trains = slice(100, 300)
    lost = run.workers[1]
    came: list[set[int]] = []
    mend = Repair.mend

    def note(mending: Repair, rebase: Rebase) -> None:
        came.append(set(rebase.values))
        mend(mending, rebase)

    monkeypatch.setattr(Repair, "mend", note)

    run.cut_off(lost, 10.0)
    run.train(40, interval=0.5)
    run.wait_until_all_are_back()
    lost.pull()

    assert lost.rebases == 1
    assert came == [{1, 2, 3, 4}]
    run.finish()


def test_a_place_is_kept_for_who_is_expected_back() -> None:
    run = begin(2)
    run.join_and_wait(3)
    lost = run.workers[0]

    run.cut_off(lost, 10.0)
    run.network.run(lambda: len(run.master.roster) == 2, seconds=30)
    [late] = run.join_and_wait(1, seconds=5)
    run.wait_until_all_are_back()

    assert late.rank not in (worker.rank for worker in run.workers if worker is not late)
    run.train(3)
    run.finish()


def test_who_was_away_for_too_long_is_told_to_join_anew() -> None:
    run = begin(3, Link(), rejoin_seconds=5.0)
    run.join_and_wait(2)
    lost = run.workers[0]

    run.cut_off(lost, 20.0)
    run.network.run(lambda: lost.closed, seconds=60)

    assert lost.error is not None
    assert "Join again, as a new worker" in str(lost.error)
    run.train(3)
    run.finish()


def test_who_does_not_reach_the_master_any_more_gives_up_in_the_end() -> None:
    run = begin(4)
    run.join_and_wait(2)
    lost = run.workers[0]

    run.cut_off(lost, 1e6)
    run.network.run(lambda: lost.closed, seconds=1_000)

    assert isinstance(lost.error, ConnectionLostError)
    assert "600 s of dialling" in str(lost.error)


def lost_impostor(run: SimulatedRun, resume: Resume) -> ScriptedPeer:
    """Let the master lose a worker, and somebody with its id come back for it."""
    lost = run.workers[0]
    run.cut_off(lost, 1e6)
    run.network.run(lambda: len(run.master.roster) == len(run.workers) - 1, seconds=30)
    return run.ask_to_join(worker_id=lost.worker.state.join.worker_id, resume=resume)


@pytest.mark.parametrize(
    ("sequence", "ahead", "what"),
    [
        (0, 0, "returns as rank 0 with 0 updates sent; 1 were accepted"),
        (9, 7, "returns with the log up to position 8; it ends at 1"),
    ],
)
def test_who_claims_what_cannot_be_is_sent_away(sequence: int, ahead: int, what: str) -> None:
    run = begin(5)
    run.join_and_wait(3)
    assert run.workers[0].rank == 0
    run.workers[0].step()
    run.network.run(lambda: run.workers[0].delivered == 1, seconds=5)
    place = run.state.relay.log.place

    claimed = replace(place, position=place.position + ahead)
    impostor = lost_impostor(run, resume_of(0, sequence, {}, 3, place=claimed))

    assert what in impostor.wait_for_end().reason


def test_who_claims_another_rank_than_its_own_is_refused() -> None:
    run = begin(5)
    run.join_and_wait(3)

    impostor = lost_impostor(run, resume_of(2, 9, {}, 3))

    assert impostor.wait_for(Refuse).code == RefusalCode.NOT_EXPECTED
    assert len(run.master.roster) == 2


def test_who_is_back_before_it_was_missed_takes_its_own_place() -> None:
    run = begin(7)
    run.join_and_wait(2)
    before = run.enter("old")
    rank = before.all(Welcome)[0].rank
    run.network.run(lambda: run.sample("snapshots_sent_total") >= 2, seconds=5)

    resume = resume_of(rank, 0, {}, 3, place=run.state.relay.log.place)
    after = run.ask_to_join("new", worker_id=worker_id_of("old"), resume=resume)

    assert before.wait_for_end().reason == "its worker is back over another connection"
    welcome = after.wait_for(Welcome)
    assert (welcome.rank, welcome.resumed) == (rank, True)


def test_who_had_finished_hears_of_the_end_when_it_is_back() -> None:
    run = begin(8)
    run.join_and_wait(3)
    run.train(3)
    lost, *others = run.workers
    for worker in run.workers:
        worker.finish()
    run.cut_off(lost, 8.0)
    run.network.run(lambda: all(w.try_to_complete() for w in others), seconds=60)

    run.network.run(lost.try_to_complete, seconds=60)

    assert len({worker.replica.digest() for worker in run.workers}) == 1


@pytest.mark.parametrize("rejoin_seconds", [600.0, 1.0], ids=["is expected", "not any more"])
@pytest.mark.parametrize("runs_after", [0, 1], ids=["nothing since", "another run since"])
def test_who_is_back_when_all_others_have_finished_and_left_is_told_so(
    rejoin_seconds: float, runs_after: int
) -> None:
    run = begin(11, Link(), rejoin_seconds=rejoin_seconds)
    run.join_and_wait(3)
    run.train(3)
    lost, *others = run.workers
    run.cut_off(lost, 40.0)
    for _ in range(3):
        lost.step()
    run.network.run(lambda: len(run.master.roster) == 2, seconds=30)
    run.workers = others
    run.finish()
    for _ in range(runs_after):
        run.workers = []
        run.ledger = Ledger()
        run.join_and_wait(1)
        run.finish()

    run.network.run(lambda: lost.closed, seconds=90)

    assert isinstance(lost.error, RefusedError)
    assert lost.error.code == RefusalCode.RUN_FINISHED
    assert "was finished by its other workers while nothing was heard of this one" in str(
        lost.error
    )
    assert run.master.run is None


def test_a_run_that_is_another_one_comes_back_although_one_was_finished_here() -> None:
    """The master was started anew, and new workers have finished a run before the old are back."""
    run = begin(12)
    run.join_and_wait(2)
    run.train(10)
    old = run.workers
    run.kill_master(back_after=0.1)
    for worker in old:
        run.cut_off(worker, 30.0)
    run.network.run(lambda: run.masters == 2, seconds=5)
    run.workers = []
    before, initial, run.ledger = run.ledger, run.initial, Ledger()
    run.join_and_wait(1)
    run.finish()

    run.workers, run.ledger, run.initial = old, before, initial
    run.wait_until_all_are_back()
    run.train(3)
    run.finish()


def test_who_comes_back_after_the_end_may_say_again_that_it_had_finished() -> None:
    """The master was stopped for a while: it hears that all finish when they dial again."""
    run = begin(1)
    run.join_and_wait(3)
    run.train(3)
    run.network.suspend(run.master_host, 6.0)
    for worker in run.workers:
        worker.finish()

    run.network.run(lambda: sum(w.try_to_complete() for w in run.workers) == 3, seconds=60)

    assert {worker.error for worker in run.workers} == {None}


def test_what_a_worker_had_sent_counts_when_it_is_lost_while_it_leaves() -> None:
    """Its updates wait for their pace; the last one lets it go, while it is being parted with."""
    run = begin(9, Link(), update_rate_max=0.1)
    run.join_and_wait(2)
    lost, other = run.workers
    for _ in range(BURST_UPDATES_MIN + 10):
        lost.step()
    lost.leave()
    run.network.run(lambda: lost.delivered == lost.sent, seconds=5)
    assert run.state.relay.versions[lost.rank] < lost.sent

    run.network.kill(lost.host)
    run.network.run(lambda: len(run.master.roster) == 1, seconds=30)

    assert run.state.relay.versions[lost.rank] == lost.sent
    run.network.run_for(1.0)
    other.pull()
    assert other.versions[lost.rank] == lost.sent
    [heir] = run.join_and_wait(1, seconds=10)
    assert heir.rank == lost.rank, "no place is kept for who wanted to go"


# Lost while the replica comes.


def begin_slowly(seed: int, *, log_bytes_max: int) -> SimulatedRun:
    """Let a run begin, and wait until somebody is training; its snapshots take seconds."""
    link = Link(delay=0.05, loss=Random(seed).choice([0.0, 0.02]), duplication=0.02)
    run = begin(seed, link, elements=3000, update_log_bytes_max=log_bytes_max)
    run.join_and_wait(2)
    return run


def blocks_sent_to(run: SimulatedRun, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what gets the number of every block of the replica that is sent from now on."""
    sent: list[int] = []
    block = ReplicaCopy.block

    def note(copy: ReplicaCopy, number: int) -> bytes:
        sent.append(number)
        return block(copy, number)

    monkeypatch.setattr(ReplicaCopy, "block", note)
    return sent


@pytest.mark.seeds(30)
def test_what_has_come_of_the_replica_does_not_come_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although all of it has changed meanwhile: the updates are still kept."""
    monkeypatch.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", 64)
    run = begin_slowly(seed, log_bytes_max=2**20)
    sent = blocks_sent_to(run, monkeypatch)
    joiner = run.join()
    for times in range(1, Random(seed).choice([2, 3])):
        wanted = 12 * times
        run.network.run(lambda n=wanted: len(sent) >= n, seconds=60)  # type: ignore[misc]
        run.cut_off(joiner, 5.0)
        run.train(10, interval=0.5)
    run.network.run(lambda: joiner.live, seconds=60)

    assert joiner.reconnections == 1
    assert len(sent) <= count_blocks(run.elements) + 2 * BLOCKS_UNDER_WAY_MAX
    run.train(3)
    run.finish()


def test_who_has_a_part_of_a_run_that_is_gone_is_told_to_join_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", 64)
    run = begin_slowly(1, log_bytes_max=1)
    sent = blocks_sent_to(run, monkeypatch)
    joiner = run.join()
    run.network.run(lambda: len(sent) >= 12, seconds=60)
    for worker in run.workers:
        if worker is not joiner:
            run.network.kill(worker.host)

    run.kill_master(back_after=1.0)
    run.network.run(lambda: joiner.closed, seconds=60)

    assert "Join again, as a new worker" in str(joiner.error)
