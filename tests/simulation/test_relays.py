"""Relays between workers and the master: whatever is lost, all end with the same bits."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

from gradwire.replica.shared_parameters import SharedParameters
from gradwire_codecs import NOTHING, Update
from gradwire_codecs.format.update import split_update
from gradwire_protocol import CloseCode, Role
from gradwire_protocol.messages.admission import Refuse, Welcome
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.masters.relaying import Merged, Opened, PeerSpan, Relaying, Taken
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_protocol.messages.updates import Stable
from gradwire_server.intermediary.batch import Batch, Entry
from gradwire_server.master.departures import Departures
from gradwire_server.state.relay import Relay
from gradwire_server.updates.decoding import Decoded, InlineDecoder
from support.keyed import RUN_KEY
from support.ledger import Ledger
from support.network import Link, link_of
from support.peer import ScriptedPeer, join_request
from support.relayed_run import IDLE_SECONDS, RelayedPair, RelayedRun
from support.simulated_worker import CHANGE, SimulatedWorker
from support.tiers import count
from support.training import MASTER, SimulatedRun
from support.two_masters import STANDBY

TREES = (
    (MASTER,),
    (MASTER, MASTER),
    (MASTER, "relay0"),
    (MASTER, "relay0", "relay0", MASTER),
    (MASTER, "relay0", "relay1"),
    (MASTER, "relay0", "relay0", "relay1"),
)
"""Relays, each by whom it stands before: up to four hops from a worker to the master."""

HISTORIES = count(2_000, quick=20, of="histories with relays")
BATCH = 5

IN_ROUNDS = parse_mode("averaging(every=2, round_timeout_seconds=1)")


def test_workers_behind_relays_and_at_the_master_train_together() -> None:
    run = RelayedRun(1, Link(delay=0.005))
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        run.join_at("relay0", "relay0", "relay1", MASTER)
        run.train(20)
        run.finish_all()

    assert run.round_accounts.merged


def faults_of(run: RelayedRun, random: Random) -> list[Callable[[], None]]:
    """Return what may go wrong: each is a fault of some place in the tree."""
    relay = random.choice([*run.relays])
    other = random.choice([*run.relays, *(worker.name for worker in run.workers)])
    seconds = random.uniform(0.1, 6.0)
    return [
        partial(run.kill_relay, relay, back_after=random.uniform(0.1, 6.0)),
        partial(run.kill_relay, relay),
        partial(run.separate, relay, run.parent_of(relay), seconds),
        partial(run.separate, relay, other, seconds) if other != relay else lambda: None,
        partial(run.separate, other, MASTER, seconds),
        partial(run.kill_a_worker, random),
        partial(run.send_away, random),
        partial(run.send_away, random),
        partial(run.restart_master, random.uniform(0.1, 2.0)),
    ]


def play(seed: int, *, mode: str = "sharing", sends_away: int = 0) -> RelayedRun:
    """Play a history of a seed, in which so many workers are sent away besides."""
    random = Random(seed)
    run = RelayedRun(
        seed,
        link_of(random),
        parents=random.choice(TREES),
        elements=random.choice([20, 400]),
        run_key=RUN_KEY if random.random() < 0.3 else None,
        watches_transport=random.random() < 0.2,
        keeps_replicas=seed % 4 < 2,
    )
    run.mode = parse_mode(mode)
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        places = [*run.relays, *run.relays, MASTER]
        run.join_at(*(random.choice(places) for _ in range(random.randint(2, 6))))
        for _ in range(random.randint(0, 4)):
            fault = random.choice(faults_of(run, random))
            run.network.after(random.uniform(0.0, 4.0), fault)
        for _ in range(sends_away):
            run.network.after(random.uniform(0.0, 4.0), partial(run.send_away, random))
        run.train(15, interval=0.3)
        run.network.run_for(2 * IDLE_SECONDS + 6.0)  # all that is lost is missed
        run.wait_until_all_are_back(seconds=200)
        if random.random() < 0.5:
            run.join_at(random.choice([*run.linked, MASTER]))
        run.train(5)
        if random.random() < 0.4:
            lost = random.choice([*run.relays])
            run.network.after(random.uniform(0.0, 0.4), partial(run.kill_relay, lost))
        run.finish_all()
    return run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_whatever_goes_wrong_in_a_tree_nothing_is_lost(first: int) -> None:
    for seed in range(first, first + BATCH):
        play(seed, sends_away=3 * (seed % 2))


# What goes through them.


def begin(*places: str, seed: int = 1, parents: tuple[str, ...] = (MASTER, "relay0")) -> RelayedRun:
    """Return a run with workers at these places."""
    run = RelayedRun(seed, Link(delay=0.005), parents=parents)
    run.wait_for_relays()
    run.join_at(*places)
    return run


EVERYWHERE = ("relay0", "relay1", "relay1", MASTER)


def test_buffers_are_averaged_and_an_observer_gets_all_of_it() -> None:
    run = RelayedRun(3, Link(delay=0.005), parents=(MASTER, "relay0"), run_key=RUN_KEY)
    run.buffer_steps = 2
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        run.join_at(*EVERYWHERE)
        run.dialled = "relay1"
        observer = run.observe()
        run.dialled = MASTER
        run.network.run(lambda: observer.live, seconds=30)
        run.train(10)
        run.finish_all()

    assert sum(worker.module is not None for worker in run.workers) > 1
    assert observer.done


def test_a_digest_finds_damage_behind_a_relay_and_blocks_mend_it() -> None:
    run = begin(*EVERYWHERE)
    run.mismatches_expected = True
    with run.round_accounts.watching(lambda: run.ledger):
        run.train(5)
        run.workers[1].replica.values[7] += 1
        repairs = run.workers[1].participant.shared.repair
        run.train(30)
        run.finish_all()

    assert repairs.repairs == 1
    assert run.sample("digest_mismatches_total") == 1


def quarantined(run: RelayedRun) -> SimulatedWorker:
    """Let a worker behind a relay break, and wait until the master knows of its quarantine."""
    run.join_at("relay0", "relay0")
    run.train(12)
    broken = run.workers[0]
    broken.change = 1_000 * CHANGE
    run.train(2)
    run.network.run(lambda: run.sample("quarantined_workers") == 1, seconds=30)
    return broken


@pytest.mark.filterwarnings("ignore:training seems to diverge")  # that of one does
def test_who_is_in_quarantine_at_a_relay_is_not_waited_for() -> None:
    run = begin("relay0", MASTER)
    with run.round_accounts.watching(lambda: run.ledger):
        broken = quarantined(run)
        run.workers.remove(broken)
        run.train(2)
        run.finish_all()

    assert "far larger than the others': the run is finished" in str(broken.error)


@pytest.mark.filterwarnings("ignore:training seems to diverge")
def test_an_operator_releases_who_is_in_quarantine_at_a_relay() -> None:
    run = begin("relay0", MASTER)
    with run.round_accounts.watching(lambda: run.ledger):
        broken = quarantined(run)

        run.master.release(broken.rank, run.network.now)
        run.turn_master()
        run.train(2)
        run.finish_all()

    assert run.sample("quarantined_workers") == 0


def test_who_leaves_or_is_expelled_behind_a_relay_is_gone_from_there() -> None:
    run = begin("relay0", "relay1", MASTER)
    run.train(3)
    first, second, _ = run.workers

    first.leave()
    run.master.expel(second.rank, "sent away", run.network.now)
    run.turn_master()

    run.network.run(lambda: first.closed and second.closed, seconds=30)
    run.network.run_for(1.0)
    assert [len(branch) for branch in run.runs.relays.branches] == [1, 0]  # relay1 is behind relay0
    assert "sent away" in str(second.error)
    assert [member.rank for member in run.master.roster.workers] == [run.workers[2].rank]
    assert not run.relays["relay0"].roster
    assert not run.relays["relay1"].roster


def test_a_worker_that_is_too_slow_is_sent_sums_by_its_relay() -> None:
    run = RelayedRun(1, Link(delay=0.005), elements=1_000, backlog_bytes_max=30_000)
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        run.join_at("relay0", "relay0", "relay1")
        slow = run.workers[0]
        run.network.set_link("relay0", slow.name, Link(rate=30e3, queue_bytes=20_000))
        run.train(200, interval=0.01)
        run.network.set_link("relay0", slow.name, run.network.link)
        run.finish_all()

    assert slow.sums


def test_the_first_that_comes_back_does_not_finish_a_run_without_the_others() -> None:
    run = begin("relay0", "relay0", parents=(MASTER,))
    with run.round_accounts.watching(lambda: run.ledger):
        run.train(5)
        run.kill_relay("relay0")
        run.finish_all()

    assert not run.master.state.leases


def test_workers_hear_through_relays_why_the_master_stops() -> None:
    run = begin("relay0", "relay1")

    run.runs.stop("it is stopped", run.network.now)
    run.turn_master()

    run.network.run(lambda: all(worker.closed for worker in run.workers), seconds=30)
    assert all("it is stopped" in str(worker.error) for worker in run.workers)


def test_relays_go_on_with_the_next_run_of_another_model() -> None:
    run = begin("relay0", "relay1")
    run.train(3)
    run.master.end_run("it is over", run.network.now)
    run.turn_master()
    run.network.run(lambda: all(worker.closed for worker in run.workers), seconds=30)
    run.workers.clear()
    run.elements, run.layout = 50, Layout((Tensor("weights", (50,)),))
    run.ledger = Ledger()

    run.join_at("relay1", "relay0")
    run.train(5)
    run.network.run_for(5.0)
    for worker in run.workers:
        worker.pull()

    assert len({worker.replica.digest() for worker in run.workers}) == 1
    assert run.linked == ["relay0", "relay1"]


# Relays before relays.


def test_the_master_has_one_sum_and_sends_one_result_for_a_whole_tree() -> None:
    run = begin("relay0", "relay1", "relay1", "relay2", parents=(MASTER, "relay0", "relay1"))
    with run.round_accounts.watching(lambda: run.ledger):
        run.train(20)
        run.network.run_for(1.0)
        destinations = run.master.branches.destinations()
        merged = [relay.counts.updates_merged for relay in run.relays.values()]
        status = run.runs.relays.status()
        places = {member["name"]: member["relay"] for member in run.master.status()["workers"]}
        run.finish_all()

    assert [member.link.connection.address for member in destinations] == ["relay0"]
    assert merged == [4 * 20, 3 * 20, 20]
    assert [each["peers"] for each in status] == [2, 3, 1], "workers, and relays"
    assert sorted(places.values()) == [1, 2, 2, 3]


def child_of(run: RelayedRun, name: str = "rogue") -> ScriptedPeer:
    """Return a peer that the master has let stand before it, behind ``relay0``."""
    child = run.dial(name, Role.RELAY, to="relay0")
    child.say(Relaying(name, "relay0"))
    child.wait_for(Relaying)
    return child


class LateDecoder(InlineDecoder):
    """Decodes when it is told to deliver, as one with a thread may."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def decode(
        self, origin: int, body: bytes, elements: int, done: Callable[[Decoded], None]
    ) -> None:
        self._waiting.append(
            (origin, partial(InlineDecoder.decode, self, origin, body, elements, done))
        )

    def deliver(self) -> None:
        self.drain()

    def drain(self, origin: int | None = None) -> None:
        while due := [each for each in self._waiting if origin in (None, each[0])]:
            self._waiting.remove(due[0])
            due[0][1]()


def end_of(run: RelayedRun, peer: ScriptedPeer) -> tuple[int, str]:
    """Wait until the connection of a peer is over; return code and reason."""
    run.network.run(lambda: peer.ended is not None, seconds=10)
    assert peer.ended is not None
    return peer.ended.code, peer.ended.reason


def test_what_a_relay_must_not_say_is_not_carried() -> None:
    run = RelayedRun(1, Link(delay=0.005), parents=(MASTER,), run_key=RUN_KEY)
    run.wait_for_relays()
    late, rogue = run.dial("late", Role.RELAY, to="relay0"), child_of(run)

    late.say(Opened(0, None, None))
    late.say(Relaying("late", "relay0"))
    rogue.say(Stable({0: 1}))

    invalid = CloseCode.INVALID_MESSAGE
    assert end_of(run, late) == (invalid, "Relaying is not the first message")
    assert end_of(run, rogue) == (invalid, "Stable from a relay")
    run.network.run(lambda: len(run.runs.relays) == 1, seconds=10)


def test_a_relay_before_a_relay_whose_sum_does_not_fit_is_sent_away() -> None:
    run = begin("relay0", parents=(MASTER,))
    rogue = child_of(run)

    rogue.link.send_merged(Merged(1, 0, 1, (PeerSpan(0, 0, 0, 1),), 1, 0, {}, b"nonsense"))
    run.network.turn(rogue.host)

    code, reason = end_of(run, rogue)
    assert code == CloseCode.INVALID_MESSAGE
    assert reason.startswith("it has merged what does not fit the run")


@pytest.mark.parametrize("says", ["sum", "update"])
def test_who_goes_before_what_it_sent_is_decoded_ends_once(
    monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    monkeypatch.setattr("gradwire_server.intermediary.intermediary.InlineDecoder", LateDecoder)
    run = begin("relay0", parents=(MASTER,))
    if says == "sum":
        peer = child_of(run)
        peer.link.send_merged(Merged(1, 0, 1, (PeerSpan(0, 0, 0, 1),), 1, 0, {}, b"nonsense"))
        run.network.turn(peer.host)
    else:
        peer = run.dial(to="relay0")
        peer.say(join_request(layout=run.layout))
        welcome = peer.wait_for(Welcome)
        run.network.run_for(1.0)
        peer.say_update(welcome.rank, welcome.sequence + 1, b"nonsense")
    run.network.run_for(0.1)

    peer.end(9, "it goes")
    run.network.run_for(0.1)
    run.relays["relay0"].handle_decoded(run.network.now)
    run.network.turn(run.relay_hosts["relay0"])

    run.network.run_for(1.0)
    assert [len(branch) for branch in run.runs.relays.branches] == [1], "the worker is left"
    assert run.workers[0].live


def test_a_second_sum_before_the_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire_server.intermediary.intermediary.InlineDecoder", LateDecoder)
    run = begin("relay0", parents=(MASTER,))
    child = child_of(run)
    span = PeerSpan(0, 0, 0, 1)

    for number in (1, 2):
        child.link.send_merged(Merged(number, 0, 1, (span,), 1, 0, {}, NOTHING))
    run.network.turn(child.host)

    assert end_of(run, child) == (
        CloseCode.INVALID_MESSAGE, "Merged 2 before the answer to the last one"
    )  # fmt: skip


def test_a_sum_of_nobody_is_not_taken() -> None:
    run = begin("relay0", parents=(MASTER,))
    child = child_of(run)
    update = Update(0, 400, 1, np.array([3], np.uint32), np.array([1], np.int32))

    [body] = split_update(update, 1_000)
    child.link.send_merged(Merged(7, 0, 1, (PeerSpan(0, 0, 0, 1),), 1, 0, {}, body))
    run.network.turn(child.host)

    assert child.wait_for(Taken) == Taken(7, done=False, accepted={})


@pytest.mark.parametrize("span", [(-1, 0), (-1, 1), (1, 2)], ids=["again", "overlapping", "a gap"])
def test_a_sum_that_does_not_follow_changes_nothing(span: tuple[int, int]) -> None:
    run = begin("relay0", parents=(MASTER,))
    run.train(3)
    run.network.run_for(1.0)
    up, its_run = run.relays["relay0"]._up, run.master.run
    assert up is not None
    assert its_run is not None
    rank, update = (
        run.workers[0].rank,
        Update(0, 400, 1, np.array([3], np.uint32), np.ones(1, "i4")),
    )
    [body] = split_update(update, 1_000)
    last, digest = its_run.accepted(rank), its_run.replica.digest()
    after, sequence = (last + each for each in span)

    up.send_merged(
        Merged(7, 0, 1, (PeerSpan(0, rank, after, sequence),), sequence - after, 0, {}, body)
    )
    run.network.turn(run.relay_hosts["relay0"])
    run.network.run_for(0.1)

    assert last == 3
    assert (its_run.accepted(rank), its_run.replica.digest()) == (last, digest)


def test_a_master_that_steps_down_sends_a_whole_tree_away() -> None:
    run = begin("relay1", parents=(MASTER, "relay0"))
    run.master.terms.in_charge = False

    run.runs.handle_timer(run.network.now)

    assert not run.runs.relays.branches


# Who may be one.


def test_a_relay_of_a_master_without_relays_is_told_what_to_do() -> None:
    run = RelayedRun(1, Link(delay=0.005), topology="plain")

    complaint = "start it with --topology tree"
    run.network.run(lambda: complaint in run.relays["relay0"].complaint, seconds=10)

    assert not run.linked


def test_a_worker_s_key_makes_no_relay() -> None:
    run = RelayedRun(1, Link(delay=0.005), run_key=RUN_KEY, role=Role.WORKER)

    complaint = "the key of relay0 is not a relay's"
    run.network.run(lambda: complaint in run.relays["relay0"].complaint, seconds=10)

    assert not run.linked


def test_a_relay_s_key_makes_no_worker() -> None:
    run = RelayedRun(1, Link(delay=0.005), run_key=RUN_KEY)

    peer = run.ask_to_join("rogue", Role.RELAY)

    assert "a relay's key is for a relay" in peer.wait_for(Refuse).reason


def test_a_worker_behind_a_relay_may_not_join_a_run_that_was_begun_without() -> None:
    plain = SimulatedRun(1)
    plain.join_and_wait(1)
    begun = plain.state
    plain.kill_master(back_after=1e9)
    run = RelayedRun(1, Link(delay=0.005), resumed=begun)
    run.wait_for_relays()
    run.dialled = "relay0"
    worker = run.join()

    run.network.run(lambda: worker.closed, seconds=30)

    assert "was begun by a master without relays" in str(worker.error)


# Where workers go.


@pytest.mark.parametrize("before_second", [MASTER, "relay0"])
def test_with_auto_the_master_sends_workers_to_relays(before_second: str) -> None:
    run = RelayedRun(1, Link(delay=0.005), parents=(MASTER, before_second), topology="auto")
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        run.join_at(*[MASTER] * 20)
        behind = [len(run.relays[name].roster) for name in run.relays]
        run.train(5)
        run.finish_all()

    assert sum(behind) == 20
    assert min(behind) >= 8


def test_a_relay_that_nobody_reaches_costs_a_try() -> None:
    run = RelayedRun(1, Link(delay=0.005), parents=(MASTER,), topology="auto")
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        for number in range(3):
            run.separate("relay0", f"worker{number}", 1e6)
        run.join_at(*[MASTER] * 3)
        run.train(3)
        run.finish_all()

    assert not run.relays["relay0"].roster


@pytest.mark.timeout(300)
@pytest.mark.seeds(30)
def test_rounds_go_through_relays(seed: int) -> None:
    play(seed, mode=str(IN_ROUNDS))


# Faults that are planted, each with the history that finds it.


def they_stay_in_twice(self: SharedParameters, sequence: int) -> None:
    self.contained = sequence


note_answer, receive, refuse = Batch._note_answer, Batch.receive, Batch._refuse


def it_is_sent_again_as_it_is(self: Batch, entry: Entry, span: PeerSpan, taken: Taken) -> None:
    if taken.done:
        note_answer(self, entry, span, taken)


def it_counts_as_taken(self: Batch, taken: Taken) -> None:
    receive(self, replace(taken, done=True))


def it_is_kept(self: Batch, entry: Entry, accepted: dict[int, int]) -> None:
    if entry.answer is None:
        refuse(self, entry, accepted)


FAULTS: dict[str, tuple[int, type, str, Callable[..., Any]]] = {
    "own updates come back and stay in twice": (
        0, SharedParameters, "_note_contained", they_stay_in_twice,
    ),
    "a digest is of updates beforehand as well": (
        0, SharedParameters, "without_beforehand", lambda shared: nullcontext(),
    ),
    "a worker that comes late behind a relay is not sent what it missed": (
        7, Relay, "catch_up", lambda relay, member, versions, now: None,
    ),
    "a sum that was refused is sent again as it is": (
        5, Batch, "_note_answer", it_is_sent_again_as_it_is,
    ),
    "a sum that was refused counts as taken": (5, Batch, "receive", it_counts_as_taken),
    "a relay is not told that its sum was refused": (47, Batch, "_refuse", it_is_kept),
    "the first that is back finishes the run alone": (
        20, Departures, "_awaited_until", lambda departures, member: 0.0,
    ),
}  # fmt: skip
"""By what is wrong: the seed, and what is put in the place of what."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.deep("long faults") if owner is Batch else ())
        for fault, (_, owner, _, _) in FAULTS.items()
    ],
)
def test_a_history_finds_a_planted_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    seed, owner, name, broken = FAULTS[fault]
    play(seed, sends_away=3)
    monkeypatch.setattr(owner, name, broken)

    with pytest.raises(AssertionError):
        play(seed, sends_away=3)


# A standby.


def pair_of(seed: int, random: Random) -> RelayedPair:
    """Return a run with a primary, a standby and relays, which all stand before the primary."""
    return RelayedPair(
        seed,
        link_of(random),
        parents=random.choice(TREES),
        elements=20,
        run_key=RUN_KEY if random.random() < 0.3 else None,
        watches_transport=False,
    )


def test_relays_go_on_before_the_standby_when_the_primary_is_gone() -> None:
    run = RelayedPair(1, Link(delay=0.005), parents=(MASTER, "relay0"))
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        run.join_at(*EVERYWHERE)
        run.wait_for_standby()
        run.train(5)
        run.kill_primary()
        run.wait_until_all_are_back(seconds=120)
        run.wait_for_relays()
        run.join_at("relay0", "relay1")
        run.train(5)
        behind = [len(relay.roster) for relay in run.relays.values()]
        run.finish_all()

    assert run.standby.terms.in_charge
    assert min(behind) >= 1


def test_a_relay_that_begins_when_the_standby_is_in_charge_finds_it() -> None:
    run = RelayedPair(1, Link(delay=0.005), parents=(MASTER,))
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        run.join_at("relay0", MASTER)
        run.wait_for_standby()
        run.kill_primary()
        run.kill_relay("relay0")
        run.wait_until_all_are_back(seconds=120)
        run.start_master()  # which is not in charge now

        run.start_relay("relay0")
        run.wait_for_relays()
        run.join_at("relay0")
        assert run.standby.terms.in_charge
        assert len(run.relays["relay0"].roster) == 1
        run.finish_all()


def faults_of_pair(run: RelayedPair, random: Random) -> list[Callable[[], object]]:
    """Return what may go wrong where there are a primary, a standby, and relays."""
    relay = random.choice([*run.relays])
    worker = random.choice(run.workers).name
    seconds = random.uniform(0.1, 15.0)
    return [
        partial(run.kill_primary, back_after=random.uniform(0.1, 15.0)),
        partial(run.kill_standby, back_after=random.uniform(0.1, 8.0)),
        partial(run.separate, MASTER, STANDBY, seconds),
        partial(run.separate, relay, random.choice([MASTER, STANDBY]), seconds),
        partial(run.separate, relay, worker, seconds),
        partial(run.separate, worker, random.choice([MASTER, STANDBY]), seconds),
        partial(run.kill_relay, relay, back_after=random.uniform(0.1, 6.0)),
        partial(run.kill_relay, relay),
    ]


def play_pair(seed: int) -> RelayedPair:
    """Play a history of a seed with a primary, a standby and relays."""
    random = Random(seed)
    run = pair_of(seed, random)
    with run.round_accounts.watching(lambda: run.ledger):
        run.wait_for_relays()
        places = [*run.relays, *run.relays, MASTER]
        run.join_at(*(random.choice(places) for _ in range(random.randint(2, 5))))
        run.wait_for_standby()
        for _ in range(random.randint(1, 3)):
            fault = random.choice(faults_of_pair(run, random))
            run.network.after(random.uniform(0.0, 4.0), fault)
        run.train(15, interval=0.3)
        run.network.run_for(25.0)
        run.wait_until_all_are_back(seconds=300)
        run.train(3)
        run.finish_all()
    return run


@pytest.mark.timeout(300)
@pytest.mark.seeds(100)
def test_whichever_master_relays_stand_before_nothing_is_lost(seed: int) -> None:
    play_pair(seed)
