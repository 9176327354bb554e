"""Steps of the outer optimizer: those of torch's SGD with Nesterov's momentum."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from gradwire_codecs import Update
from gradwire_codecs.replica.outer_step import OuterSum, look_ahead

ELEMENTS = 50
RANGES = [(0, 20), (20, ELEMENTS)]
WORKERS = 3
ROUNDS = 12
QUANTA = 10_000


def update_of(change: np.ndarray) -> Update:
    index = np.flatnonzero(change).astype(np.uint32)
    return Update(0, ELEMENTS, 1, index, change[index].astype(np.int32))


def sum_of(updates: Sequence[Update]) -> np.ndarray:
    total = np.zeros(ELEMENTS, np.int64)
    for update in updates:
        total[update.index] += update.change
    return total


@pytest.mark.parametrize("magnitude_max", [None, 127, 7])
@pytest.mark.parametrize(("rate", "momentum"), [(0.7, 0.9), (1.0, 0.0), (0.3, 0.5)])
def test_the_replica_and_its_look_ahead_are_what_torch_computes(
    rate: float, momentum: float, magnitude_max: int | None
) -> None:
    random = np.random.default_rng(1)
    outer = OuterSum(ELEMENTS, RANGES, rate=rate, momentum=momentum)
    expected = torch.zeros(ELEMENTS, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([expected], lr=rate, momentum=momentum, nesterov=momentum > 0)
    replica, coarsest = np.zeros(ELEMENTS, np.int64), 1
    for done in range(1, ROUNDS + 1):
        changes = random.integers(-QUANTA, QUANTA, (WORKERS, ELEMENTS))
        for change in changes:
            outer.add(update_of(change))
        expected.grad = torch.tensor(-changes.mean(0))
        sgd.step()
        is_last = done == ROUNDS

        step = outer.take_mean(WORKERS, magnitude_max)
        replica += sum_of(step)
        coarsest = max([coarsest, *(update.multiple for update in step)])
        ahead = look_ahead(step, ELEMENTS, momentum)
        parameters = replica + ahead
        if is_last:
            replica += sum_of(outer.take_mean(WORKERS, magnitude_max, is_last=True))
            parameters = replica

        # What one round leaves is made up for by the next ones; momentum repeats it.
        error = np.abs(parameters - expected.detach().numpy()).max()
        assert error <= coarsest * (1 + momentum) / (1 - momentum) + done


def test_another_master_goes_on_with_the_last_step() -> None:
    random = np.random.default_rng(2)
    one = OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9)
    one.add(update_of(random.integers(-QUANTA, QUANTA, ELEMENTS)))
    step = one.take_mean(1, None)
    other = OuterSum(ELEMENTS, RANGES, rate=0.7, momentum=0.9)
    other.remember(step)
    change = update_of(random.integers(-QUANTA, QUANTA, ELEMENTS))
    for each in (one, other):
        each.add(change)

    difference = sum_of(one.take_mean(1, None)) - sum_of(other.take_mean(1, None))

    assert np.abs(difference).max() <= 1  # what rounding has left is not known to the other one
