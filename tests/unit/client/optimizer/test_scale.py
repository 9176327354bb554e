"""What changes are multiplied by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.optimizer.scale import scale_factor, varies

world_sizes = st.integers(1, 10_000)
staleness = st.floats(0.0, 1e6)


@given(world_size=world_sizes, staleness=staleness)
def test_each_rule(world_size: int, staleness: float) -> None:
    assert scale_factor("sum", world_size, staleness) == 1.0
    assert scale_factor("mean", world_size, staleness) * world_size == pytest.approx(1.0)
    assert scale_factor("sqrt", world_size, staleness) ** 2 * world_size == pytest.approx(1.0)
    assert scale_factor("staleness", world_size, staleness) == 1.0 / max(1.0, staleness)
    assert scale_factor(0.25, world_size, staleness) == 0.25
    assert scale_factor(3, world_size, staleness) == 3.0


@given(world_size=world_sizes, staleness=staleness, agreement=st.floats(0.0, 1.0))
def test_what_agrees_counts_between_the_root_and_the_mean(
    world_size: int, staleness: float, agreement: float
) -> None:
    factor = scale_factor("agreement", world_size, staleness, agreement)

    assert scale_factor("mean", world_size, staleness) <= factor * (1 + 1e-12)
    assert factor <= scale_factor("sqrt", world_size, staleness)
    assert factor == pytest.approx((world_size * (1 + (world_size - 1) * agreement)) ** -0.5)


@given(world_size=st.integers(0, 1), staleness=staleness)
def test_a_worker_alone_counts_in_full(world_size: int, staleness: float) -> None:
    """Also before anybody is in the roster."""
    for rule in ("sum", "mean", "sqrt", "agreement"):
        assert scale_factor(rule, world_size, staleness) == 1.0


def test_only_a_factor_of_one_never_varies() -> None:
    assert [varies("sum"), varies(1), varies(1.0)] == [False] * 3
    assert [varies("mean"), varies(0.5)] == [True] * 2
