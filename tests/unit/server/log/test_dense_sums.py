"""A dense sum changes what the update changes that it was made of, and takes less memory."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradwire_codecs import Update
from gradwire_codecs.replica.merging import merge
from gradwire_server.log.dense_sums import DenseSum

ELEMENTS = 1_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire_server.log.dense_sums.DENSE_HITS_MIN", 1)


def sum_of(seed: int, density: float, largest: int) -> Update:
    random = np.random.default_rng(seed)
    hit = random.random(ELEMENTS) < density
    hit[0] = True
    index = np.flatnonzero(hit).astype(np.uint32)
    count = random.integers(1, largest + 1, len(index)) * random.choice([-1, 1], len(index))
    count[0] = random.choice([-largest, largest])
    return Update(0, ELEMENTS, 3, index, count.astype(np.int32))


@given(
    seed=st.integers(0, 1_000),
    density=st.floats(0.0, 1.0),
    largest=st.sampled_from([1, 127, 128, 2**15 - 1, 2**15, 2**31 - 1]),
    cut=st.integers(1, ELEMENTS - 1),
)
def test_it_changes_what_the_update_does(seed: int, density: float, largest: int, cut: int) -> None:
    update = sum_of(seed, density, largest)

    dense = DenseSum.of(update, ELEMENTS)

    itemsize = 1 if largest < 128 else 2 if largest < 2**15 else 4
    if dense is None:
        assert itemsize * ELEMENTS >= 8 * update.hits
        return
    assert dense.nbytes == itemsize * ELEMENTS < 8 * update.hits
    parts = dense.within(0, cut), dense.within(cut, ELEMENTS)
    assert all(part.multiple == 3 for part in parts)
    assert np.concatenate([part.index for part in parts]).tolist() == update.index.tolist()
    assert np.concatenate([part.count for part in parts]).tolist() == update.count.tolist()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1_000),
            st.floats(0.0, 1.0),
            st.sampled_from([1, 100, 2**14, 2**30]),
            st.sampled_from([1, 3, 6, 7]),
            st.booleans(),
        ),
        min_size=2,
        max_size=5,
    )
)
def test_it_adds_up_what_merge_does(drawn: list[tuple[int, float, int, int, bool]]) -> None:
    updates = [
        replace(sum_of(seed, density, largest), multiple=multiple)
        for seed, density, largest, multiple, _ in drawn
    ]
    first, *others = [
        (DenseSum.of(update, ELEMENTS) if is_dense else None) or update
        for update, (*_, is_dense) in zip(updates, drawn, strict=True)
    ]
    assume(isinstance(first, DenseSum))
    assert isinstance(first, DenseSum)

    total, expected = first.plus(others), merge(updates, ELEMENTS)

    assert (total is None) == (expected is None)
    if expected is None or total is None:
        return
    assert total.within(0, ELEMENTS).change.tolist() == expected.change.tolist()
    assert total.within(0, ELEMENTS).index.tolist() == expected.index.tolist()
    largest = max(abs(total.counts.astype(np.int64)), default=0)
    assert total.largest == largest
    assert total.counts.itemsize == 1 if largest < 128 else 2 if largest < 2**15 else 4
    assert first.within(0, ELEMENTS).change.tolist() == updates[0].change.tolist()
