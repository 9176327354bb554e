"""Vetting: the norm of an update, and what it is compared with."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update
from gradwire_codecs.feedback.feedback import MAGNITUDE_MAX
from gradwire_server.updates.vetting import (
    NORMS_KEPT,
    NORMS_MIN,
    Norms,
    is_sample,
    norm_of,
    reference_of,
)

HONEST = st.floats(1.0, 20.0)


def norms(*values: float) -> Norms:
    kept = Norms()
    for value in values:
        kept.note(value)
    return kept


def worker(norm: float) -> Norms:
    """Return what is known of a worker whose updates all have this norm."""
    return norms(*[norm] * NORMS_MIN)


@given(
    counts=st.lists(st.integers(-127, 127), min_size=1, max_size=50),
    multiple=st.integers(1, 2**24),
)
def test_the_norm_is_the_euclidean_one_in_quanta(counts: list[int], multiple: int) -> None:
    index = np.arange(len(counts), dtype=np.uint32)
    update = Update(0, len(counts), multiple, index, np.array(counts, np.int32))

    norm = norm_of(update)

    assert norm == pytest.approx(math.hypot(*counts) * multiple, rel=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_update_that_may_have_been_cut_off_is_no_sample(sign: int) -> None:
    index = np.array([3, 4], np.uint32)
    whole, cut = (
        Update(0, 9, 1, index, np.array([1, sign * largest], np.int32))
        for largest in (MAGNITUDE_MAX - 1, MAGNITUDE_MAX)
    )

    assert is_sample(whole)
    assert not is_sample(cut)


def test_a_worker_with_too_few_updates_is_no_reference() -> None:
    few = norms(*[1.0] * (NORMS_MIN - 1))

    assert few.typical is None
    assert reference_of([few]) is None
    assert reference_of([few, worker(5.0)]) == 5.0


@given(
    honest=st.lists(HONEST, min_size=NORMS_KEPT, max_size=NORMS_KEPT),
    wild=st.lists(st.floats(0.0, 1e9), max_size=NORMS_KEPT // 2),
)
def test_what_is_typical_of_a_worker_is_moved_by_nothing_that_it_sends_seldom(
    honest: list[float], wild: list[float]
) -> None:
    typical = norms(*honest, *wild).typical

    assert typical is not None
    assert min(honest) <= typical <= max(honest)


def test_what_is_typical_follows_a_training_that_converges() -> None:
    falling = norms(*[1000.0] * 100, *[1.0] * NORMS_KEPT)

    assert falling.typical == 1.0


@given(
    honest=st.lists(HONEST, min_size=2, max_size=30),
    broken=st.lists(st.floats(0.0, 1e30), max_size=30),
)
def test_fewer_broken_workers_than_honest_ones_do_not_move_the_reference_away(
    honest: list[float], broken: list[float]
) -> None:
    broken = broken[: len(honest) - 1]

    reference = reference_of([worker(norm) for norm in honest + broken])

    assert reference is not None
    assert min(honest) <= reference <= max(honest)
