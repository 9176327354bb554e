"""What the master does with buffers: whose count, who is told, and what is refused.

Whole histories are in `tests/simulation/test_buffers.py`; here scripted peers join a simulated run.
"""

import gc
import weakref
from dataclasses import replace

import numpy as np

from gradwire_protocol import CloseCode
from gradwire_protocol.limits import (
    BUFFER_LAYOUT_BYTES_MAX,
    BUFFERS_BURST_BYTES,
    BUFFERS_BYTES_MAX,
)
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.replicas import Contents
from gradwire_protocol.messages.updates import Leave
from gradwire_server.config import MasterConfig
from gradwire_server.state.roster import Member
from support.network import Link
from support.peer import ScriptedPeer, resume_of, said_by_peer
from support.training import MASTER, SimulatedRun
from support.wording import naming


def run_with(config: MasterConfig | None = None) -> SimulatedRun:
    """Return a run with one worker, which has no buffers."""
    run = SimulatedRun(elements=6, master=config)
    run.join_and_wait(1)
    return run


def rank_of(peer: ScriptedPeer) -> int:
    return peer.all(Welcome)[0].rank


def member_of(run: SimulatedRun, rank: int) -> Member:
    member = run.master.roster.at(rank)
    assert member is not None
    return member


def buffers(rank: int, values: bytes = b"1234", *, final: bool = False) -> Buffers:
    return Buffers(
        rank, final=final, leaves=False, layout=b"some", floats=values, integers=b"", others=b""
    )


def settle(run: SimulatedRun) -> None:
    run.network.run_for(1.0)


def test_the_only_ones_of_a_run_stay_when_their_worker_is_gone_until_another_has_sent_its_own() -> (
    None
):
    run = run_with()
    one, other = run.enter("one"), run.enter("other")
    one.say(buffers(rank_of(one)), Leave(0, "done"))
    settle(run)
    late = run.enter("late")
    settle(run)
    assert late.all(Buffers) == other.all(Buffers) == [buffers(rank_of(one))]

    other.say(buffers(rank_of(other), b"5678"))
    settle(run)

    own = [buffers(rank_of(other), b"5678")]
    assert late.all(Buffers)[1:] in ([Buffers.withdrawal(0), *own], own)
    assert run.state.buffers.keys() == {rank_of(other)}


def test_the_run_s_first_are_those_of_its_first_worker_and_follow_the_welcome_of_others() -> None:
    """Of whoever comes while the run is founded, too."""
    run = SimulatedRun(elements=6)
    first, waiting = run.enter("first"), run.ask_to_join("waiting")
    settle(run)
    assert first.all(Welcome)[0].founder

    first.say(buffers(0))
    settle(run)
    assert waiting.all(Buffers) == []
    first.say_block(0, np.zeros(6, np.int32))
    settle(run)

    assert waiting.all(Welcome)[0].buffers == 1
    assert waiting.all(Buffers) == [buffers(0)]


def test_those_of_a_first_worker_that_is_gone_before_the_run_has_begun_are_forgotten() -> None:
    run = SimulatedRun(elements=6)
    first = run.enter("first")
    heir, waiting = (run.ask_to_join(name) for name in ("heir", "waiting"))
    settle(run)
    first.say(buffers(0), Leave(0, "gone"))
    settle(run)

    heir.say(buffers(rank_of(heir), b"5678"))
    settle(run)
    heir.say_block(0, np.zeros(6, np.int32))
    settle(run)

    assert waiting.all(Welcome)[0].buffers == 1
    assert waiting.all(Buffers) == [buffers(rank_of(heir), b"5678")]


def test_a_worker_may_say_that_its_own_count_no_more() -> None:
    run = run_with()
    one, other = run.enter("one"), run.enter("other")
    one.say(buffers(rank_of(one)), Buffers.withdrawal(rank_of(one)))
    one.say(Buffers.withdrawal(rank_of(one)))
    settle(run)

    assert other.all(Buffers)[-1] == Buffers.withdrawal(rank_of(one))
    assert one.ended is None


def test_behind_the_last_nothing_else_is_taken() -> None:
    run = run_with()
    one, other = run.enter("one"), run.enter("other")

    one.say(buffers(rank_of(one), final=True), buffers(rank_of(one), b"5678"))
    settle(run)

    assert other.all(Buffers) == [buffers(rank_of(one), final=True)]
    assert run.sample("buffers_refused_total") == 1


def test_more_bytes_than_a_worker_may_send_are_refused_and_counted_but_never_its_last() -> None:
    run = run_with()
    one, other = run.enter("one"), run.enter("other")
    rank = rank_of(one)
    large = [bytes([n]) * (BUFFERS_BYTES_MAX // 4) for n in range(9)]
    assert 8 * len(large[0]) < BUFFERS_BURST_BYTES < 9 * len(large[0])
    for values in large:
        one.say(buffers(rank, values))
        run.network.run_for(0.001)
    run.network.run(lambda: run.sample("buffers_received_total") == 9, seconds=20)
    assert run.sample("buffers_refused_total") >= 1

    one.say(buffers(rank, large[0], final=True))
    run.network.run(lambda: other.all(Buffers)[-1:] == [buffers(rank, large[0], final=True)],
                    seconds=20)  # fmt: skip


def test_descriptions_count_among_the_bytes_that_a_worker_may_send() -> None:
    run = run_with()
    one = run.enter("one")
    layouts = [bytes([n]) * BUFFER_LAYOUT_BYTES_MAX for n in range(40)]
    assert BUFFERS_BURST_BYTES < 20 * BUFFER_LAYOUT_BYTES_MAX

    for layout in layouts:
        one.say(replace(buffers(rank_of(one), b"1"), layout=layout))
        run.network.run_for(0.001)
    run.network.run(lambda: run.sample("buffers_received_total") == 40, seconds=20)

    assert run.sample("buffers_refused_total") >= 1


def test_a_run_that_was_ended_is_not_kept_for_its_buffers() -> None:
    run = run_with()
    ended = weakref.ref(run.state.replica.values)

    run.master.end_run("an operator has ended the run", run.network.now)
    settle(run)
    gc.collect()

    assert ended() is None


def test_of_a_member_that_takes_nothing_only_the_latest_wait() -> None:
    run = run_with()
    one, slow = run.enter("one"), run.enter("slow")
    feed = member_of(run, rank_of(slow)).buffers
    run.network.set_link(MASTER, "slow", Link(loss=1.0))
    values = [bytes([n]) * (BUFFERS_BYTES_MAX // 8) for n in range(16)]
    for each in values:
        one.say(buffers(rank_of(one), each))
        run.network.run_for(0.02)
        assert feed.nbytes < 2 * BUFFERS_BYTES_MAX
    assert list(feed.unsent) == [rank_of(one)]

    run.network.set_link(MASTER, "slow", Link())
    run.network.run(lambda: feed.is_complete, seconds=60)

    assert slow.all(Buffers)[-1].floats == values[-1]
    assert len(slow.all(Buffers)) < 16


def test_of_another_rank_nothing_is_taken_while_the_run_was_never_lost() -> None:
    run = run_with()
    one, other = run.enter("one"), run.enter("other")

    one.say(buffers(7, final=True), buffers(rank_of(other), final=True))
    settle(run)

    assert other.all(Buffers) == []
    assert one.ended is None


def recovered_run(config: MasterConfig | None = None) -> tuple[SimulatedRun, ScriptedPeer]:
    """Return a run that a master has got back from a peer, which had rank 0 of two."""
    run = SimulatedRun(elements=6, master=config)
    run.master.begin(run.network.now)
    return run, run.enter(run="default", rank=0, resume=resume_of(0, 0, {1: 0}, 1))


def give_replica(run: SimulatedRun, one: ScriptedPeer) -> None:
    """Let the run begin again."""
    one.say(Contents({0: 0, 1: 0}))
    one.say_block(0, np.zeros(6, np.int32))
    run.network.run(lambda: run.master.run is not None and run.state.founded, seconds=10)


def test_nobody_fills_a_master_with_the_last_of_ranks_that_were_never_there() -> None:
    run, one = recovered_run(MasterConfig(workers_max=3))
    give_replica(run, one)

    one.say(buffers(0), *(buffers(rank, final=True) for rank in range(1, 20)))
    settle(run)

    assert set(run.state.buffers) == {0, *range(15, 20)}
    assert run.sample("buffers_refused_total") == 14


def test_buffers_before_the_run_has_begun_end_the_connection() -> None:
    _, one = recovered_run()

    one.say(buffers(0))

    assert one.wait_for_end() == said_by_peer(
        CloseCode.INVALID_MESSAGE, naming("Buffers", "rank 0 (rogue)", "before")
    )


def test_what_comes_from_a_quarantine_counts_when_that_is_over() -> None:
    run = run_with()
    one, other = run.enter("one"), run.enter("other")
    member = member_of(run, rank_of(one))
    member.quarantine = []
    one.say(buffers(rank_of(one)), buffers(rank_of(one), b"5678"))
    settle(run)
    assert other.all(Buffers) == []

    run.master.release(rank_of(one), run.network.now)
    run.turn_master()
    settle(run)

    assert other.all(Buffers) == [buffers(rank_of(one), b"5678")]
