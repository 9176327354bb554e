"""Dense contributions: each element is within the bits, and what they leave out is kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradwire_codecs import NonFiniteError, Replica, SharedFeedback, decode
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.contributions import encode_dense, take_back

ELEMENTS = 64
RANGES = [(0, 10), (10, ELEMENTS)]
BYTES_MAX = 2**20

CHANGES = arrays(np.float32, ELEMENTS, elements=st.floats(-1.0, 1.0, width=32))


def feedback_with(change: Float32Array) -> SharedFeedback:
    feedback = SharedFeedback(np.zeros(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
    feedback.parameters += change
    return feedback


@given(change=CHANGES, magnitude_max=st.sampled_from([7, 127]))
def test_what_is_sent_and_what_is_kept_is_what_was_changed(
    change: Float32Array, magnitude_max: int
) -> None:
    feedback = feedback_with(change)

    bodies = encode_dense(feedback, RANGES, magnitude_max, bytes_max=BYTES_MAX)

    sent = np.zeros(ELEMENTS)
    for body in bodies:
        update = decode(body, ELEMENTS)
        assert np.abs(update.count).max() <= magnitude_max
        sent[update.index] += update.change * float(feedback.replica.quantum)
    assert np.allclose(sent + feedback.residual(), change, atol=1e-7)
    for start, stop in RANGES:
        left, peak = np.abs(change - sent)[start:stop], np.abs(change[start:stop]).max()
        assert left.max() <= peak / magnitude_max + 2 * float(feedback.replica.quantum)


@given(change=CHANGES)
def test_what_is_taken_back_leaves_the_parameters_that_all_have(change: Float32Array) -> None:
    feedback = feedback_with(change)

    bodies = encode_dense(feedback, RANGES, 127, bytes_max=BYTES_MAX)
    kept = feedback.residual()
    take_back(feedback, [*bodies, b""])

    assert not feedback.replica.values.any()
    assert not feedback.parameters.any()
    assert (feedback.residual() == kept).all()


def test_a_nan_changes_nothing() -> None:
    change = np.full(ELEMENTS, 0.5, np.float32)
    change[40] = np.nan
    feedback = feedback_with(change)

    with pytest.raises(NonFiniteError):
        encode_dense(feedback, RANGES, 127, bytes_max=BYTES_MAX)

    assert not feedback.replica.values.any()
