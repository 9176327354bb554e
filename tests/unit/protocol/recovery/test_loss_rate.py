"""Which part of its packets a path loses: nothing before enough is known, and the old ones fade."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.recovery.loss_rate import MEMORY_PACKETS, TRUSTED_PACKETS, LossRate


def test_at_first_nothing_is_known_to_be_lost() -> None:
    rate = LossRate()
    assert rate.rate == 0.0

    rate.record(lost=TRUSTED_PACKETS - 1, arrived=0)

    assert rate.rate == 0.0


def test_the_rate_is_what_was_lost_of_all() -> None:
    rate = LossRate()

    rate.record(lost=10, arrived=490)
    rate.record(lost=5, arrived=495)

    assert rate.rate == 0.015


@given(packets=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), max_size=50))
def test_the_rate_is_a_part_of_one(packets: list[tuple[int, int]]) -> None:
    rate = LossRate()

    for lost, arrived in packets:
        rate.record(lost, arrived)
        assert 0.0 <= rate.rate <= 1.0


@pytest.mark.parametrize(("before", "after"), [(0, 100), (100, 0)])
def test_the_rate_follows_the_path(before: int, after: int) -> None:
    """Lose a tenth of the packets, and then none, or the other way round."""
    rate = LossRate()
    for _ in range(100):
        rate.record(lost=before, arrived=1000 - before)
    assert rate.rate == pytest.approx(before / 1000)

    for _ in range(3 * MEMORY_PACKETS // 1000):
        rate.record(lost=after, arrived=1000 - after)

    assert rate.rate == pytest.approx(after / 1000, abs=0.02)
