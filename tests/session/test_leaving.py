"""`Session.leave`: all that was trained reaches the others, who train on."""

import numpy as np
import pytest
import torch

import gradwire
from gradwire.settings.training import Feedback
from support.local_master import LocalMaster
from support.sessions import (
    change,
    join,
    norm_of,
    pull,
    replica_of,
    state_of,
    variance_of,
    zeros,
)
from support.waiting import SOON
from support.wording import naming


@pytest.mark.parametrize("feedback", ["local", "shared"])
def test_what_waited_in_the_residual_is_with_the_others(
    master: LocalMaster, feedback: Feedback
) -> None:
    mine, theirs = zeros(), zeros()
    one, other = join(master, mine, feedback=feedback), join(master, theirs)
    one.push(change(0.125, 0.25, -0.375, 0))
    assert not replica_of(one).any()

    one.leave()
    pull(other, 1)

    assert theirs.tolist() == mine.tolist() == [0.125, 0.25, -0.375, 0]


def test_the_setting_for_the_end_of_a_run_is_not_for_who_leaves(master: LocalMaster) -> None:
    theirs = zeros()
    one, other = join(master, finish_residual="drop"), join(master, theirs)
    one.push(change(0.25, 0, 0, 0))

    one.leave()
    pull(other, 1)

    assert theirs.tolist() == [0.25, 0, 0, 0]


def test_workers_that_come_one_after_the_other_train_one_run(master: LocalMaster) -> None:
    """As tasks do of which there are more than places: each begins with what was before it."""
    for i in range(3):
        target = zeros()
        with join(master, target) as session:
            session.push(change(0.125, 0, 0, 0))
            session.leave()
        assert target.tolist() == [0.125 * (i + 1), 0, 0, 0]


def test_the_next_worker_of_its_rank_begins_with_its_buffers(master: LocalMaster) -> None:
    """And where that one has not trained, it leaves them as they are."""
    norms = [norm_of(5.0), norm_of(1.0), norm_of(2.0)]
    first = join(master, norms[0])
    first.step()
    first.leave()

    second = join(master, norms[1])
    assert variance_of(norms[1]) == [5.0, 5.0]
    second.leave()

    third = join(master, norms[2])
    assert variance_of(norms[2]) == [5.0, 5.0]
    with torch.no_grad():
        state_of(norms[2])["running_var"].fill_(7.0)
    third.step()
    third.finish()
    assert variance_of(norms[2]) == [7.0, 7.0]


def test_nobody_is_waited_for_but_the_slowest_to_take_it(master: LocalMaster) -> None:
    """A worker that never steps holds nobody up: its updates wait at the master and with it."""
    one = join(master, np.zeros(200_000, np.float32))
    join(master, np.zeros(200_000, np.float32))
    one.push(np.full(200_000, 0.25, np.float32))

    one.leave(timeout=SOON)

    master.wait_for_workers(1)


def test_it_is_no_way_out_of_a_pause(master: LocalMaster) -> None:
    session = join(master)

    with session.paused(), pytest.raises(gradwire.UsageError, match=naming("leave()", "paused()")):
        session.leave()

    session.leave()
    with pytest.raises(gradwire.UsageError, match=naming("over", "left")):
        session.leave()
