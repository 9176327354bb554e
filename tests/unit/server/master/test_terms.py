"""Terms: who may follow, whom a master believes, and when it calls nothing stable."""

import pytest

from gradwire_protocol import Role
from gradwire_protocol.messages.admission import (
    Follow,
    Promise,
    RefusalCode,
    Refuse,
    Resume,
    Voters,
    Welcome,
)
from gradwire_protocol.messages.fields import TERM_MAX
from gradwire_protocol.messages.kinds import EndCode
from gradwire_server.config import MasterConfig
from gradwire_server.master import terms
from gradwire_server.master.terms import TERMS_AHEAD_MAX
from support.keyed import RUN_KEY
from support.peer import ScriptedPeer, resume_of
from support.training import SimulatedRun
from support.wording import naming

PAIRED = MasterConfig(standby="standby:1")


def run_with(config: MasterConfig = PAIRED, *, sealed: bool = False) -> SimulatedRun:
    """Return a run whose master has yet to hear of its standby."""
    return SimulatedRun(master=config, run_key=RUN_KEY if sealed else None)


def standby_of(run: SimulatedRun, name: str = "standby", term: int = 0) -> ScriptedPeer:
    """Let a standby follow the master."""
    peer = run.dial(name, Role.STANDBY)
    peer.say(Follow(term, None))
    return peer


def worker_of(run: SimulatedRun, resume: Resume | None = None) -> ScriptedPeer:
    """Let somebody ask to take part."""
    return run.ask_to_join("worker", resume=resume)


def test_a_master_that_knows_of_no_standby_has_none() -> None:
    run = run_with(MasterConfig())

    refused = standby_of(run).wait_for(Refuse)

    assert "--standby HOST:PORT" in refused.reason
    assert run.sample("refusals_total", reason="role") == 1
    assert run.master.terms.in_charge


def test_a_standby_has_no_standby() -> None:
    run = run_with(MasterConfig(standby_of="primary:1"))

    assert standby_of(run).wait_for(Refuse).reason == naming("standby itself")


def test_who_has_the_key_of_a_worker_is_no_standby() -> None:
    run = run_with(sealed=True)
    rogue = run.dial()

    rogue.say(Follow(0, None))

    assert "which is no standby" in rogue.wait_for_end().reason
    assert not run.master.terms.in_charge


def test_who_has_the_key_of_a_standby_is_no_worker() -> None:
    run = run_with(MasterConfig(), sealed=True)

    assert run.ask_to_join("standby", Role.STANDBY).wait_for(Refuse).code == RefusalCode.ROLE


@pytest.mark.parametrize(
    ("says", "what"), [(Follow(0, None), "for a second time"), (Promise(9), "Promise from")]
)
def test_a_standby_that_says_what_it_must_not_is_sent_away(
    says: Follow | Promise, what: str
) -> None:
    run = run_with()
    standby = standby_of(run)
    run.join_and_wait(1)
    standby.wait_for(Welcome)

    standby.say(says)

    assert what in standby.wait_for_end().reason


def test_voters_that_were_never_sent_cannot_be_confirmed() -> None:
    run = run_with()
    standby = run.dial("standby")

    standby.say(Follow(0, 3))

    assert standby.wait_for_end().reason == naming("voters 3", "never sent")


def test_the_newer_one_of_two_standbys_stays() -> None:
    run = run_with()
    older = standby_of(run)
    older.wait_for(Voters)

    newer = standby_of(run, "another")

    assert older.wait_for_end().reason == naming("another connection")
    newer.wait_for(Voters)
    assert run.master.terms.has_standby


def test_what_a_standby_has_not_confirmed_it_may_not_know_and_the_older_voters_count() -> None:
    """Three of four are lost, and a standby that lives would have said that it knows of it."""
    run = run_with(MasterConfig(standby="standby:1", idle_timeout_seconds=3.0))
    standby = standby_of(run)
    run.join_and_wait(4)
    run.network.run(lambda: len(standby.all(Voters)[-1].workers) == 4, seconds=5)
    standby.say(Follow(1, standby.all(Voters)[-1].number))
    run.network.run_for(1)
    for worker in run.workers[1:]:
        run.network.kill(worker.host)
    run.network.run(lambda: len(run.master.roster.workers) == 1, seconds=30)
    run.workers[0].step()
    run.network.run_for(3)
    before = dict(run.workers[0].stable)

    standby.say(Follow(1, standby.all(Voters)[-1].number))
    run.network.run(lambda: run.workers[0].stable != before, seconds=5)

    assert run.master.terms.in_charge


def test_a_standby_that_confirms_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "VOTERS_SETS_MAX", 3)
    run = run_with()
    standby = standby_of(run)

    run.join_and_wait(1)
    for _ in range(3):
        run.join_and_wait(1)

    assert standby.wait_for_end().reason == naming(3, "voters", "confirmed")
    assert not run.master.terms.has_standby
    assert run.master.terms.in_charge


def test_a_worker_that_has_promised_the_standby_makes_the_master_step_down() -> None:
    """Any worker can claim that, and so interrupt a run with two masters."""
    run = run_with()
    standby = standby_of(run)
    run.join_and_wait(2)

    worker_of(run, resume_of(7, 0, {}, 2, term=2))

    assert standby.wait_for_end().code == EndCode.STEPPED_DOWN
    assert not run.master.terms.in_charge
    standby_of(run, "standby-again")
    run.network.run(lambda: len(run.master.roster.workers) == 2, seconds=30)
    assert run.master.terms.term == 3


@pytest.mark.parametrize("term", [TERMS_AHEAD_MAX + 2, TERM_MAX])
@pytest.mark.parametrize("config", [PAIRED, MasterConfig()])
def test_terms_that_cannot_be_are_not_believed(config: MasterConfig, term: int) -> None:
    run = run_with(config)
    if config is PAIRED:
        standby_of(run)
        run.network.run(lambda: run.master.terms.in_charge, seconds=5)

    worker = worker_of(run, resume_of(7, 0, {}, 2, term=term))

    assert "the limit is 1000 ahead" in worker.wait_for_end().reason
    assert run.master.terms.in_charge
