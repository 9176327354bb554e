"""The whole residual is sent at the end: every element once, and never too much at a time."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire.replica.push import ELEMENT_BYTES_MAX, FLUSH_BYTES_MAX, ResidualFlush


@given(
    elements=st.integers(1, 20_000_000),
    workers=st.integers(0, 4_000),
    share=st.floats(0, 1),
    lag=st.integers(0, 3),
)
def test_every_element_is_in_one_range_and_what_is_under_way_is_bounded(
    elements: int, workers: int, share: float, lag: int
) -> None:
    """Of what a range may take, updates take a share; the slowest worker is behind by some."""
    flush = ResidualFlush(elements, workers)
    sizes: list[int] = []
    at = stable = 0
    while flush.left:
        stable = max(stable, len(sizes) - lag)
        if not flush.may_go_on(stable):
            stable = len(sizes)
            assert flush.may_go_on(stable), "nothing is under way, and it does not go on"
        start, stop = flush.range
        assert start == at
        assert start < stop <= elements
        size = round(share * ELEMENT_BYTES_MAX * (stop - start))
        sizes.append(size)
        assert sum(sizes[stable:]) <= max(FLUSH_BYTES_MAX // max(workers, 1), ELEMENT_BYTES_MAX)
        flush.note_sent(stop, len(sizes), size)
        at = stop
    assert at == elements
    assert not flush.may_go_on(len(sizes))


def test_without_anything_to_send_it_does_not_go_on() -> None:
    assert not ResidualFlush(0, 1).may_go_on(0)
