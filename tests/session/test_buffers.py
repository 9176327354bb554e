"""Sessions of modules with BatchNorm against a real master on loopback."""

import pytest
import torch

from support.local_master import LocalMaster
from support.sessions import (
    finish,
    join,
    norm_of,
    state_of,
    variance_of,
)
from support.waiting import wait_until
from support.wording import naming


def test_at_the_end_all_have_the_mean_and_the_largest_count(master: LocalMaster) -> None:
    norms = [norm_of(1.0, 3), norm_of(2.0, 9), norm_of(6.0, 4)]
    sessions = [join(master, norm) for norm in norms]

    finish(*sessions)

    assert [variance_of(norm) for norm in norms] == [[3.0, 3.0]] * 3
    assert [state_of(norm)["num_batches_tracked"].item() for norm in norms] == [9] * 3
    assert [session.stats.buffers_averaged for session in sessions] == [1] * 3
    assert [session.stats.buffers_refused for session in sessions] == [0] * 3


def test_who_comes_later_begins_with_what_the_others_have(master: LocalMaster) -> None:
    first = join(master, norm_of(5.0), buffer_steps=1)
    first.step()
    wait_until(lambda: master.sample("gradwire_buffers_received_total") == 1, "its buffers")
    norm = norm_of(1.0)

    later = join(master, norm)

    assert variance_of(norm) == [5.0, 5.0]
    assert later.stats.buffers_averaged == 1


def test_without_sharing_each_keeps_its_own(master: LocalMaster) -> None:
    norms = [norm_of(1.0), norm_of(3.0)]

    finish(*[join(master, norm, share_buffers=False) for norm in norms])

    assert [variance_of(norm) for norm in norms] == [[1.0] * 2, [3.0] * 2]
    assert master.sample("gradwire_buffers_received_total") == 0


def test_buffers_of_another_module_are_not_averaged_and_counted(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = norm_of(1.0), norm_of(3.0)
    other.register_buffer("more", torch.ones(1))
    sessions = [join(master, one), join(master, other)]

    finish(*sessions)

    assert (variance_of(one), variance_of(other)) == ([1.0] * 2, [3.0] * 2)
    assert [session.stats.buffers_refused for session in sessions] == [1, 1]
    assert naming("buffers", "rank 1", "other ones") in caplog.messages
