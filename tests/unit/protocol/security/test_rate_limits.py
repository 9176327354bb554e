"""Token buckets: never more than the rate and the burst allow, and memory stays bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.security.unproved import SourceBuckets, TokenBucket

TIMES = st.lists(st.floats(0, 2), max_size=80)


@given(rate=st.integers(1, 50), burst=st.integers(1, 20), steps=TIMES)
def test_in_no_interval_more_is_allowed_than_burst_and_rate(
    rate: int, burst: int, steps: list[float]
) -> None:
    bucket = TokenBucket(rate, burst)
    now, taken = 1000.0, list[float]()
    for step in steps:
        now += step
        if bucket.try_spend(now):
            taken.append(now)

    for i, first in enumerate(taken):
        for j, last in enumerate(taken[i:]):
            assert j + 1 <= burst + rate * (last - first) + 1e-6


def test_a_full_bucket_gives_its_burst_at_once_and_then_its_rate() -> None:
    bucket = TokenBucket(8, 3)

    at_once = [bucket.try_spend(1000.0) for _ in range(5)]
    later = [bucket.try_spend(1000.0 + n / 16) for n in range(1, 9)]

    assert at_once == [True] * 3 + [False] * 2
    assert later == [False, True] * 4


def test_several_are_allowed_together_or_not_at_all() -> None:
    bucket = TokenBucket(1, 5)

    assert [bucket.try_spend(1000.0, times) for times in (4, 2, 1)] == [True, False, True]


@pytest.mark.parametrize("used", [0, 1])
def test_the_source_unused_for_longest_is_forgotten(used: int) -> None:
    sources = SourceBuckets(0.001, 1, sources_max=2)
    names = ["first", "second"]
    for name in names:
        assert sources.try_spend(name, 1000.0)
    assert not sources.try_spend(names[used], 1000.0)

    sources.try_spend("third", 1000.0)

    assert len(sources) == 2
    assert not sources.try_spend(names[used], 1000.0), "it is remembered"
    assert sources.try_spend(names[1 - used], 1000.0), "it is forgotten"


@given(names=st.lists(st.integers(0, 1000), max_size=200))
def test_no_more_sources_are_remembered_than_agreed(names: list[int]) -> None:
    sources = SourceBuckets(1, 1, sources_max=7)

    for name in names:
        sources.try_spend(name, 1000.0)
        assert len(sources) <= 7
