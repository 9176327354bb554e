"""Runs with relays: what they save, and what becomes of them when relays die or are cut off.

``pytest tests/simulation/test_relays.py -k '[17]'`` shows one history again.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradwire.errors import ConnectionLostError, UnreachableError
from gradwire_protocol import Keyring, Priority, Role
from gradwire_protocol.limits import MESSAGE_BYTES_MAX
from gradwire_protocol.messages.admission import RefusalCode, Refuse
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_protocol.messages.relays import BRANCH_OVERHEAD_BYTES, Branch, Fed, Trunk
from gradwire_server.config import MasterConfig
from gradwire_server.log.cursor import Cursor
from gradwire_server.log.log import Log
from gradwire_server.relaying.child import Child
from gradwire_server.relaying.fan_out import FanOut
from gradwire_server.state.feeds import LogFeed
from gradwire_server.trunks.branch import BranchConnection
from support.keyed import RUN_KEY
from support.ledger import Ledger
from support.network import Link, bad_link
from support.peer import ScriptedPeer
from support.playing import HistoryFailed
from support.relayed_histories import play_with_relays
from support.relays import RelayedRun
from support.tiers import IS_DEEP, count
from support.training import MASTER

IDLE_SECONDS = 3.0
LINK = Link(delay=0.005)


def small(seed: int = 1, link: Link = LINK, *, sealed: bool = False, **settings: Any) -> RelayedRun:
    """Return a run with one relay that is connected, and no worker yet."""
    run = RelayedRun(
        seed,
        link,
        idle_timeout_seconds=IDLE_SECONDS,
        connect_timeout_seconds=2.0,
        run_key=RUN_KEY if sealed else None,
        master=MasterConfig(
            **{"idle_timeout_seconds": IDLE_SECONDS, "recovery_seconds": 4.0, **settings}
        ),
    )
    run.start_relay()
    run.wait_until_open()
    return run


def bytes_of_the_master(relayed: bool, workers: int) -> int:
    """Return how many bytes a master sends while some workers make ten steps each."""
    run = small()
    run.join_at("relay" if relayed else MASTER, workers)
    if relayed:
        run.wait_until_fed()
    before = run.network.counts["bytes"]
    sent = 0

    def note(source: str, target: str, datagram: bytes) -> bool:
        nonlocal sent
        sent += len(datagram) if source == MASTER else 0
        return True

    run.network.on_datagram = note
    run.train(10)
    assert run.network.counts["bytes"] > before
    run.finish()
    return sent


def test_the_master_sends_the_log_once_for_all_behind_a_relay() -> None:
    plain, relayed = bytes_of_the_master(False, 8), bytes_of_the_master(True, 8)

    assert relayed < plain / 2


def test_a_relay_of_a_relay_is_sent_the_log_by_that_one() -> None:
    run = small()
    run.start_relay("behind", "relay")
    run.wait_until_open()
    run.join_at("relay", 2)
    run.join_at("behind", 3)
    run.train(5)

    run.wait_until_fed("behind", 3)
    run.wait_until_fed("relay", 3)  # its workers, and the other relay

    late = run.join_at("behind")
    run.train(5)
    run.wait_until_fed("behind", 4)
    assert late[0].rank == 5, "ranks are the master's"
    assert run.runs.relays == 2
    run.finish()


def test_a_third_relay_behind_the_second_is_taken_by_the_first() -> None:
    run = small()
    run.start_relay("second", "relay")
    run.wait_until_open()

    run.start_relay("third", "second")
    run.wait_until_open()

    assert run.runs.relays == 3
    assert run.node("relay").children == 2, "of which the second one has told"
    assert run.node("second").children == 0


PHASES: dict[str, Callable[[RelayedRun], bool]] = {
    "while the first worker sends its parameters": lambda run: run.master.run is not None,
    "when the first worker is live": lambda run: any(w.live for w in run.workers),
    "when it has been told whom to feed": lambda run: bool(run.node()._fan_out),
    "when it feeds": lambda run: run.node().feeds > 0,
}


@pytest.mark.seeds(6)
@pytest.mark.parametrize("phase", PHASES)
def test_a_relay_that_dies_costs_nothing(phase: str, seed: int) -> None:
    random = Random(seed)
    run = small(seed, bad_link(random, damages=True))
    run.dialled = "relay"
    for _ in range(3):
        run.join()
    run.network.run(lambda: PHASES[phase](run), seconds=60)
    run.network.run_for(random.uniform(0, 0.05))

    run.kill_relay(back_after=random.choice([0.1, 5.0]))
    run.network.run_for(15)
    for worker in [w for w in run.workers if w.closed]:
        # A worker that was not let in yet has no place to go back to; its script begins again.
        assert isinstance(worker.error, ConnectionLostError | UnreachableError)
        run.workers.remove(worker)
        run.join()
    run.network.run(lambda: all(w.live for w in run.workers), seconds=60)
    run.train(5)

    run.finish()


def test_a_relay_that_is_cut_off_from_its_master_sends_its_workers_there() -> None:
    run = small()
    run.join_at("relay", 3)
    run.train(5)
    run.separate("relay", MASTER, 30.0)

    run.train(20, interval=0.5)
    run.wait_until_all_are_back()

    assert run.runs.relays == 0
    assert not run.node().children
    for worker in run.workers:
        assert worker.reconnections == 1
    run.finish()


def test_a_run_does_not_finish_without_the_workers_of_a_relay_that_has_just_gone() -> None:
    run = small()
    run.join_at("relay", 2)
    run.join_at(MASTER, 1)
    run.train(5)

    run.node().stop("its machine is needed", run.network.now)
    run.network.turn(run.relays["relay"])
    run.network.after(0.01, run.kill_relay)

    run.finish()  # none was refused for being late


def test_a_worker_that_is_back_elsewhere_is_the_same_worker() -> None:
    run = small()
    [worker, _] = run.join_at("relay", 2)
    rank = worker.rank
    run.separate(worker.name, "relay", 60.0)

    run.train(20, interval=0.5)
    run.wait_until_all_are_back()

    assert worker.rank == rank
    assert run.node().children == 1
    run.finish()


def test_a_relay_without_a_master_says_so_to_who_comes_and_they_wait() -> None:
    run = RelayedRun(link=LINK, connect_timeout_seconds=60.0)
    run.network.kill(run.master_host)
    run.start_relay()
    run.dialled = "relay"
    worker = run.join()
    run.network.run_for(5)
    assert not worker.live

    run.start_master()
    run.network.run(lambda: worker.live, seconds=30)

    run.train(3)
    run.finish()


def test_a_master_that_stops_in_order_tells_the_workers_behind_a_relay() -> None:
    run = small()
    run.join_at("relay", 2)
    run.train(3)

    run.runs.stop("its machine is needed", run.network.now)
    run.turn_master()
    run.network.run(lambda: all(worker.closed for worker in run.workers), seconds=10)

    assert ["its machine is needed" in str(worker.error) for worker in run.workers] == [True, True]
    run.network.run(lambda: not run.node().is_open, seconds=10)


def test_a_master_is_drained_with_workers_behind_relays() -> None:
    run = small()
    run.join_at("relay", 2)
    run.join_at(MASTER, 1)
    run.train(3)

    run.runs.drain("its machine is needed", run.network.now)
    run.turn_master()
    for _ in range(5):  # they are told when they make a step
        run.train(1)
    run.network.run(lambda: run.drained is not None, seconds=30)


@pytest.mark.parametrize("door", ["relay", "behind"])
def test_one_run_after_the_other_has_the_same_relays(door: str) -> None:
    run = small(recovery_seconds=0.0)
    run.start_relay("behind", "relay")
    run.wait_until_open()
    for _ in range(3):
        run.workers, run.ledger = [], Ledger()
        run.join_at(door, 2)
        run.train(8)
        run.wait_until_fed(door, 2)

        for worker in run.workers:
            worker.finish()
        run.network.run(lambda: all(w.try_to_complete() for w in run.workers), seconds=60)
        run.network.run(lambda: all(w.closed for w in run.workers), seconds=60)

        assert [worker.error for worker in run.workers] == [None, None]
        run.network.run(lambda: run.master.run is None, seconds=60)
    assert run.runs.relays == 2


def test_a_slow_worker_behind_a_relay_holds_nobody_up() -> None:
    run = small()
    workers = run.join_at("relay", 3)
    slow = workers[0]
    for ends in (("relay", slow.name), (slow.name, "relay")):
        run.network.set_link(*ends, Link(delay=0.005, rate=20_000.0))

    run.train(60, interval=0.1)

    assert [worker.reconnections for worker in workers] == [0, 0, 0]
    run.finish()


def test_who_is_denied_is_so_behind_a_relay() -> None:
    run = small(sealed=True)
    run.join_at("relay", 2)
    denied = run.workers[0].name

    run.runs.set_keyring(Keyring([RUN_KEY], [denied]), run.network.now)
    run.turn_master()
    run.network.run(lambda: run.workers[0].closed, seconds=10)

    assert len(run.master.roster) == 1
    run.dialled = "relay"
    again = run.join(key_name=denied)
    run.network.run(lambda: again.closed, seconds=10)
    assert not again.live


def test_a_relays_key_is_for_a_relay_and_a_workers_is_not() -> None:
    run = small(sealed=True)
    relay = run.ask_to_join("other", Role.RELAY)
    assert relay.wait_for(Refuse).code == RefusalCode.ROLE

    worker = run.dial("rogue")
    worker.say(Trunk())
    worker.wait_for_end()

    assert run.runs.relays == 1


def test_a_worker_with_a_message_that_no_relay_can_wrap_is_sent_away() -> None:
    run = small()
    run.join_at("relay", 1)
    rogue = ScriptedPeer(run.network, "rogue", dial="relay")
    size = MESSAGE_BYTES_MAX - BRANCH_OVERHEAD_BYTES

    rogue.link.connection.send(1, 1, Kind.UPDATE, bytes(size), Priority.UPDATE)
    run.network.turn(rogue.host)
    rogue.wait_for_end()

    assert run.node().children == 1
    run.train(3)
    run.finish()


@pytest.mark.parametrize(
    "said",
    [
        Branch(1, 0, 0, 1, 1, 6, b"a message before it is opened"),
        Branch(1, 0, 1, body=b"nonsense"),
        Branch(1, 0, 2, body=b"closed before it is opened"),
        Fed(1, 1, 1, 0, 0, 0),
    ],
)
def test_a_relay_that_breaks_the_rules_is_sent_away(said: Any) -> None:
    run = small()
    rogue = run.dial("rogue")
    rogue.say(Trunk())
    rogue.wait_for(Trunk)
    assert run.runs.relays == 2

    if isinstance(said, Branch):
        rogue.link.send_branch(said, 0)  # type: ignore[arg-type]
        run.network.turn(rogue.host)
    else:
        rogue.say(said)
    rogue.wait_for_end()

    assert run.runs.relays == 1


def test_what_is_stable_all_workers_behind_a_relay_have() -> None:
    check_what_is_stable()


def test_a_relay_that_says_what_it_has_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FanOut, "have", property(lambda self: self.log.head))

    with pytest.raises(AssertionError, match="told too early"):
        check_what_is_stable()


def check_what_is_stable() -> None:
    """Cut a worker off from its relay for a moment, and look at what others are told meanwhile."""
    run = small(stable_interval_seconds=0.02)
    [away, *others] = run.join_at("relay", 3)
    run.train(3)
    run.wait_until_fed()
    run.separate(away.name, "relay", 0.6 * IDLE_SECONDS)
    before = dict(away.versions)

    run.train(6, interval=0.1)

    for worker in others:
        told = {rank: last for rank, last in worker.stable.items() if rank != away.rank}
        assert all(before.get(rank, 0) >= last for rank, last in told.items()), "told too early"
    run.network.run_for(IDLE_SECONDS)
    run.finish()


# Everything at once.

HISTORIES = count(1_000, quick=15, of="histories with relays that are killed")
CALM = count(500, quick=10, of="histories with relays")
WITH_ROUNDS = count(300, quick=8, of="histories with rounds and relays")
BATCH = 5
MODES = (
    "averaging(every=2, round_timeout_seconds=1)",
    "synchronous(bits=4, round_timeout_seconds=1)",
    "central(optimizer=adamw, round_timeout_seconds=1)",
)


@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_whatever_goes_wrong_and_relays_die_nothing_is_lost(first: int) -> None:
    for seed in range(first, first + BATCH):
        play_with_relays(seed, kills=True)


@pytest.mark.parametrize("first", range(0, CALM, BATCH))
def test_what_a_relay_has_acknowledged_is_not_lost_with_its_worker(first: int) -> None:
    fed = [play_with_relays(seed, kills=False).fed_most for seed in range(first, first + BATCH)]

    assert any(fed)


@pytest.mark.parametrize("first", range(0, WITH_ROUNDS, 4))
def test_rounds_with_relays(first: int) -> None:
    for seed in range(first, first + 4):
        play_with_relays(seed, parse_mode(MODES[seed % len(MODES)]), kills=True)


def test_a_seed_determines_its_history_with_relays() -> None:
    one, other = (play_with_relays(3, kills=True) for _ in range(2))

    assert one.network.trace == other.network.trace


# Planted faults.

Plant = Callable[[pytest.MonkeyPatch], None]


def a_relay_begins_where_its_worker_was_sent_own_updates(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cursor, "told", property(lambda self: self.sent))


def what_a_part_of_a_sum_has_is_stable(patch: pytest.MonkeyPatch) -> None:
    log_stable = Log.stable.fget  # type: ignore[attr-defined]

    def hasty(self: Log) -> Any:
        reported = list(self.reported())
        found = log_stable(self)
        at = max(reported, default=0)
        return type(found)(at, found.versions) if at > found.position else found

    patch.setattr(Log, "stable", property(hasty))


def what_a_worker_has_sent_is_taken_as_it_comes(patch: pytest.MonkeyPatch) -> None:
    init = BranchConnection.__init__

    class Hasty:
        expected = 0

        def insert(self, index: int, item: Any) -> list[Any]:
            return [item]

    def hasty(self: BranchConnection, *arguments: Any) -> None:
        init(self, *arguments)
        self.incoming = Hasty()  # type: ignore[assignment]

    patch.setattr(BranchConnection, "__init__", hasty)


def a_relay_passes_nothing_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Child, "pass_on", lambda self, event: self._waiting.append(event))


def a_worker_that_is_given_back_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFeed, "take_back", lambda self, branch: None)


FAULTS: list[tuple[Plant, str, int]] = [
    (a_relay_begins_where_its_worker_was_sent_own_updates, "waits: .* keeps", 8),
    (what_a_part_of_a_sum_has_is_stable, "waits: .* keeps", 0),
    (what_a_worker_has_sent_is_taken_as_it_comes, "out: .* before it had", 41),
    (a_relay_passes_nothing_on, "waits: ", 0),
    (a_worker_that_is_given_back_is_forgotten, "waits: .* keeps", 57),
]
"""What is planted, what a history that finds it says, and the seed of one that does."""


@pytest.mark.parametrize(
    ("plant", "says", "pinned"), FAULTS, ids=[plant.__name__ for plant, _, _ in FAULTS]
)
def test_a_broken_rule_of_relays_is_found(
    plant: Plant, says: str, pinned: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch)

    said = complaints(tmp_path, range(400) if IS_DEEP else [pinned])

    assert any(re.search(says, complaint) for complaint in said), (
        f"seed {pinned} does not find it: pin one that does, DEEP=1 looks for it"
    )


def complaints(folder: Path, seeds: Any) -> Iterator[str]:
    """Play one history after the other; return what is wrong with those that fail."""
    for seed in seeds:
        try:
            play_with_relays(seed, kills=bool(seed % 2), folder=folder)
        except HistoryFailed as failure:
            yield str(failure).partition("\n")[0]
