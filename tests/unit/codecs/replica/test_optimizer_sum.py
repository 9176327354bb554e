"""The master's optimizers: torch's, step by step, and another master that goes on with them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Replica, Update
from gradwire_codecs.replica.optimizer_rules import Rule
from gradwire_codecs.replica.optimizer_sum import STATE_ROUNDS, OptimizerSum

N = 60
RANGES = [(0, 25), (25, N)]
EXPONENT = -24
UNIT = 2.0**-26
STEPS = 40
RATE = 0.01

RULES: dict[str, tuple[Rule, Callable[[Any], torch.optim.Optimizer]]] = {
    "sgd": (Rule("sgd"), lambda p: torch.optim.SGD(p, RATE)),
    "sgd, decay": (
        Rule("sgd", weight_decay=0.1),
        lambda p: torch.optim.SGD(p, RATE, weight_decay=0.1),
    ),
    "momentum": (Rule("sgd", momentum=0.9), lambda p: torch.optim.SGD(p, RATE, momentum=0.9)),
    "nesterov": (
        Rule("sgd", momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adagrad": (
        Rule("adagrad", eps=1e-10, weight_decay=0.01),
        lambda p: torch.optim.Adagrad(p, RATE, weight_decay=0.01),
    ),
    "rmsprop": (Rule("rmsprop", beta2=0.99), lambda p: torch.optim.RMSprop(p, RATE)),
    "rmsprop, momentum": (
        Rule("rmsprop", beta2=0.9, momentum=0.5, weight_decay=0.01),
        lambda p: torch.optim.RMSprop(p, RATE, alpha=0.9, momentum=0.5, weight_decay=0.01),
    ),
    "adam": (
        Rule("adam", beta2=0.99, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, RATE, betas=(0.9, 0.99), weight_decay=0.01),
    ),
    "adamw": (
        Rule("adamw", weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.1),
    ),
}


def new(rule: Rule, values: np.ndarray | None = None) -> tuple[OptimizerSum, Replica]:
    """Return an optimizer's sum, and the replica that it steps from."""
    total = OptimizerSum(N, RANGES, rule, lambda step: RATE, -26)
    replica = Replica.zeros(total.length, EXPONENT)
    if values is not None:
        replica.values[:N] = values
    total.begin_with(replica)
    return total, replica


def gradients(seed: int, steps: int = STEPS) -> np.ndarray:
    """Return gradients that differ in size by six orders of magnitude."""
    random = np.random.default_rng(seed)
    sizes = 10.0 ** random.uniform(-5, 0, N)
    return (random.normal(size=(steps, N)) * sizes).astype(np.float32)


def update_of(gradient: np.ndarray) -> Update:
    counts = np.rint(gradient / UNIT).astype(np.int32)
    index = np.flatnonzero(counts).astype(np.uint32)
    return Update(0, N, 1, index, counts[index])


def apply(replica: Replica, result: Sequence[Update]) -> None:
    for update in result:
        replica.apply(update)


def parameters_of(replica: Replica) -> np.ndarray:
    return replica.values[:N] * 2.0**EXPONENT


@pytest.mark.parametrize("name", RULES)
def test_steps_are_those_of_torch(name: str) -> None:
    rule, theirs = RULES[name]
    first = np.random.default_rng(0).integers(-(2**24), 2**24, N)
    total, replica = new(rule, first)
    parameter = torch.nn.Parameter(torch.tensor(first * 2.0**EXPONENT, dtype=torch.float64))
    optimizer = theirs([parameter])
    for gradient in gradients(1):
        total.add(update_of(gradient))
        apply(replica, total.take_mean(1, None))
        parameter.grad = torch.tensor(np.rint(gradient / UNIT) * UNIT).double()
        optimizer.step()

    error = np.abs(parameters_of(replica) - parameter.detach().numpy())

    # A quantum for what is rounded away, and float32 for steps that together are about this far.
    assert error.max() < 2 * 2.0**EXPONENT + 1e-5 * STEPS * RATE
    assert replica.values[-1] == STEPS


@pytest.mark.parametrize("magnitude_max", [127, 7])
@pytest.mark.parametrize("name", RULES)
def test_what_is_rounded_away_is_sent_later(name: str, magnitude_max: int) -> None:
    rule, _ = RULES[name]
    (rounded, mine), (exact, other) = new(rule), new(rule)
    coarsest = 1
    for gradient in gradients(2):
        for total, replica, most in ((rounded, mine, magnitude_max), (exact, other, None)):
            total.add(update_of(gradient))
            result = total.take_mean(1, most)
            apply(replica, result)
            if most:
                assert max(np.abs(update.count).max() for update in result) <= most
                coarsest = max([coarsest, *(u.multiple for u in result if u.stop <= N)])

        error = np.abs(mine.values[:N].astype(np.int64) - other.values[:N])
        assert error.max() <= coarsest // 2 + 2

    apply(mine, rounded.take_mean(1, magnitude_max, is_last=True))
    assert np.abs(mine.values[:N].astype(np.int64) - other.values[:N]).max() <= 2


@pytest.mark.parametrize("magnitude_max", [None, 127])
@pytest.mark.parametrize("name", RULES)
def test_another_master_goes_on_with_the_replica(name: str, magnitude_max: int | None) -> None:
    """The state in the replica is a little old, and rounded: the next steps differ little."""
    rule, _ = RULES[name]
    one, replica = new(rule)
    made = gradients(4)
    for gradient in made:
        one.add(update_of(gradient))
        apply(replica, one.take_mean(1, magnitude_max))
    mine, copy = replica, Replica(replica.values.copy(), EXPONENT)
    other = OptimizerSum(N, RANGES, rule, lambda step: RATE, -26)
    other.begin_with(copy)
    for gradient in gradients(4, 2 * STEPS)[STEPS:]:
        for total, at in ((one, mine), (other, copy)):
            total.add(update_of(gradient))
            apply(at, total.take_mean(1, magnitude_max))

    way = np.abs(parameters_of(mine)).mean()
    error = np.abs(parameters_of(mine) - parameters_of(copy))
    assert mine.values[-1] == copy.values[-1] == 2 * STEPS
    assert error.mean() < 0.3 * way  # of noise, of which Adam's means are all that lasts
    assert error.max() < 20 * RATE


def test_all_of_the_state_is_sent_within_some_results() -> None:
    rule = Rule("adam")
    total, replica = new(rule)
    total.add(update_of(np.ones(N, np.float32)))
    apply(replica, total.take_mean(1, None))
    for _ in range(STATE_ROUNDS):
        apply(replica, total.take_mean(1, None))

    assert (replica.values[N:] != 0).all()


@given(
    st.sampled_from(sorted(RULES)),
    st.lists(st.floats(-30, 30, width=32), min_size=N, max_size=N),
    st.integers(0, 2**32 - 1),
)
def test_state_is_what_it_was_after_being_integers(
    name: str, values: list[float], seed: int
) -> None:
    rule, _ = RULES[name]
    random = np.random.default_rng(seed)
    state = [np.zeros(N, np.float32) for _ in rule.slots]
    for _ in range(3):
        gradient = (np.array(values) * random.uniform(0.5, 1.5, N)).astype(np.float32)
        rule.step(1, RATE, gradient, np.zeros(N, np.float32), state)

    again = rule.to_state([rule.to_integers(slot, state) for slot in range(len(state))])

    for before, after in zip(state, again, strict=True):
        big = np.abs(before) > 1e-12
        assert np.abs(after - before)[big & (np.abs(before) < 15)].max(initial=0) <= 1e-4 * max(
            np.abs(before).max(initial=0), 1e-3
        )


def test_old_gradients_are_divided() -> None:
    total, replica = new(Rule("sgd"))
    total.add(update_of(np.full(N, 0.5, np.float32)), 4)
    total.add(update_of(np.full(N, -0.25, np.float32)))

    apply(replica, total.take_mean(2, None))

    assert parameters_of(replica) == pytest.approx(-RATE * (0.5 / 4 - 0.25) / 2, abs=2e-7)


def test_a_replica_with_any_state_is_taken() -> None:
    """What a worker gives to a restarted master may be anything."""
    for rule, _ in RULES.values():
        total, replica = new(rule)
        replica.values[:] = np.random.default_rng(5).integers(-(2**31), 2**31 - 1, len(replica))
        total.begin_with(replica)
        total.add(update_of(np.ones(N, np.float32)))

        total.take_mean(1, 127)

        assert total.steps >= 1
