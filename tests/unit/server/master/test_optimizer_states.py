"""Optimizer states at the master: whom it asks, what it passes on, and what it does not take."""

from dataclasses import replace

import pytest

from gradwire_protocol.messages.link import Control
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.states.records import StatePart, WantState
from gradwire_protocol.messages.updates import Finish, Leave
from gradwire_server.master.optimizer_states import NOBODY, SOURCE_SECONDS
from gradwire_server.state.roster import Phase
from support.keyed import RUN_KEY
from support.peer import ScriptedPeer, join_request, no_state, state_part
from support.training import SimulatedRun, worker_id_of
from support.wording import naming

ASK, ENOUGH = WantState(0, 0), WantState(0, None)


@pytest.fixture
def run() -> SimulatedRun:
    run = SimulatedRun(elements=10)
    run.join_and_wait(1)  # it does not share
    return run


def peer_in(run: SimulatedRun, name: str, *, gives: bool = True) -> ScriptedPeer:
    """Let somebody join who says what the test makes it say."""
    peer = run.dial(name)
    join = join_request(layout=run.layout, name=name, worker_id=worker_id_of(name))
    peer.say(replace(join, gives_state=gives))
    peer.wait_for(Snapshot)
    run.network.run_for(1.0)
    return peer


def give(peer: ScriptedPeer, *parts: StatePart) -> None:
    for part in parts:
        peer.link.send_state_part(part)
    peer.network.turn(peer.host)


def wants(peer: ScriptedPeer) -> list[WantState]:
    """Return what a peer was asked for, after some time."""
    peer.network.run_for(1.0)
    return peer.all(WantState)


def states(peer: ScriptedPeer) -> list[StatePart]:
    peer.network.run_for(1.0)
    return peer.all(StatePart)


@pytest.mark.parametrize("unfit", ["finished", "syncing", "quarantined"])
def test_who_is_not_training_is_not_asked(run: SimulatedRun, unfit: str) -> None:
    source, asker = peer_in(run, "source"), peer_in(run, "asker")
    member = next(m for m in run.master.roster if m.join.name == "source")
    if unfit == "finished":
        source.say(Finish(0))
        run.network.run_for(1.0)
    elif unfit == "syncing":
        member.phase = Phase.SYNCING
    else:
        member.quarantine = []

    asker.say(ASK)

    assert states(asker) == [no_state(1, NOBODY)]


@pytest.mark.parametrize("how", ["leaves", "is lost"])
def test_when_a_source_goes_another_one_is_asked_from_the_beginning(
    run: SimulatedRun, how: str
) -> None:
    first, second = peer_in(run, "first"), peer_in(run, "second")
    asker = peer_in(run, "asker")
    asker.say(ASK)
    wants(first)
    give(first, state_part(1, 0, 3, b"one"))
    run.network.run_for(1.0)

    if how == "leaves":
        first.say(Leave(0, "bye"))
    else:
        first.end(70, "bye")
    assert wants(second) == [WantState(2, 0)]
    give(second, state_part(2, 0, 1, b"other"))

    assert states(asker) == [state_part(1, 0, 3, b"one"), state_part(2, 0, 1, b"other")]


def test_a_source_that_does_not_answer_is_waited_for_unless_there_is_another(
    run: SimulatedRun,
) -> None:
    first, asker = peer_in(run, "first"), peer_in(run, "asker")
    asker.say(ASK)
    run.network.run_for(2 * SOURCE_SECONDS)
    assert wants(first) == [WantState(1, 0)]

    second = peer_in(run, "second")
    run.network.run_for(SOURCE_SECONDS)
    assert wants(first) == [WantState(1, 0), WantState(1, None)]
    assert wants(second) == [WantState(2, 0)]
    give(first, state_part(1, 0, 2, b"late"))
    give(second, state_part(2, 0, 1, b"state"))

    assert states(asker) == [state_part(2, 0, 1, b"state")]
    assert run.sample("optimizer_state_parts_dropped_total") == 1


@pytest.mark.parametrize(
    ("says", "named"),
    [
        ([WantState(0, 3)], ("part 3", "state 0")),
        ([WantState(4, 0)], ("part 0", "state 4")),
        ([ASK, ASK], ("state", "again")),
        ([ASK, ENOUGH, ASK], ("state", "again")),
    ],
)
def test_who_asks_for_what_he_may_not_is_sent_away(
    run: SimulatedRun, says: list[Control], named: tuple[str, ...]
) -> None:
    peer_in(run, "source")
    asker = peer_in(run, "asker")

    asker.say(*says)

    assert asker.wait_for_end().reason == naming("(asker)", *named)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([(1, 3)], ("part 1", "due")),
        ([(0, 1), (1, 2)], None),  # after the last one, nobody waits for it
        ([(0, 3), (0, 3)], ("part 0", "due")),
        ([(0, 3), (1, 4)], ("part 1 of 4", 3)),
    ],
)
def test_a_source_that_sends_what_was_not_asked_for_is_sent_away(
    run: SimulatedRun, parts: list[tuple[int, int]], named: tuple[object, ...] | None
) -> None:
    source, asker = peer_in(run, "source"), peer_in(run, "asker")
    asker.say(ASK)
    wants(source)

    for part, of in parts:
        give(source, state_part(1, part, of, b"x"))
        run.network.run_for(1.0)

    if named is None:
        assert source.ended is None
        assert run.sample("optimizer_state_parts_dropped_total") == 1
    else:
        assert source.wait_for_end().reason == naming("(source)", *named)
        assert states(asker)[-1] == no_state(2, "source has gone")


def test_a_part_of_nobodys_state_is_dropped_and_counted(run: SimulatedRun) -> None:
    source = peer_in(run, "source")

    give(source, state_part(5, 0, 1, b"x"))
    run.network.run_for(1.0)

    assert source.ended is None
    assert run.sample("optimizer_state_parts_dropped_total") == 1


def test_a_part_from_another_than_who_was_asked_is_dropped(run: SimulatedRun) -> None:
    source, asker = peer_in(run, "source"), peer_in(run, "asker")
    meddler = peer_in(run, "meddler", gives=False)
    asker.say(ASK)
    wants(source)

    give(meddler, state_part(1, 0, 1, b"forged"))

    assert states(asker) == []
    assert run.sample("optimizer_state_parts_dropped_total") == 1


def test_an_observer_is_given_no_state() -> None:
    run = SimulatedRun(elements=10, run_key=RUN_KEY)
    run.gives_state = True
    run.join_and_wait(1)
    observer = run.observe()
    run.network.run(lambda: observer.live, seconds=60)

    observer.worker.optimizer_states.ask(run.network.now)
    run.network.turn(observer.host)
    run.network.run(lambda: observer.closed, seconds=60)

    assert "WantState from" in str(observer.error)
