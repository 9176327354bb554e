"""Sums of sparse contributions: means over senders, results of bounded density, nothing lost."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update
from gradwire_codecs.replica.sparse_sum import RESULT_FACTOR, SparseSum

ELEMENTS = 200
RANGES = [(0, 80), (80, ELEMENTS)]
DENSITY = 1 / 40


@st.composite
def contributions(draw: st.DrawFn) -> list[Update]:
    """Return what one worker contributes: an update of each range."""
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    updates = []
    for start, stop in RANGES:
        index = np.sort(random.choice(np.arange(start, stop), (stop - start) // 40, replace=False))
        count = random.integers(1, 128, index.size) * random.choice([-1, 1], index.size)
        multiple = int(random.integers(1, 1000))
        updates.append(
            Update(start, stop, multiple, index.astype(np.uint32), count.astype(np.int32))
        )
    return updates


ROUNDS = st.lists(st.lists(contributions(), min_size=1, max_size=12), min_size=1, max_size=4)


def dense(updates: Sequence[Update]) -> npt.NDArray[np.float64]:
    values = np.zeros(ELEMENTS)
    for update in updates:
        values[update.index] += update.change
    return values


@given(rounds=ROUNDS, rate=st.sampled_from([0.5, 1.0, 2.0]))
def test_each_element_moves_by_the_mean_over_who_has_sent_it(
    rounds: list[list[list[Update]]], rate: float
) -> None:
    total = SparseSum(ELEMENTS, RANGES, density=DENSITY, rate=rate)
    expected = np.zeros(ELEMENTS)
    relayed = np.zeros(ELEMENTS)
    for workers in rounds:
        for updates in workers:
            for update in updates:
                total.add(update)
        sent = [dense(updates) for updates in workers]
        senders = np.maximum(np.count_nonzero(sent, axis=0), 1)
        expected += rate * np.sum(sent, axis=0) / senders

        step = total.take_mean(len(workers), None)

        relayed += dense(step)
        assert np.allclose(relayed + total._rest, expected, rtol=1e-5, atol=1)
        for update in step:
            hits = max(round(RESULT_FACTOR * DENSITY * update.length), 1)
            assert update.hits <= 2 * hits
            assert np.abs(update.count).max() <= 127
            others = np.delete(total._rest[update.start : update.stop], update.index - update.start)
            assert np.abs(others).max(initial=0) <= update.multiple

    relayed += dense(total.take_mean(1, None, is_last=True))
    assert np.allclose(relayed, expected, rtol=1e-5, atol=1)
    assert not total._rest.any()


def test_a_worker_alone_is_followed_at_once() -> None:
    total = SparseSum(ELEMENTS, RANGES, density=DENSITY, rate=1.0)
    alone = Update(0, 80, 8, np.array([3, 9], np.uint32), np.array([1, -5], np.int32))
    total.add(alone)

    [step] = total.take_mean(8, None)

    assert step.change_of_range().tolist() == alone.change_of_range().tolist()
