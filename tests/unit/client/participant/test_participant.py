"""`Participant`: what a worker does in a step and at the end, played by hand."""

import numpy as np
import pytest

from gradwire.errors import DeadlineError, UsageError
from gradwire_protocol.messages.admission import Peer
from support.participants import Rig
from support.wording import naming


def test_an_observer_applies_and_may_not_push() -> None:
    rig = Rig(observes=True)
    rig.hear(1.0, 0.0, 0.0, 0.0)

    rig.play(rig.participant.step())
    for changed in (None, np.ones(4, np.float32)):
        with pytest.raises(UsageError, match=naming("role observer", "key")):
            rig.play(rig.participant.push(changed))

    assert rig.parameters[0] == 1.0


# Without the master.


def test_steps_without_the_master_are_made_up_to_the_limit_and_then_wait_for_it() -> None:
    rig = Rig(reconnect_seconds=50.0, connect_timeout_seconds=10.0)
    rig.participant.offline_steps_max = 2
    rig.membership.on_lost("silence")
    for _ in range(2):
        rig.play(rig.participant.step())

    third = rig.participant.step()
    wait = rig.wait_of(third)

    assert wait.deadline == rig.now + 60.0
    assert not wait.condition()
    rig.membership.on_resumed(None)
    assert wait.condition()
    rig.play(third)
    assert rig.participant.tally.steps == 3


def test_a_step_that_has_waited_in_vain_for_the_master_says_so() -> None:
    rig = Rig(reconnect_seconds=50.0, connect_timeout_seconds=10.0)
    rig.participant.offline_steps_max = 0
    rig.membership.on_lost("silence")
    step = rig.participant.step()
    wait = rig.wait_of(step)

    rig.now = wait.deadline

    with pytest.raises(DeadlineError, match=naming("0", "60 s", "master")):
        rig.play(step)


def test_a_residual_that_is_dropped_is_not_sent() -> None:
    rig = Rig(finish_residual="drop")
    rig.parameters[0] = 0.25
    finish = rig.participant.finish(60.0)
    rig.wait_of(finish)

    rig.membership.on_finished({0: 7, 1: 5})
    rig.play(finish)

    assert rig.pushed() == []
    assert rig.parameters.tolist() == [0.0] * 4


# Checkpoints.


def test_a_state_whose_digest_is_no_text_is_refused_and_changes_nothing() -> None:
    rig = Rig()
    rig.participant.brought_digest = "0123456789abcdef"
    before = rig.participant.save()

    with pytest.raises(UsageError, match="does not fit"):
        rig.participant.state.restore({**before, "digest": np.zeros(3), "steps": 7})

    assert rig.participant.save()["steps"] == before["steps"]


# The end.


def test_an_end_that_is_waited_for_in_vain_names_the_others_and_can_be_tried_again() -> None:
    rig = Rig()
    finish = rig.participant.finish(60.0)
    wait = rig.wait_of(finish)
    rig.now = wait.deadline

    with pytest.raises(DeadlineError, match=naming("rank 0 (zero")):
        rig.play(finish)

    rig.membership.on_finished({0: 7, 1: 5})
    rig.play(rig.participant.finish(60.0))


def test_after_the_end_has_begun_nothing_more_is_trained() -> None:
    rig = Rig()
    rig.wait_of(rig.participant.finish(60.0))

    with pytest.raises(UsageError, match=naming("finish()")):
        rig.play(rig.participant.step())


def test_workers_are_waited_for_until_they_are_there() -> None:
    rig = Rig()
    waiting = rig.participant.wait_for_workers(3, 60.0)
    wait = rig.wait_of(waiting)

    rig.membership.on_roster([Peer(rank, f"worker{rank}", False) for rank in range(3)])

    assert wait.condition()
    rig.play(waiting)
    in_vain = rig.participant.wait_for_workers(4, 60.0)
    rig.now = rig.wait_of(in_vain).deadline
    with pytest.raises(DeadlineError, match=naming("60 s", "4 workers", "3")):
        rig.play(in_vain)
