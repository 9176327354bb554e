"""Workers, observers and operators of sealed runs: what each can do, and cannot.

Every history is determined by its seed, which is the test's parameter.
"""

import gc
from random import Random
from weakref import ref

import numpy as np
import pytest

from gradwire.errors import ConnectionLostError, RefusedError
from gradwire_codecs import Replica, encode
from gradwire_protocol import CloseCode, Role
from gradwire_protocol.messages.admission import RefusalCode, Refuse, Welcome
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.updates import Finish, Leave
from gradwire_server.config import MasterConfig
from gradwire_server.updates.vetting import WORKERS_MIN
from support.health import with_only_run
from support.keyed import RUN_KEY
from support.network import Link, bad_link
from support.operating import SimulatedOperator
from support.peer import join_request
from support.simulated_worker import CHANGE, SimulatedWorker
from support.training import SimulatedRun

HISTORIES = 8


def run_with(workers: int, *, seed: int = 1, config: MasterConfig | None = None) -> SimulatedRun:
    run = SimulatedRun(seed, Link(), elements=40, run_key=RUN_KEY, master=config)
    run.join_and_wait(workers)
    return run


def observer_in(run: SimulatedRun) -> SimulatedWorker:
    observer = run.observe()
    run.network.run(lambda: observer.live, seconds=60)
    return observer


def let_the_worker_leave(run: SimulatedRun) -> None:
    [worker] = run.workers
    worker.leave()
    run.network.run(lambda: worker.closed, seconds=60)


def wait_for_quarantine(run: SimulatedRun) -> None:
    run.network.run(lambda: run.sample("quarantined_workers") == 1, seconds=30)


# Workers.


def test_a_worker_is_known_by_the_name_in_its_key_whatever_it_calls_itself() -> None:
    run = run_with(2)

    liar = run.dial("mallory")
    liar.say(join_request(layout=run.layout, name="worker0"))
    liar.wait_for(Welcome)

    assert [peer.name for peer in run.master.roster.peers()] == [
        "worker0",
        "worker1",
        "mallory at worker0",
    ]
    assert liar.all(Welcome)[0].roster == run.master.roster.peers()


def test_a_worker_that_has_crashed_is_replaced_at_once_by_its_successor() -> None:
    run = run_with(2)
    run.train(3)
    crashed = run.workers.pop()
    rank = crashed.rank
    run.network.kill(crashed.host)

    successor = run.join(key_name="worker1")
    run.network.run(lambda: successor.live, seconds=5)

    assert successor.rank == rank
    assert run.sample("leaves_total", reason="replaced") == 1
    assert run.sample("workers") == 2
    run.train(3)
    run.finish()


@pytest.mark.seeds(HISTORIES)
def test_of_two_processes_with_the_same_key_the_newer_one_stays(seed: int) -> None:
    run = SimulatedRun(seed, bad_link(Random(seed)), run_key=RUN_KEY)
    run.join_and_wait(2)
    run.train(2)
    older = run.workers[1]

    newer = run.join(key_name=older.name)
    run.network.run(lambda: newer.live and older.closed, seconds=60)

    run.workers.remove(older)
    assert isinstance(older.error, ConnectionLostError)
    assert "another process came in with the same key, that of worker1" in str(older.error)
    assert run.sample("leaves_total", reason="replaced") == 1
    run.train(2)
    run.finish()


@pytest.mark.parametrize("role", Role)
def test_who_has_not_joined_yet_is_replaced_too(role: Role) -> None:
    run = run_with(1)
    older = run.dial("twin", role, address="older")

    run.dial("twin", role, address="newer")

    assert older.wait_for_end().code == CloseCode.REPLACED
    assert run.sample("leaves_total", reason="replaced") == 0


def test_one_key_takes_part_in_two_runs_at_once() -> None:
    run, peers = run_with(1), []

    for name in ("one", "other"):
        peer = run.dial("twin", address=name)
        peer.say(join_request(run=name, layout=run.layout))
        peer.wait_for(Welcome)
        peers.append(peer)

    assert [peer.ended for peer in peers] == [None, None]


def test_nothing_holds_a_connection_that_is_over() -> None:
    run = SimulatedRun(watches_transport=False)
    peer = run.enter()
    member = run.master.roster.at(0)
    assert member is not None
    connection = ref(member.link.connection)
    del member

    peer.say(Leave(0, "done"))
    peer.wait_for_end()
    run.network.run(lambda: not list(run.master_endpoint.connections()), seconds=60)
    gc.collect()

    assert connection() is None


def test_two_roles_of_one_name_are_two_keys_and_do_not_replace_each_other() -> None:
    run = run_with(1)

    peers = [run.dial("worker0", role, address=role.name) for role in Role][1:]
    run.network.run_for(1.0)

    assert [peer.ended for peer in peers] == [None] * (len(Role) - 1)


# Observers.


@pytest.mark.seeds(HISTORIES)
def test_an_observer_has_the_same_bits_as_the_workers_in_the_end(seed: int) -> None:
    random = Random(seed)
    run = SimulatedRun(seed, bad_link(random), run_key=RUN_KEY)
    run.join_and_wait(random.randint(1, 3))
    run.train(3)
    observers = [run.observe() for _ in range(random.randint(1, 2))]
    run.train(3)
    run.network.run(lambda: all(o.live for o in observers), seconds=60)

    run.finish()

    assert all(observer.done for observer in observers)


def test_an_observer_is_no_peer_and_takes_no_rank_that_a_worker_could_have() -> None:
    run = run_with(1)
    observer = observer_in(run)
    [late] = run.join_and_wait(1)
    run.network.run_for(1.0)

    assert (late.rank, observer.rank) == (1, 3999)
    for member in (*run.workers, observer):
        assert [peer.rank for peer in member.peers] == [0, 1]
    assert (run.sample("workers"), run.sample("observers")) == (2, 1)


def test_an_observer_that_hears_nothing_holds_up_neither_stability_nor_the_end() -> None:
    run = run_with(2)
    observer = observer_in(run)
    run.network.kill(observer.host)

    run.train(3)
    run.network.run(
        lambda: all(w.stable.get(w.rank, 0) == w.sent > 0 for w in run.workers), seconds=5
    )
    for worker in run.workers:
        worker.finish()
    run.network.run(lambda: sum(w.try_to_complete() for w in run.workers) == 2, seconds=5)
    run.network.run(lambda: run.master.run is None, seconds=5)

    assert run.sample("runs_finished_total") == 1


def test_an_observer_is_refused_while_there_is_no_run() -> None:
    run = SimulatedRun(elements=40, run_key=RUN_KEY)
    observer = run.observe()

    run.network.run(lambda: observer.closed, seconds=60)

    assert isinstance(observer.error, RefusedError)
    assert observer.error.code == RefusalCode.NO_RUN
    assert "there is no run to observe" in str(observer.error)
    assert run.master.run is None


def test_an_observer_may_fetch_the_parameters_of_a_run_that_nobody_trains_any_more() -> None:
    run = run_with(1)
    run.train(3)
    let_the_worker_leave(run)

    observer = observer_in(run)

    assert observer.replica.values.tobytes() == run.state.replica.values.tobytes()


def test_an_observer_of_another_run_does_not_end_the_one_that_is_there() -> None:
    run = run_with(1)
    let_the_worker_leave(run)

    observer = run.ask_to_join("eyes", Role.OBSERVER, run="another")

    assert observer.wait_for(Refuse).code == RefusalCode.NO_RUN
    assert run.state.name == "default"


def test_a_run_with_observers_only_makes_way_for_the_next_one() -> None:
    run = run_with(1)
    observer = observer_in(run)
    let_the_worker_leave(run)

    other = run.enter("other", layout=Layout((Tensor("weights", (59,)),)))
    run.network.run(lambda: observer.closed, seconds=60)

    assert other.all(Welcome)[0].founder
    assert "the run that was observed is over" in str(observer.error)
    assert run.sample("leaves_total", reason="run_over") == 1


def test_an_observer_of_a_finished_run_may_take_its_time_to_leave() -> None:
    run = run_with(1)
    observer = observer_in(run)
    [worker] = run.workers
    worker.finish()
    run.network.run(worker.try_to_complete, seconds=60)
    run.network.run(lambda: run.master.run is None, seconds=60)

    run.network.run(observer.try_to_complete, seconds=60)
    run.network.run(lambda: observer.closed, seconds=60)

    assert observer.error is None
    assert run.sample("leaves_total", reason="left") == 2


@pytest.mark.parametrize("what", ["update", "snapshot", "finish"])
def test_an_observer_that_wants_a_say_is_sent_away_and_changes_nothing(what: str) -> None:
    run = run_with(2)
    rogue = run.enter("rogue", Role.OBSERVER)
    rank = rogue.all(Welcome)[0].rank
    before = run.state.replica.values.tobytes()

    change = np.full(run.elements, CHANGE, np.float32)
    if what == "update":
        [body] = encode(change, Replica.zeros(run.elements), threshold=CHANGE)
        rogue.say_update(rank, 1, body)
    elif what == "snapshot":
        rogue.say_block(0, np.ones(run.elements, np.int32))
    else:
        rogue.say(Finish(0))

    end = rogue.wait_for_end()
    assert end.code == CloseCode.INVALID_MESSAGE
    assert end.reason.endswith(f"from rank {rank} (rogue), an observer")
    assert run.state.replica.values.tobytes() == before
    assert run.sample("messages_invalid_total") == 1
    assert run.sample("leaves_total", reason="fault") == 1
    run.train(2)
    run.finish()


def test_an_observer_can_leave() -> None:
    run = run_with(1)
    leaver = run.enter("leaver", Role.OBSERVER)

    leaver.say(Leave(0, "enough seen"))

    assert leaver.wait_for_end().code == EndCode.LEFT


# Operators.


def test_an_operator_sees_who_takes_part() -> None:
    run = run_with(2)
    observer_in(run)
    run.train(1)

    status = SimulatedOperator(run).status()

    assert (
        status
        == with_only_run(status)
        == {
            "runs": status["runs"],
            "name": "default",
            "finished": False,
            "parameters": run.elements,
            "mode": "sharing",
            "round": None,
            "workers": [
                {"rank": 0, "name": "worker0", "phase": "live", "quarantined": False},
                {"rank": 1, "name": "worker1", "phase": "live", "quarantined": False},
            ],
            "observers": [
                {"rank": 3999, "name": "observer0", "phase": "live", "quarantined": False}
            ],
            "versions": {str(r): s for r, s in sorted(run.state.relay.versions.items())},
            "draining": False,
            "denied": [],
            "stopping": None,
            "items_paused": False,
            "epochs_granted": None,
            "works": [],
            "checkpoint": None,
            "master": run.master.terms.status(),
        }
    )


def test_a_drained_master_lets_nobody_in_and_stops_when_the_last_worker_has_left() -> None:
    run = run_with(2)
    operator = SimulatedOperator(run)

    assert operator.order("drain") == (
        "nobody is let in any more; the master stops when the last has left; workers: 2"
    )
    late = run.join()
    run.network.run(lambda: late.closed, seconds=60)
    run.workers.remove(late)
    observer = run.observe()
    run.network.run(lambda: observer.closed, seconds=60)
    run.train(2)
    assert run.drained is None
    run.finish()

    for refused in (late, observer):
        assert isinstance(refused.error, RefusedError)
        assert refused.error.code == RefusalCode.DRAINING
    assert run.drained == "the master was stopped by an operator, who drained it"


def test_a_drained_master_that_nobody_uses_stops_at_once() -> None:
    run = SimulatedRun(run_key=RUN_KEY)

    SimulatedOperator(run).order("drain")

    assert run.drained is not None


def test_draining_can_be_taken_back() -> None:
    run = run_with(1)
    operator = SimulatedOperator(run)
    assert operator.refused("resume") == "nothing to resume: no operator drains the master"
    operator.order("drain")

    operator.order("resume")
    run.join_and_wait(1)

    run.train(1)
    run.finish()
    assert run.drained is None


def test_a_name_that_is_denied_goes_at_once_and_comes_in_when_it_is_admitted() -> None:
    run = run_with(2)
    operator = SimulatedOperator(run)
    denied = run.workers.pop()

    answer = operator.order("deny", "worker1")
    run.network.run(lambda: denied.closed, seconds=5)
    again = run.join(key_name="worker1")
    run.network.run_for(10.0)
    in_vain = not again.live
    names = operator.status()["denied"]
    operator.order("admit", "worker1")
    run.network.run(lambda: again.live, seconds=60)

    assert answer == (
        "worker1 is denied until the master ends; for longer, start it with --deny worker1"
    )
    assert "the key of this worker is not accepted any more" in str(denied.error)
    assert run.sample("leaves_total", reason="denied") == 1
    assert in_vain
    assert names == ["worker1"]
    run.train(1)
    run.finish()


def test_a_worker_in_quarantine_is_released_by_name_or_by_rank() -> None:
    for how in ("worker1", "1"):
        run = run_with(WORKERS_MIN, config=MasterConfig(outliers="quarantine"))
        run.train(12)
        broken = run.workers[1]
        broken.change = 1_000 * CHANGE
        run.train(1)
        wait_for_quarantine(run)
        operator = SimulatedOperator(run)

        answer = operator.order("release", how)

        assert answer == f"released from quarantine: rank {broken.rank} (worker1)"
        assert operator.refused("release", how) == f"{how} is not in quarantine"
        run.train(1)
        run.finish()


def test_a_worker_or_an_observer_is_sent_away_by_name_or_by_rank() -> None:
    run = run_with(3)
    observer = observer_in(run)
    operator = SimulatedOperator(run)

    answers = [operator.order("expel", who) for who in ("worker2", "1", "observer0")]
    run.network.run(lambda: all(w.closed for w in (*run.workers[1:], observer)), seconds=60)

    assert answers[0] == "expelled: rank 2 (worker2); unless denied, it may join again"
    assert "an operator has expelled it" in str(run.workers[2].error)
    assert run.sample("leaves_total", reason="expelled") == 3
    assert operator.refused("expel", "worker2") == (
        "no member has the key name worker2: status lists the members"
    )
    run.observers.clear()
    run.train(1)
    run.finish()


def test_a_worker_in_quarantine_is_told_so_when_it_is_sent_away() -> None:
    run = run_with(WORKERS_MIN, config=MasterConfig(outliers="quarantine"))
    run.train(12)
    broken = run.workers.pop()
    broken.change = 1_000 * CHANGE
    broken.step()
    wait_for_quarantine(run)
    operator, before = SimulatedOperator(run), run.sample("updates_accepted_total")

    operator.order("expel", broken.name)
    run.network.run(lambda: broken.closed, seconds=60)

    assert "in quarantine since an update was far larger" in str(broken.error)
    assert run.sample("leaves_total", reason="quarantined") == 1
    dropped = run.sample("updates_discarded_total")
    assert dropped > 0
    assert f"{dropped:.0f} updates were dropped" in str(broken.error)
    assert run.sample("quarantined_workers") == 0
    assert run.sample("updates_accepted_total") == before
    run.finish()
