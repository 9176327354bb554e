"""A train is its datagrams, joined."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import Train


@given(
    segment=st.integers(1, 50),
    full=st.integers(0, 5),
    last=st.integers(1, 50),
    cuts=st.lists(st.integers(0, 300)),
)
def test_a_train_is_cut_into_its_datagrams_however_they_lie_in_buffers(
    segment: int, full: int, last: int, cuts: list[int]
) -> None:
    datagrams = [bytes([i]) * segment for i in range(full)] + [b"\xff" * min(last, segment)]
    joined = memoryview(b"".join(datagrams))
    places = [0, *sorted(min(cut, len(joined)) for cut in cuts), len(joined)]
    buffers = [joined[start:stop] for start, stop in pairwise(places)]

    train = Train(buffers, segment, len(joined), "peer")

    assert train.datagrams() == datagrams
    assert train.count == len(datagrams)
