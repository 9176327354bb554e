"""Workers that do not keep up: what waits for them is added up, and nobody else notices.

``pytest tests/simulation/test_slow_workers.py -k '[17]'`` shows one history again.
"""

from functools import partial
from random import Random
from typing import Any, Final

import pytest

from gradwire_protocol.delivery import incoming
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.fields import covers
from gradwire_server.config import MasterConfig
from gradwire_server.log.segments import ENTRY_BYTES, HIT_BYTES
from support.keyed import RUN_KEY
from support.network import Host, Link, link_of
from support.simulated_worker import SimulatedWorker
from support.training import MASTER, SimulatedRun

BACKLOG_BYTES: Final = 30_000
"""Six small updates."""

NOTHING: Final = Link(loss=1.0)


def settings(**others: Any) -> MasterConfig:
    return MasterConfig(**{"relay_backlog_bytes_max": BACKLOG_BYTES, **others})


def begin(
    seed: int,
    link: Link,
    *,
    elements: int = 3_000,
    idle_seconds: float = 30.0,
    sealed: bool = False,
    **limits: Any,
) -> SimulatedRun:
    """Let a run begin whose master keeps little for a slow worker before it adds updates up."""
    return SimulatedRun(
        seed,
        link,
        elements=elements,
        idle_timeout_seconds=idle_seconds,
        run_key=RUN_KEY if sealed else None,
        master=settings(idle_timeout_seconds=idle_seconds, **limits),
    )


class Bound:
    """Checks after every turn of a master that what is under way to slow workers is bounded.

    Parameters
    ----------
    run : SimulatedRun
    """

    def __init__(self, run: SimulatedRun) -> None:
        self.run = run
        self.behind = set[str]()
        """Names of those that could not take what was accepted."""
        self._check_transport = run.network.after_turn
        run.network.after_turn = self.check

    def check(self, host: Host) -> None:
        self._check_transport(host)
        run = self.run.master.run
        if host.address != MASTER or run is None:
            return
        relay, settings = run.relay, self.run.settings
        assert relay.is_due or relay.sum_bytes <= settings.conflation_bytes_max
        segment = ENTRY_BYTES + HIT_BYTES * self.run.elements
        # What is under way cannot be merged, and is in the log until it is acknowledged.
        under_way = sum(len(cursor._under_way) for cursor in relay._members.values())
        places = 1 + 2 * len(self.run.master.roster) + under_way
        most = 1.5 * settings.update_log_bytes_max + segment * places
        assert relay.is_due or relay.log.nbytes <= most
        largest = charge_of(8 * self.run.elements + 1_024)  # one may always be under way
        limit = settings.relay_backlog_bytes_max
        for member in self.run.master.roster:
            sent = relay.bytes_under_way(member)
            assert sent <= limit + largest
            bulk = 0 if member.feed is None else member.feed.nbytes
            assert member.link.connection.bytes_queued - bulk <= sent + limit
        self.behind |= {member.join.name for member in relay.behind}


def slow_down(run: SimulatedRun, *workers: SimulatedWorker, random: Random) -> None:
    """Give workers links that do not take what the others send."""
    for worker in workers:
        run.network.set_link(MASTER, worker.name, too_slow(random))


def speed_up(run: SimulatedRun, *workers: SimulatedWorker) -> None:
    """Give workers the link of all others."""
    for worker in workers:
        run.network.set_link(MASTER, worker.name, run.network.link)


def too_slow(random: Random) -> Link:
    """Draw a link that does not take what the others send."""
    return Link(
        delay=random.choice([0.005, 0.05]),
        rate=random.choice([30e3, 100e3]),
        queue_bytes=20_000,
        loss=random.choice([0.0, 0.02]),
    )


def check_that_others_keep_up(run: SimulatedRun, slow: list[SimulatedWorker]) -> None:
    """Whoever is not slow has what was accepted until a moment ago."""
    accepted = dict(run.state.relay.versions)
    others = [w for w in run.workers if w not in slow and not w.is_gone]

    def all_have() -> bool:
        for worker in others:
            worker.pull()
        return all(covers(worker.versions, accepted) for worker in others)

    run.network.run(all_have, seconds=5)


@pytest.mark.deep("links that are far too slow")
@pytest.mark.seeds(30)
def test_histories_with_links_that_are_far_too_slow(seed: int) -> None:
    random = Random(seed)
    elements = random.choice([400, 3_000, 3_000, 150_000] if seed % 5 == 0 else [400, 3_000])
    run = begin(
        seed,
        link_of(random),
        elements=elements,
        idle_seconds=60.0,
        sealed=seed % 3 == 0,
        slow_seconds=300.0,
    )
    bound = Bound(run)
    run.join_and_wait(random.randint(3, 6))
    slow = random.sample(run.workers, random.randint(1, 2))
    slow_down(run, *slow, random=random)

    run.train(40, interval=0.05)
    check_that_others_keep_up(run, slow)
    speed_up(run, *slow)
    run.finish()

    assert all(worker.done for worker in run.workers)
    assert bound.behind >= {worker.name for worker in slow}
    if elements > 400:
        assert all(worker.sums for worker in slow), "or this would test nothing"
    # Of the last one, the acknowledgement may be lost.
    sums = sum(worker.sums for worker in run.workers)
    assert sums - len(run.workers) <= run.sample("sums_sent_total") <= sums


@pytest.mark.seeds(40)
def test_histories_in_which_workers_are_stopped_for_a_while(seed: int) -> None:
    """Some for so long that they are taken for lost, some more than once."""
    random = Random(seed)
    idle = random.choice([3.0, 30.0])
    run = begin(
        seed,
        link_of(random),
        elements=random.choice([50, 400, 3_000]),
        idle_seconds=idle,
        slow_seconds=random.choice([2.0, 60.0]),
        update_log_bytes_max=random.choice([1, 5_000, 2**20]),
    )
    bound = Bound(run)
    run.join_and_wait(random.randint(3, 6))
    stopped = random.sample(run.workers, random.randint(1, 2))
    for worker in stopped:
        for _ in range(random.choice([1, 2])):
            run.network.after(random.uniform(0, 5), partial(run.cut_off, worker, 4.0))
    if random.random() < 0.3:
        run.network.after(random.uniform(0, 5), run.join)

    run.train(120, interval=0.06)
    check_that_others_keep_up(run, stopped)
    run.network.run_for(10)  # whoever is cut off at the end may not have noticed yet
    run.wait_until_all_are_back(seconds=90)
    run.train(3)
    run.finish()

    assert all(worker.done for worker in run.workers)
    assert bound.behind


@pytest.mark.seeds(20)
def test_histories_in_which_conflated_workers_die_or_the_master_does(seed: int) -> None:
    random = Random(seed)
    run = begin(seed, link_of(random), idle_seconds=3.0, sealed=seed % 3 == 0, recovery_seconds=4.0)
    bound = Bound(run)
    run.join_and_wait(random.randint(4, 6))
    slow = random.sample(run.workers, 2)
    slow_down(run, *slow, random=random)
    if seed % 2:
        dying = random.choice(slow)
        run.network.after(random.uniform(1, 3), partial(run.network.kill, dying.host))
    else:
        master = run.master
        back_after = random.uniform(0.01, 5)
        run.network.after(random.uniform(1, 3), partial(run.kill_master, back_after=back_after))

    run.train(60, interval=0.08)
    speed_up(run, *slow)
    alive = [worker for worker in run.workers if not worker.is_gone]
    if not seed % 2:
        run.network.run(lambda: run.master is not master, seconds=60)
    run.wait_until_all_are_back(seconds=120)
    run.train(3)
    run.finish()

    assert all(worker.done for worker in alive)
    assert bound.behind


@pytest.mark.seeds(10)
def test_histories_in_which_who_joins_or_observes_is_slow(seed: int) -> None:
    """Updates wait behind a snapshot, too; and observers are sent sums like everyone."""
    random = Random(seed)
    run = begin(seed, link_of(random), sealed=True, slow_seconds=300.0)
    bound = Bound(run)
    run.join_and_wait(3)
    late, observer = run.join(), run.observe()
    slow_down(run, late, observer, random=random)

    run.train(60, interval=0.05)
    check_that_others_keep_up(run, [late])
    run.network.run(lambda: late.live and observer.live, seconds=120)
    speed_up(run, late, observer)
    run.train(3)
    run.finish()

    assert all(each.done for each in (*run.workers, observer))
    assert bound.behind >= {observer.name}
    assert observer.sums


def test_sums_go_on_for_longer_than_a_connection_remembers_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every sum leaves numbers out in the streams of all ranks in it, and in that of sums."""
    monkeypatch.setattr(incoming, "FINISHED_RANGES_MAX", 20)
    run = begin(1, Link(delay=0.001), elements=50)
    run.join_and_wait(4)

    for _ in range(150):
        run.random.shuffle(run.workers)
        for worker in run.workers:  # two come together, and two by themselves
            worker.step()
            run.network.run_for(0.0005 if worker is run.workers[0] else 0.0)
        run.network.run_for(0.02)
    run.train(3)
    run.finish()

    assert all(worker.sums > 3 * 20 for worker in run.workers)
    assert all(worker.done for worker in run.workers)


def test_once_its_link_is_quick_again_a_worker_gets_updates_by_themselves() -> None:
    run = begin(2, Link(delay=0.002))
    run.join_and_wait(3)
    slow = run.workers[0]
    run.network.set_link(MASTER, slow.name, Link(rate=30e3, queue_bytes=20_000))
    run.train(30)
    assert [member.join.name for member in run.state.relay.behind] == [slow.name]

    speed_up(run, slow)
    run.train(60)
    sums = slow.sums
    assert not run.state.relay.behind
    for _ in range(5):
        for worker in run.workers:
            worker.step()
            run.network.run_for(0.1)

    assert sums == slow.sums > 0
    run.finish()


def test_a_worker_that_keeps_its_own_updates_no_more_gets_those_of_others_without_them() -> None:
    run = begin(6, Link(delay=0.002))
    run.join_and_wait(3)
    slow = run.workers[0]
    run.network.set_link(MASTER, slow.name, Link(rate=30e3, queue_bytes=20_000))
    run.train(30)
    assert [member.join.name for member in run.state.relay.behind] == [slow.name]

    slow.worker.own_updates.forget(slow.sent)
    speed_up(run, slow)
    run.network.run(lambda: slow.reconnections == 1, seconds=60)
    run.train(10)
    run.finish()

    assert slow.done
    assert slow.rebases == slow.reconnections == 1


def test_nothing_is_stable_before_a_slow_worker_has_it() -> None:
    run = begin(3, Link(), slow_seconds=1e3)
    run.join_and_wait(3)
    slow, other, _ = run.workers
    run.train(3)
    run.network.run_for(2.0)
    before = dict(other.stable)
    run.network.set_link(MASTER, slow.name, NOTHING)

    run.train(60, interval=0.1)
    assert {**other.stable, slow.rank: 0} == {**before, slow.rank: 0}
    speed_up(run, slow)
    run.network.run(lambda: all(w.stable.get(w.rank) == w.sent for w in run.workers), seconds=60)

    run.finish()


def test_who_takes_nothing_for_too_long_is_told_and_dropped_and_may_come_back() -> None:
    run = begin(4, Link(), idle_seconds=600.0, slow_seconds=5.0)
    run.join_and_wait(3)
    slow, rank = run.workers[0], run.workers[0].rank
    told: list[str] = []
    on_lost = slow.on_lost

    def note(reason: str) -> None:
        told.append(reason)
        on_lost(reason)

    slow.on_lost = note  # type: ignore[method-assign]
    # What it needs is swallowed; that it is told so gets through.
    run.network.set_link(MASTER, slow.name, Link(mtu=200))
    run.train(120, interval=0.1)

    assert run.sample("leaves_total", reason="too_slow") >= 1
    run.network.run(lambda: bool(told), seconds=10)
    assert "updates were added up for this worker" in told[0]
    assert "it has taken nothing for 5 s; the limit is 5 s" in told[0]
    speed_up(run, slow)
    run.network.run(lambda: slow.lost is None, seconds=120)
    assert slow.rank == rank
    run.finish()


def test_where_there_is_no_room_for_a_sum_the_slow_worker_is_dropped() -> None:
    run = begin(
        5, Link(), idle_seconds=600.0, update_log_bytes_max=30_000, conflation_bytes_max=9_999
    )
    bound = Bound(run)
    run.join_and_wait(3)
    slow = run.workers.pop()
    run.network.on_datagram = lambda source, target, _: slow.name not in (source, target)

    run.train(40)
    assert run.sample("leaves_total", reason="too_slow") == 1
    assert len(run.master.roster) == 2
    run.finish()

    assert slow.name in bound.behind
