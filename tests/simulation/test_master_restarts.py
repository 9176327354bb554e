"""A master that is killed and started anew gets its run back from the workers.

``pytest tests/simulation/test_master_restarts.py -k '[17]'`` shows one history again.
"""

from collections.abc import Mapping
from functools import partial
from random import Random

import pytest

from gradwire.errors import RefusedError
from gradwire.worker.state import Stage
from gradwire_protocol import Priority, ShapedMessage
from gradwire_protocol.messages.admission import RefusalCode, Roster, Welcome
from gradwire_protocol.messages.fields import covers
from gradwire_protocol.messages.kinds import LOG_STREAM, EndCode
from gradwire_protocol.messages.updates import Entries
from gradwire_server.config import MasterConfig
from gradwire_server.replica.founding import TIMES_LOST_MAX
from gradwire_server.state.roster import Phase
from support.keyed import RUN_KEY
from support.link import Link
from support.network import link_of
from support.peer import resume_of
from support.simulated_worker import SimulatedWorker
from support.training import SimulatedRun

IDLE_SECONDS = 3.0


def begin(
    seed: int, random: Random, *, sealed: bool = False, log_bytes_max: int = 2**20
) -> SimulatedRun:
    """Let a run begin on a network that loses, repeats, delays and reorders."""
    return SimulatedRun(
        seed,
        link_of(random),
        elements=random.choice([50, 400, 3000]),
        idle_timeout_seconds=IDLE_SECONDS,
        master=MasterConfig(
            idle_timeout_seconds=IDLE_SECONDS,
            recovery_seconds=4.0,
            update_log_bytes_max=log_bytes_max,
        ),
        run_key=RUN_KEY if sealed else None,
    )


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "insecure"])
def test_a_master_that_is_back_at_once_is_noticed_long_before_the_idle_timeout(
    sealed: bool,
) -> None:
    random = Random(1)
    run = begin(1, random, sealed=sealed)
    run.join_and_wait(16)
    run.kill_master(back_after=0.2)
    for worker in run.workers:
        worker.step()
    killed = run.network.now

    run.network.run(lambda: all(w.lost is not None for w in run.workers), seconds=30)

    assert run.network.now - killed < IDLE_SECONDS / 2
    run.wait_until_all_are_back()
    run.finish()


def test_one_worker_may_die_with_the_master() -> None:
    random = Random(1)
    run = begin(1, random)
    run.join_and_wait(4)
    run.train(5)
    dead, *alive = run.workers
    dead.step()
    run.network.kill(dead.host)

    run.lose_master(*alive)
    run.wait_until_all_are_back()
    run.train(5)

    run.finish()


def with_one_that_the_other_does_not_know() -> tuple[
    SimulatedRun, SimulatedWorker, SimulatedWorker
]:
    """Return a run with a worker, and one that has joined while the first could hear nothing."""
    run = begin(1, Random(1))
    run.join_and_wait(1)
    [known] = run.workers
    run.network.on_datagram = lambda source, target, _: known.name not in (source, target)
    [late] = run.join_and_wait(1, seconds=2)
    run.network.on_datagram = lambda *_: True
    return run, known, late


def test_a_worker_of_whom_none_of_the_others_knew_comes_back_too() -> None:
    run, known, late = with_one_that_the_other_does_not_know()
    run.lose_master(known, back_after=0.1)
    late.step()

    run.wait_until_all_are_back()
    run.train(3)

    assert late.reconnections == 1
    run.finish()


def test_a_new_worker_does_not_take_the_rank_of_one_that_the_others_did_not_know() -> None:
    run, known, late = with_one_that_the_other_does_not_know()
    run.network.kill(run.master_host)
    run.network.run(lambda: late.lost is not None and known.lost is not None, seconds=30)
    run.network.on_datagram = lambda source, target, _: late.name not in (source, target)
    run.start_master_anew()
    newcomer = run.join()
    run.network.run(lambda: known.lost is None, seconds=10)
    run.network.on_datagram = lambda *_: True

    run.network.run(lambda: newcomer.live and late.lost is None, seconds=60)

    assert len({known.rank, late.rank, newcomer.rank}) == 3
    run.train(3)
    run.finish()


@pytest.mark.parametrize("gathers", [True, False], ids=["in the recovery", "later"])
def test_who_finds_its_rank_with_the_updates_of_another_one_is_told_to_join_again(
    gathers: bool,
) -> None:
    run, known, late = with_one_that_the_other_does_not_know()
    run.network.on_datagram = lambda source, target, _: late.name not in (source, target)
    run.lose_master(known, back_after=0.1)
    newcomer = run.join()
    run.network.run(lambda: newcomer.live, seconds=120)
    assert newcomer.rank == late.rank
    newcomer.step()
    run.network.run(lambda: newcomer.delivered == 1, seconds=5)
    run.network.kill(newcomer.host)
    run.lose_master(known, back_after=0.1)
    run.network.run(lambda: gathers or known.lost is None, seconds=60)
    run.network.on_datagram = lambda *_: True

    run.network.run(lambda: late.closed, seconds=60)

    assert isinstance(late.error, RefusedError)
    assert late.error.code == RefusalCode.NOT_EXPECTED


def test_the_rank_of_one_without_updates_is_kept_for_it_through_two_restarts() -> None:
    """The others have nothing of it but its rank, which they saw in a roster."""
    run = begin(3, Random(3))
    run.join_and_wait(2)
    stays, silent = run.workers
    rank = silent.rank
    stays.step()
    run.network.on_datagram = lambda source, target, _: silent.name not in (source, target)
    for _ in range(2):
        run.lose_master(stays, back_after=0.1)
        [newcomer] = run.join_and_wait(1)
        assert newcomer.rank != rank
        run.network.kill(newcomer.host)
        run.network.run(lambda: len(run.master.roster) == 1, seconds=30)
    run.network.on_datagram = lambda *_: True

    run.wait_until_all_are_back()

    assert silent.rank == rank
    run.train(3)
    run.finish()


def test_who_was_cut_off_before_the_master_died_has_not_the_replica_to_go_on_with() -> None:
    """The others keep no more what all had who took part then, and it has trained on by itself."""
    run = begin(1, Random(1))
    run.join_and_wait(3)
    away, *others = run.workers
    run.network.on_datagram = lambda source, target, _: away.name != source
    run.network.run(lambda: len(run.master.roster) == 2, seconds=30)
    for _ in range(3):
        others[0].step()
    run.network.run(lambda: others[0].stable.get(others[0].rank) == 3, seconds=30)
    for _ in range(20):
        away.step()
    run.kill_master(back_after=0.1)
    run.network.on_datagram = lambda *_: True

    run.wait_until_all_are_back()
    run.train(3)

    run.finish()


def test_with_keys_workers_hear_at_once_that_the_master_was_started_anew() -> None:
    run = begin(3, Random(3), sealed=True)
    run.join_and_wait(3)
    run.train(5)
    run.kill_master(back_after=0.1)

    run.train(5)
    run.wait_until_all_are_back()

    assert {w.reconnections for w in run.workers} == {1}
    run.finish()


def hold_back(run: SimulatedRun, worker: SimulatedWorker) -> None:
    """Let what the master sends a worker of its log be on its way until the master is killed."""
    member = run.master.roster.at(worker.rank)
    assert member is not None
    connection = member.link.connection
    relay = connection.relay

    def keep(message: ShapedMessage, priority: Priority) -> None:
        if message.stream != LOG_STREAM:
            relay(message, priority)

    connection.relay = keep  # type: ignore[method-assign]


@pytest.mark.parametrize("log_bytes_max", [1, 2**20], ids=["log of nothing", "log"])
def test_two_workers_may_die_with_the_master_and_the_most_advanced_one_has_what_they_did(
    log_bytes_max: int,
) -> None:
    run = begin(4, Random(4), log_bytes_max=log_bytes_max)
    run.join_and_wait(4)
    run.train(5)
    first, second, behind, heir = run.workers
    hold_back(run, behind)
    for worker in 3 * run.workers:
        worker.step()
        run.network.run_for(0.25)
    had = {rank: heir.versions[rank] for rank in (first.rank, second.rank)}
    assert all(behind.versions[rank] < sequence for rank, sequence in had.items())
    for worker in (first, second):
        run.network.kill(worker.host)

    run.lose_master(behind, heir)
    run.wait_until_all_are_back()
    run.train(5)

    versions = run.state.relay.versions
    assert {rank: versions[rank] for rank in had} == had
    assert [behind.rebases, heir.rebases] == [0, 0]
    run.finish()


@pytest.mark.seeds(10)
def test_nobody_needs_a_replica_for_updates_that_somebody_keeps(seed: int) -> None:
    run = begin(seed, Random(seed))
    run.join_and_wait(4)
    run.train(20)
    run.kill_master(back_after=1.0)

    run.train(5)
    run.wait_until_all_are_back()

    assert [worker.rebases for worker in run.workers] == [0] * 4
    run.finish()


@pytest.mark.parametrize("seed", [17, 28, 39])
def test_the_heir_sends_nothing_new_before_the_master_knows_what_is_in_its_replica(
    seed: int,
) -> None:
    """Its replica may be there before the message that says what is in it."""
    settings = MasterConfig(idle_timeout_seconds=10.0, recovery_seconds=4.0)
    link = Link(delay=0.005, loss=0.3)
    run = SimulatedRun(seed, link, elements=3_000, idle_timeout_seconds=10.0, master=settings)
    run.join_and_wait(3)
    run.train(6)
    run.kill_master(back_after=0.1)

    run.train(12, interval=0.3)
    run.wait_until_all_are_back()

    assert [worker.error for worker in run.workers] == [None] * 3
    run.finish()


@pytest.mark.seeds(40)
def test_histories_in_which_workers_die_while_the_run_comes_back(seed: int) -> None:
    random = Random(1000 + seed)
    run = begin(seed, random)
    run.join_and_wait(random.randint(3, 7))
    run.train(10)
    run.kill_master(back_after=random.uniform(0.01, 1))
    for worker in random.sample(run.workers, random.randint(1, 2)):
        run.network.after(random.uniform(0, 8), partial(run.network.kill, worker.host))

    run.train(5, interval=0.3)
    run.network.run_for(30)
    run.wait_until_all_are_back()
    run.train(3)

    run.finish()


@pytest.mark.seeds(10)
def test_new_workers_wait_for_those_who_took_part_before(seed: int) -> None:
    random = Random(seed)
    run = begin(seed, random)
    run.join_and_wait(3)
    run.train(5)
    run.network.kill(run.master_host)
    run.start_master_anew()
    late = run.join("local")

    run.train(5, interval=0.5)
    run.network.run(lambda: late.live, seconds=60)
    run.wait_until_all_are_back()

    assert len(run.state.relay.versions) >= 3
    run.train(3)
    run.finish()


def test_a_new_worker_begins_a_run_when_nobody_comes_back() -> None:
    run = begin(5, Random(5))
    run.network.kill(run.master_host)
    run.start_master_anew()
    started = run.network.now

    run.join_and_wait(2)

    assert run.network.now - started >= 4.0
    run.train(3)
    run.finish()


def begin_while_a_replica_is_wanted(
    *, joining: int = 0
) -> tuple[SimulatedRun, SimulatedWorker, list[SimulatedWorker]]:
    """Return a run whose restarted master asks the only worker with a replica for it.

    So many new workers wait meanwhile.
    """
    run = begin(5, Random(5))
    run.join_and_wait(2)
    run.train(5)
    dead, alone = run.workers
    run.network.kill(dead.host)
    run.kill_master(back_after=1.0)
    new = [run.join() for _ in range(joining)]
    run.network.run(lambda: _stage_of(run, alone) is Phase.FOUNDING, seconds=60)
    return run, alone, new


def wait_until_it_has(
    run: SimulatedRun, worker: SimulatedWorker, versions: Mapping[int, int]
) -> None:
    def has_all() -> bool:
        worker.pull()
        return covers(worker.versions, versions)

    run.network.run(has_all, seconds=30)


def _stage_of(run: SimulatedRun, worker: SimulatedWorker) -> Phase | None:
    member = run.master.roster.with_id(worker.worker.state.join.worker_id)
    return None if member is None else member.phase


def test_the_only_one_with_the_run_may_be_cut_off_while_its_replica_is_wanted() -> None:
    run, alone, [new] = begin_while_a_replica_is_wanted(joining=1)
    versions = dict(alone.versions)

    run.cut_off(alone, IDLE_SECONDS + 0.5)
    run.wait_until_all_are_back()

    assert not alone.closed
    assert new.live
    wait_until_it_has(run, new, versions)
    run.train(3)
    run.finish()


def test_nobody_else_has_to_be_there_while_it_is_cut_off() -> None:
    run, alone, _ = begin_while_a_replica_is_wanted()
    versions = dict(alone.versions)

    run.cut_off(alone, IDLE_SECONDS + 0.5)
    run.network.run(lambda: _stage_of(run, alone) is None, seconds=60)
    new = run.join()
    run.wait_until_all_are_back()

    assert not alone.closed
    wait_until_it_has(run, new, versions)
    run.finish()


def test_a_worker_that_is_cut_off_again_and_again_does_not_hold_new_workers_up_for_ever() -> None:
    run, alone, [new] = begin_while_a_replica_is_wanted(joining=1)

    for _ in range(TIMES_LOST_MAX + 1):
        run.cut_off(alone, IDLE_SECONDS + 0.5)
        run.network.run(lambda: _stage_of(run, alone) is None, seconds=60)
        run.network.run(lambda: new.live or _stage_of(run, alone) is Phase.FOUNDING, seconds=60)

    assert new.live


def test_entries_that_nobody_asked_for_end_the_connection() -> None:
    run = begin(7, Random(7))
    run.join_and_wait(2)
    run.train(3)
    liar, other = run.workers
    run.network.kill(other.host)
    run.kill_master(back_after=1.0)
    run.network.run(lambda: liar.worker.stage is Stage.JOINING, seconds=30)
    assert liar.worker.state.link is not None

    liar.worker.state.link.send_log(Entries(9, b"?", None))
    run.network.turn(liar.host)
    run.network.run(lambda: liar.closed, seconds=30)

    assert "sent entries of the log that nobody asked for" in str(liar.error)


def test_a_worker_that_does_not_give_its_replica_holds_nobody_up() -> None:
    run = begin(6, Random(6))
    run.join_and_wait(3)
    run.train(5)
    stuck = max(run.workers, key=lambda worker: sum(worker.versions.values()))
    stuck.on_replica_wanted = lambda: None  # type: ignore[method-assign]
    for _ in range(3):  # it is the most advanced one
        stuck.step()
    run.network.run_for(5.0)
    run.kill_master(back_after=1.0)
    others = [worker for worker in run.workers if worker is not stuck]

    run.network.run(lambda: stuck.lost is not None, seconds=30)
    run.network.run(lambda: all(w.lost is None for w in others), seconds=60)
    run.train(3)
    run.wait_until_all_are_back()

    assert stuck.lost is None
    run.finish()


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "insecure"])
def test_who_leaves_while_the_master_dies_leaves_the_next_one(sealed: bool) -> None:
    run = begin(9, Random(9), sealed=sealed)
    run.join_and_wait(2)
    run.train(5)
    leaving, other = run.workers
    leaving.step()
    last = leaving.worker.sequence
    leaving.leave()
    run.kill_master(back_after=0.1)

    run.network.run(lambda: leaving.closed and other.reconnections == 1, seconds=60)
    wait_until_it_has(run, other, {leaving.rank: last})

    assert leaving.error is None
    run.train(3)
    run.finish()


@pytest.mark.parametrize("leaver_is_first", [True, False])
def test_of_two_who_are_back_with_one_rank_the_one_that_leaves_had_left_already(
    *, leaver_is_first: bool
) -> None:
    run = begin(3, Random(3))
    peers = []
    for name, leaving in (("first", leaver_is_first), ("second", not leaver_is_first)):
        peers.append(run.ask_to_join(name, resume=resume_of(0, 0, {}, 2, leaving=leaving)))
        run.network.run(lambda: len(run.master.roster) == 1, seconds=5)
    leaver, other = peers if leaver_is_first else reversed(peers)

    assert leaver.wait_for_end().code == EndCode.LEFT
    assert other.wait_for(Roster).peers[0].rank == 0
    [member] = run.master.roster
    assert member.link.connection.address == other.host.address


def test_a_rank_that_was_left_again_is_free_for_who_had_it_later_and_is_back_later() -> None:
    run = begin(4, Random(4))
    run.join_and_wait(2)
    stays, leaver = run.workers
    run.lose_master(*run.workers, back_after=0.1)
    leaver.leave()
    run.network.run(lambda: leaver.closed, seconds=30)

    late = run.ask_to_join("late", resume=resume_of(leaver.rank, 0, {stays.rank: 0}, 2))

    assert late.wait_for(Welcome).rank == leaver.rank
    assert leaver.error is None
