"""Repairs: what the master does about replicas that are damaged."""

import pytest

from gradwire_protocol.messages.replicas import Blocks, Digest, Snapshot, Want
from gradwire_server.replica.repairs import OFFER_SECONDS, PAUSE_SECONDS
from support.peer import ScriptedPeer
from support.training import SimulatedRun
from support.wording import naming

ELEMENTS = 10
BLOCK = 4


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", BLOCK)


@pytest.fixture
def run() -> SimulatedRun:
    run = SimulatedRun(elements=ELEMENTS)
    run.mismatches_expected = True
    run.join_and_wait(1)
    return run


def peer_in(run: SimulatedRun) -> ScriptedPeer:
    """Let somebody join who says what the test makes it say."""
    peer = run.enter()
    peer.wait_for(Snapshot, 3)
    run.network.run_for(1.0)
    return peer


def test_a_worker_is_not_mended_all_the_time(run: SimulatedRun) -> None:
    peer = peer_in(run)
    for _ in range(2):
        peer.say(Digest(0, 7))
        peer.wait_for(Blocks)
        peer.say(Want(()))
        run.network.run_for(PAUSE_SECONDS / 4)

    assert len(peer.all(Blocks)) == 1
    assert run.sample("digest_mismatches_total") == 2


def test_while_it_compares_nothing_else_is_checked(run: SimulatedRun) -> None:
    peer = peer_in(run)

    for _ in range(3):
        peer.say(Digest(0, 7))
    run.network.run_for(PAUSE_SECONDS + 1)

    assert run.sample("digest_checks_total") == 1


def test_who_wants_what_was_not_offered_is_sent_away(run: SimulatedRun) -> None:
    peer = peer_in(run)

    peer.say(Want((0,)))

    assert peer.wait_for_end().reason == naming("Want", "rank 1 (rogue)", "offered")


def test_who_wants_a_block_that_there_is_not_is_sent_away(run: SimulatedRun) -> None:
    peer = peer_in(run)
    peer.say(Digest(0, 7))
    peer.wait_for(Blocks)

    peer.say(Want((3,)))

    assert peer.wait_for_end().reason == naming("rank 1 (rogue)", "block 3 of 3")


def test_a_copy_is_not_kept_for_ever_and_who_answers_then_is_offered_another_one(
    run: SimulatedRun,
) -> None:
    peer = peer_in(run)
    peer.say(Digest(0, 7))
    peer.wait_for(Blocks)
    [member] = [m for m in run.master.roster if m.offer is not None]

    run.network.run_for(OFFER_SECONDS + 1)
    assert member.offer is not None
    assert member.offer.copy is None
    peer.say(Want((1,)))
    peer.wait_for(Blocks, 2)
    peer.say(Want((1,)))
    peer.wait_for(Snapshot, 4)
