"""The master against a worker that does what it must not: only that one is sent away.

Training and its invariants are in `tests/simulation`; here a scripted peer joins a simulated run.
"""

import logging
import re
from collections.abc import Callable

import numpy as np
import pytest

from gradwire_codecs import Replica, encode, pack_block
from gradwire_protocol import CloseCode, UsageError
from gradwire_protocol.limits import MESSAGE_OVERHEAD_BYTES, WINDOW_BYTES_MIN
from gradwire_protocol.messages.admission import (
    CODEC_VERSION,
    Join,
    RefusalCode,
    Refuse,
    Roster,
    Welcome,
)
from gradwire_protocol.messages.fields import REASON_CHARACTERS_MAX
from gradwire_protocol.messages.kinds import CONTROL_STREAM, SNAPSHOT_STREAM, EndCode, Kind
from gradwire_protocol.messages.layout import DIMENSIONS_MAX, NAME_CHARACTERS_MAX, Layout, Tensor
from gradwire_protocol.messages.link import Control
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import EncodedUpdate, Finish, Finished, Leave, Stable
from gradwire_server.config import MasterConfig
from gradwire_server.state.roster import Phase
from gradwire_server.state.run import Run
from support.peer import ScriptedPeer, join_request, said_by_peer
from support.training import SimulatedRun
from support.wording import naming

ELEMENTS = 40
ROGUE = "rank 2 (rogue)"


def update_of(run: SimulatedRun, value: float = 0.25) -> bytes:
    """Return an encoded update of the run's model that changes its first element."""
    change = np.zeros(run.elements, np.float32)
    change[0] = value
    [body] = encode(change, Replica.zeros(run.elements), threshold=value)
    return body


def run_with(workers: int, config: MasterConfig | None = None) -> SimulatedRun:
    run = SimulatedRun(elements=ELEMENTS, master=config)
    run.join_and_wait(workers)
    return run


def rogue_in(run: SimulatedRun, name: str = "rogue") -> ScriptedPeer:
    """Return a peer that has joined the run like any worker, and has its snapshot."""
    rogue = run.enter(name)
    rogue.wait_for(Snapshot)
    run.network.run(lambda: phase_of(run, rogue) is Phase.LIVE, seconds=10)
    return rogue


def phase_of(run: SimulatedRun, rogue: ScriptedPeer) -> Phase:
    rank = rogue.all(Welcome)[0].rank
    return next(member.phase for member in run.master.roster if member.rank == rank)


def train_and_finish(run: SimulatedRun) -> None:
    """Let the others go on to the end; `SimulatedRun` checks that they lack nothing."""
    run.train(2)
    run.finish()


# What a worker must not do.


Act = Callable[[ScriptedPeer, bytes], None]
"""What a peer does, with an update of the run at hand."""


def saying(message: Control) -> Act:
    return lambda rogue, _: rogue.say(message)


def sending(stream: int, kind: int, payload: bytes) -> Act:
    return lambda rogue, _: rogue.say_anything(stream, 100, kind, payload)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (lambda rogue, body: rogue.say_update(0, 1, body), (ROGUE, "update of rank 0")),
        (lambda rogue, _: rogue.say_block(0, np.ones(ELEMENTS, np.int32)), (ROGUE, "Snapshot")),
        (lambda rogue, body: rogue.say_update(2, 1, body, based_on=3), (ROGUE, "update 1", 3, 0)),
        (saying(Roster(())), (ROGUE, "Roster")),
        (saying(Stable(0, {})), (ROGUE, "Stable")),
        (saying(Finished({})), (ROGUE, "Finished")),
        (saying(Refuse("no", "no")), (ROGUE, "Refuse")),
        (saying(join_request()), (ROGUE, "Join")),
        (sending(CONTROL_STREAM, max(Kind) + 1, b"\x80"), ("kind", max(Kind) + 1)),
        (sending(CONTROL_STREAM, Kind.UPDATE, b"\x80"), ("UPDATE", 65535)),
        (sending(7, Kind.LEAVE, b"\x80"), ("LEAVE", 7)),
        (
            sending(CONTROL_STREAM, Kind.LEAVE, b"\x80"),
            ("Leave", "missing", "sequence", "reason"),
        ),
        (sending(CONTROL_STREAM, Kind.LEAVE, b"\xc1"), ("Leave",)),
        (
            sending(SNAPSHOT_STREAM, Kind.SNAPSHOT, b"\x80"),
            ("Snapshot", "missing", "start", "values"),
        ),
        (sending(2, Kind.UPDATE, EncodedUpdate(9, 0, b"?").pack()), ("update", 9, 100)),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_breaks_a_rule_ends_the_connection(act: Act, named: tuple[object, ...]) -> None:
    """Messages of others and of masters, those that do not fit, and what is no message at all."""
    run = run_with(2)
    rogue = rogue_in(run)
    digest = run.state.replica.digest()

    act(rogue, update_of(run))

    assert rogue.wait_for_end() == said_by_peer(CloseCode.INVALID_MESSAGE, naming(*named))
    assert run.state.replica.digest() == digest
    assert run.sample("messages_invalid_total") == 1
    assert run.sample("leaves_total", reason="fault") == 1
    assert run.sample("updates_accepted_total") == 0
    train_and_finish(run)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (saying(Leave(0, "bye")), "Leave"),
        (saying(Finish(0)), "Finish"),
        (saying(Stable(0, {})), "Stable"),
        (lambda rogue, body: rogue.say_update(0, 1, body), "update"),
    ],
    ids=["leave", "finish", "stable", "update"],
)
def test_a_message_before_join_ends_the_connection(act: Act, named: str) -> None:
    run = run_with(2)
    rogue = run.dial()

    act(rogue, update_of(run))

    assert rogue.wait_for_end() == said_by_peer(CloseCode.INVALID_MESSAGE, naming(named, "JOIN"))
    assert run.sample("messages_invalid_total") == 1
    assert run.sample("leaves_total", reason="fault") == 0
    train_and_finish(run)


def test_an_update_of_a_worker_that_has_no_parameters_yet_ends_the_connection() -> None:
    run = SimulatedRun(elements=ELEMENTS)
    founder, waiting = run.enter("founder"), run.ask_to_join()
    waiting.wait_for(Roster)

    waiting.say_update(1, 1, update_of(run))

    assert waiting.wait_for_end() == said_by_peer(
        CloseCode.INVALID_MESSAGE, naming("rank 1 (rogue)", "update", "parameters")
    )
    assert founder.ended is None


# Who does not get in.


def test_a_connection_that_never_joins_is_closed_after_the_join_timeout() -> None:
    run = run_with(2, MasterConfig(join_timeout_seconds=3.0))
    rogue = run.dial()
    connected_at = run.network.now

    end = rogue.wait_for_end()

    assert end == said_by_peer(EndCode.NO_JOIN, naming("request to join", "in time"))
    assert run.network.now - connected_at == pytest.approx(3.0, abs=0.1)
    train_and_finish(run)


def test_who_was_refused_is_not_heard_again(caplog: pytest.LogCaptureFixture) -> None:
    run = run_with(2)
    rogue = run.dial()
    refused = join_request(layout=Layout((Tensor("weights", (3,)),)))

    with caplog.at_level(logging.WARNING, "gradwire.master"):
        rogue.say(*[refused] * 10, Finish(0))
        rogue.wait_for_end()

    assert len(rogue.all(Refuse)) == run.sample("refusals_total", reason="other_layout") == 1
    assert len(caplog.messages) == 1
    assert rogue.ended is not None
    assert rogue.ended.code == EndCode.REFUSED


def test_a_refusal_fits_its_message_however_long_the_names_of_parameters_are() -> None:
    run = SimulatedRun()
    shape = (1,) * DIMENSIONS_MAX
    layouts = [Layout((Tensor(c * NAME_CHARACTERS_MAX, shape),)) for c in "\\a"]
    run.enter("founder", layout=layouts[0])

    refused = run.ask_to_join("other", layout=layouts[1]).wait_for(Refuse)

    assert refused.code == RefusalCode.OTHER_LAYOUT
    assert len(refused.reason) == REASON_CHARACTERS_MAX


@pytest.mark.parametrize("hears", [True, False])
def test_a_worker_that_was_refused_and_stays_silent_is_closed_all_the_same(hears: bool) -> None:
    """Its side is cut once the request has left, so that the REFUSE is never acknowledged."""
    run = run_with(1, MasterConfig(workers_max=1, join_timeout_seconds=3.0))
    rogue = run.ask_to_join()
    run.network.on_datagram = lambda source, target, _: (
        source != "rogue" and (hears or target != "rogue")
    )

    run.network.run(lambda: run.sample("refusals_total", reason="run_full") == 1, seconds=10)
    refused_at = run.network.now
    run.network.run(lambda: len(run.master_endpoint) == len(run.master.roster), seconds=10)

    assert run.network.now - refused_at < 4.0
    if hears:
        assert rogue.wait_for_end() == said_by_peer(EndCode.REFUSED, "refused")
    train_and_finish(run)


OTHER_MODEL = Layout((Tensor("bias", (3,)),))


def test_a_run_without_workers_gives_way_to_another_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = run_with(1)
    run.workers[0].leave()
    run.network.run(lambda: not len(run.master.roster), seconds=10)

    with caplog.at_level(logging.WARNING, "gradwire.master"):
        other = run.enter("other", layout=OTHER_MODEL)

    [welcome] = other.all(Welcome)
    assert (welcome.run, welcome.founder) == ("default", True)
    assert run.sample("parameters") == 3
    assert caplog.messages == [naming("'default'", "gives way", "other")]


def test_it_does_not_while_one_of_them_may_come_back() -> None:
    run = run_with(1, MasterConfig(rejoin_seconds=100.0))
    run.network.on_datagram = lambda source, target, _: "worker0" not in (source, target)
    run.network.run(lambda: not len(run.master.roster), seconds=60)

    refused = run.ask_to_join("early", layout=OTHER_MODEL).wait_for(Refuse)
    run.network.run_for(100.0)
    other = run.enter("other", layout=OTHER_MODEL)

    assert refused.code == RefusalCode.OTHER_LAYOUT
    assert refused.reason == naming("gradwire operate end-run", "--new-run")
    assert other.all(Welcome)[0].founder


def test_a_run_is_ended_by_order_and_the_next_worker_begins_another() -> None:
    run = run_with(2)
    run.train(3)
    observer_like = rogue_in(run)

    said = run.master.end_run("an operator has ended the run", run.network.now)
    run.network.turn(run.master_host)
    end = observer_like.wait_for_end()

    assert said == naming("'default'", "6 updates", "3", "none")
    assert end == said_by_peer(EndCode.EXPELLED, "an operator has ended the run")
    assert run.master.run is None
    [welcome] = run.enter("other", layout=OTHER_MODEL).all(Welcome)
    assert welcome.founder


def test_where_there_is_no_run_none_is_ended() -> None:
    with pytest.raises(UsageError, match="there is no run"):
        SimulatedRun().master.end_run("an operator has ended the run", 0.0)


def test_the_reason_why_the_master_stops_is_told_to_those_who_have_not_joined_too() -> None:
    run = run_with(1)
    stranger = run.dial("stranger")
    run.network.run(lambda: len(run.master_endpoint) == 2, seconds=10)

    run.runs.stop("maintenance", run.network.now)
    run.turn_master()

    assert stranger.wait_for_end() == said_by_peer(EndCode.STOPPED, "maintenance")
    assert len(run.master.roster) == 0


# Updates.


def test_an_update_that_was_accepted_before_is_dropped_and_counted() -> None:
    """A rank goes on where it ended; an older update in its name is not applied again."""
    run = run_with(1)
    first = rogue_in(run, "first")
    first.say_update(1, 1, update_of(run))
    first.say(Leave(1, ""))
    assert first.wait_for_end() == said_by_peer(EndCode.LEFT, "left")
    heir = rogue_in(run, "heir")
    assert heir.all(Welcome)[0].sequence == 1
    digest = run.state.replica.digest()

    heir.say_update(1, 1, update_of(run))
    run.network.run(lambda: run.sample("updates_duplicate_total") == 1, seconds=10)

    assert heir.ended is None
    assert run.state.replica.digest() == digest
    assert run.sample("updates_accepted_total") == 1


def test_who_is_sent_more_than_updates_than_it_takes_is_sent_away() -> None:
    """Everybody is told who takes part, again and again; nothing adds that up."""
    run = run_with(1, MasterConfig(relay_backlog_bytes_max=1_000))
    slow = rogue_in(run, "slow")
    run.network.on_datagram = lambda source, target, _: source != "slow"

    for number in range(20):
        rogue_in(run, f"guest{number}").say(Leave(0, "enough"))
    end = slow.wait_for_end()

    assert end.code == EndCode.TOO_SLOW
    assert re.search(r"\b1\d\d\d bytes\b.*\b1000\b", end.reason)


# Leaving.


def test_who_waits_for_the_first_parameters_gets_the_quantum_that_they_have() -> None:
    """Not that of a first worker who is gone: the same integers would stand for other values."""
    run = SimulatedRun(elements=ELEMENTS)
    peers = []
    for name, exponent in (("first", -20), ("heir", -24), ("last", -22)):
        peers.append(run.ask_to_join(name, quantum_exponent=exponent))
        peers[-1].wait_for(Roster)
    first, heir, last = peers

    first.end(EndCode.ABORTED, "out of memory")
    assert heir.wait_for(Welcome).founder
    heir.say_block(0, np.ones(ELEMENTS, np.int32))

    assert last.wait_for(Welcome).quantum_exponent == -24
    assert not last.all(Welcome)[0].founder
    assert last.wait_for(Snapshot).values == pack_block(np.ones(ELEMENTS, np.int32))


def test_a_model_too_large_for_the_machine_is_refused_and_the_master_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = SimulatedRun(elements=ELEMENTS)
    with monkeypatch.context() as patched:
        patched.setattr(Run, "begin", out_of_memory)

        refused = run.ask_to_join().wait_for(Refuse)
    assert refused.code == RefusalCode.TOO_LARGE
    assert f"the model has {ELEMENTS} parameters, for which" in refused.reason
    run.join_and_wait(2)
    train_and_finish(run)


def out_of_memory(*arguments: object) -> Run:
    raise MemoryError


def test_a_quantum_that_no_replica_has_ends_the_connection_and_not_the_master() -> None:
    run = SimulatedRun(elements=ELEMENTS)

    rogue = run.ask_to_join(quantum_exponent=-50)

    assert rogue.wait_for_end() == said_by_peer(
        CloseCode.INVALID_MESSAGE, naming("Join", "quantum_exponent", -50, -40, 0)
    )
    run.join_and_wait(2)
    train_and_finish(run)


def test_who_leaves_and_joins_in_one_breath_has_left() -> None:
    run = run_with(2)
    rogue = rogue_in(run)

    rogue.say_out_of_order([Leave(0, "bye"), join_request(layout=run.layout)], [1, 0])

    assert rogue.wait_for_end() == said_by_peer(EndCode.LEFT, "left")
    train_and_finish(run)


@pytest.mark.parametrize(
    ("served", "request_"),
    [
        ("alpha", join_request(run="beta")),
        (None, join_request(run="beta", codec=CODEC_VERSION + 1)),
    ],
    ids=["run", "codec"],
)
def test_a_run_that_nobody_takes_part_in_outlives_a_refusal(
    served: str | None, request_: Join
) -> None:
    run = run_with(1, MasterConfig(run=served))
    run.workers[0].leave()
    run.network.run(lambda: not len(run.master.roster), seconds=10)
    before = run.master.run
    assert before is not None
    rogue = run.dial()

    rogue.say(request_)
    rogue.wait_for(Refuse)

    assert run.master.run is before


def test_updates_that_wait_for_an_earlier_one_hold_their_credit() -> None:
    """Else a worker that leaves one out could fill the master's memory with the rest."""
    run = run_with(1, MasterConfig(reassembly_bytes_max=64 * WINDOW_BYTES_MIN))
    rogue = rogue_in(run)
    window = run.master.config.window_bytes

    for sequence in range(2, 12):
        rogue.say_update(1, sequence, bytes(2**20))
    run.network.run_for(60.0)

    assert rogue.link.connection.bytes_queued >= 10 * 2**20 - window


def test_control_messages_that_wait_for_an_earlier_one_hold_their_credit() -> None:
    run = run_with(1, MasterConfig(reassembly_bytes_max=64 * WINDOW_BYTES_MIN))
    rogue = rogue_in(run)
    most = run.master.config.window_bytes // MESSAGE_OVERHEAD_BYTES

    rogue.say_out_of_order([Finish(0)] * (most + 100), range(1, most + 100))
    run.network.run_for(60.0)

    assert rogue.link.connection.bytes_queued > 0


def test_who_waits_to_be_let_in_must_not_say_anything_else() -> None:
    run = SimulatedRun(elements=ELEMENTS)
    run.master.begin(run.network.now)
    rogue = run.dial()

    rogue.say(join_request(layout=run.layout), Finish(1))

    assert rogue.wait_for_end().reason == naming("Finish", "JOIN", "due")


def test_who_waits_to_be_let_in_has_time_to_hear_that_it_is_refused() -> None:
    config = MasterConfig(recovery_seconds=8.0, join_timeout_seconds=2.0, run="other")
    run = SimulatedRun(elements=ELEMENTS, master=config)
    run.master.begin(run.network.now)
    began = run.network.now

    refused = run.ask_to_join(run="mine").wait_for(Refuse)

    assert refused.code == RefusalCode.OTHER_RUN
    assert run.network.now - began >= 8.0
