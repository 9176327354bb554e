"""Steps that train nothing send nothing, and nothing that was trained is forgotten over them."""

import pytest
import torch

from support.local_master import LocalMaster
from support.sessions import HALF, change, finish, join, pull

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])

MUCH = 200 * HALF
"""More than the 127 thresholds that one update can send of an element."""


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(4))


def add(target: torch.Tensor, *values: float) -> None:
    """Change a tensor as optimizers do."""
    with torch.no_grad():
        target.add_(torch.tensor(values))


@FEEDBACKS
def test_what_an_update_left_waits_for_the_next_step_that_trains(
    feedback: str, master: LocalMaster
) -> None:
    target, theirs = parameter(), parameter()
    mine, other = join(master, [target], feedback=feedback), join(master, [theirs])

    add(target, MUCH, 0, 0, 0)
    sent = []
    for _ in range(3):
        mine.step()
        sent.append(mine.stats.updates_sent)
    add(target, 0, HALF, 0, 0)
    mine.step()
    pull(other, 2)

    assert sent == [1, 1, 1]
    assert (mine.stats.updates_sent, mine.stats.steps) == (2, 4)
    assert theirs.tolist() == [MUCH, HALF, 0, 0]


@FEEDBACKS
def test_what_waits_is_sent_at_the_end(feedback: str, master: LocalMaster) -> None:
    target, theirs = parameter(), parameter()
    mine, other = join(master, [target], feedback=feedback), join(master, [theirs])

    add(target, MUCH, 0, 0, 0)
    mine.step()
    mine.step()
    finish(mine, other)

    assert theirs.tolist() == target.tolist() == [MUCH, 0, 0, 0]


@FEEDBACKS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pull_in_between_forgets_nothing(
    dtype: torch.dtype, feedback: str, master: LocalMaster
) -> None:
    """Nor do updates of peers, which raise counters of tensors that are copied to and fro."""
    target = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    mine, other = join(master, [target], feedback=feedback), join(master, [parameter()])

    for n in range(1, 4):
        add(target, HALF, 0, 0, 0)
        other.push(change(0, HALF, 0, 0))
        pull(mine, 1)
        mine.push()
        assert mine.stats.updates_sent == n
        other.push(change(0, HALF, 0, 0))
        pull(mine, 1)
        mine.push()
        assert mine.stats.updates_sent == n

    finish(mine, other)
    assert target.tolist() == [3 * HALF, 6 * HALF, 0, 0]


def test_a_residual_that_was_loaded_is_sent_though_nothing_was_trained(master: LocalMaster) -> None:
    theirs = parameter()
    mine, other = join(master, [parameter()]), join(master, [theirs])
    state = mine.state_dict() | {"residual": torch.tensor([1.25, 0, 0, 0])}
    mine.step()

    mine.load_state_dict(state)
    mine.step()
    pull(other, 1)

    assert theirs.tolist() == [1.0, 0, 0, 0]
    assert mine.state_dict()["residual"].tolist() == [0.25, 0, 0, 0]
