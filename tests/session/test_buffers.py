"""Sessions of modules with BatchNorm against a real master on loopback."""

import logging

import pytest
import torch
from torch import nn

from support.local_master import LocalMaster
from support.sessions import (
    finish,
    join,
    norm_of,
    set_buffers,
    state_of,
    variance_of,
)
from support.wording import naming


def test_at_the_end_all_have_the_mean_and_the_largest_count(master: LocalMaster) -> None:
    norms = [norm_of(1.0) for _ in range(3)]
    sessions = [join(master, norm) for norm in norms]
    for norm, variance, batches in zip(norms, (1.0, 2.0, 6.0), (3, 9, 4), strict=True):
        set_buffers(norm, variance, batches)

    finish(*sessions)

    assert [variance_of(norm) for norm in norms] == [[3.0, 3.0]] * 3
    assert [state_of(norm)["num_batches_tracked"].item() for norm in norms] == [9] * 3
    assert [session.stats.buffers_averaged for session in sessions] == [1, 2, 2]
    assert [session.stats.buffers_refused for session in sessions] == [0] * 3


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
    assert [session.stats.buffers_refused for session in sessions] == [1, 2]
    assert naming("buffers", "rank 1", "other ones") in caplog.messages


# What is no statistic.


class Ordered(nn.Module):
    """A weight, an order that each worker draws for itself, and an average that moves."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("order", torch.randperm(64, generator=random))
        self.register_buffer("features", torch.randn(3, 4, generator=random))
        self.register_buffer("mask", torch.rand(9, generator=random) < 0.5)
        self.register_buffer("ema", torch.tensor([float(seed)]))


def buffers_in(module: nn.Module) -> list[list[float]]:
    return [buffer.flatten().tolist() for buffer in module.buffers()]


def test_the_first_worker_s_buffers_are_the_run_s_and_who_had_others_is_told(
    master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Ordered(1), Ordered(2)
    caplog.set_level(logging.INFO, "gradwire.buffers")

    sessions = [join(master, first), join(master, second)]

    assert buffers_in(second) == buffers_in(first) == buffers_in(Ordered(1))
    assert naming("order", "features", "mask", "ema", 4) in caplog.messages
    finish(*sessions)
    assert buffers_in(second) == buffers_in(first) == buffers_in(Ordered(1))


def test_what_is_no_statistic_is_that_of_the_lowest_rank_and_what_is_named_is_averaged(
    master: LocalMaster,
) -> None:
    modules = [Ordered(1) for _ in range(3)]
    sessions = [join(master, module, averaged_buffers=("em*",)) for module in modules]
    for seed, module in enumerate(modules, 1):
        for buffer, value in zip(module.buffers(), Ordered(seed).buffers(), strict=True):
            buffer.copy_(value)

    finish(*sessions)

    expected = buffers_in(Ordered(1))
    assert [buffers_in(module) for module in modules] == [[*expected[:-1], [2.0]]] * 3


def test_a_worker_that_leaves_leads_no_more(master: LocalMaster) -> None:
    """Its statistics count; what it had of the rest would be old when the others end."""
    modules = [Ordered(1) for _ in range(2)]
    one, other = (join(master, module, averaged_buffers="ema") for module in modules)
    modules[0].get_buffer("ema").fill_(4.0)
    for buffer, value in zip(modules[1].buffers(), Ordered(2).buffers(), strict=True):
        buffer.copy_(value)
    one.step()

    one.leave()
    other.finish()

    assert buffers_in(modules[1]) == [*buffers_in(Ordered(2))[:-1], [3.0]]


def test_the_buffers_of_a_run_whose_first_worker_is_gone_are_still_the_run_s(
    master: LocalMaster,
) -> None:
    first, second = Ordered(1), Ordered(2)
    one = join(master, first)
    peer = join(master, Ordered(3))
    one.close()
    peer.close()

    join(master, second)

    assert buffers_in(second) == buffers_in(Ordered(1))


def test_what_is_infinite_and_no_statistic_travels(master: LocalMaster) -> None:
    """As a mask of attention is."""
    modules = [nn.Linear(1, 1), nn.Linear(1, 1)]
    for module in modules:
        module.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))

    finish(*[join(master, module) for module in modules])

    assert modules[1].get_buffer("mask").tolist() == [[0.0, -torch.inf], [0.0, 0.0]]
