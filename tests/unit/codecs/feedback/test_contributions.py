"""Dense contributions: each element is within the bits, and what they leave out is kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradwire_codecs import (
    CodecError,
    LocalFeedback,
    NonFiniteError,
    OutOfRangeError,
    Replica,
    SharedFeedback,
    Update,
    decode,
)
from gradwire_codecs.arrays import Float32Array, Int32Array
from gradwire_codecs.feedback import contributions
from gradwire_codecs.feedback.contributions import (
    DECAY,
    encode_dense,
    encode_largest,
    take_back,
)
from gradwire_codecs.feedback.feedback import dense_multiple
from gradwire_codecs.feedback.host_feedback import HostFeedback
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import split_update
from gradwire_codecs.replica.sparse_sum import largest_multiple

ELEMENTS = 64
RANGES = [(0, 10), (10, ELEMENTS)]
BYTES_MAX = 2**20
QUANTUM = 2.0**-24

KINDS_THAT_GIVE = pytest.mark.parametrize("kind", [LocalFeedback, SharedFeedback])

CHANGES = arrays(np.float32, ELEMENTS, elements=st.floats(-1.0, 1.0, width=32))


def feedback_with(change: Float32Array) -> SharedFeedback:
    feedback = SharedFeedback(np.zeros(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
    feedback.parameters += change
    return feedback


@given(change=CHANGES)
def test_a_dense_contribution_leaves_the_parameters_that_all_have(change: Float32Array) -> None:
    feedback = feedback_with(change)

    encode_dense(feedback, RANGES, 127, bytes_max=BYTES_MAX)

    assert not feedback.replica.values.any()
    assert not feedback.parameters.any()


@given(change=CHANGES)
def test_what_is_taken_back_leaves_the_parameters_that_all_have(change: Float32Array) -> None:
    feedback = feedback_with(change)

    bodies = feedback.encode(1000, magnitude_max=INT32_MAX)
    kept = feedback.residual()
    take_back(feedback, [*bodies, b""])

    assert not feedback.replica.values.any()
    assert not feedback.parameters.any()
    assert (feedback.residual() == kept).all()


@KINDS_THAT_GIVE
@given(
    change=CHANGES,
    values=arrays(np.int32, ELEMENTS, elements=st.integers(-(2**24), 2**24)),
    magnitude_max=st.sampled_from([1, 7, 127]),
)
def test_each_element_is_rounded_to_the_nearest_count(
    kind: type[HostFeedback], change: Float32Array, values: Int32Array, magnitude_max: int
) -> None:
    """Also over a replica that is not zero, whichever vector has the residual."""
    replica = Replica(values)
    feedback = kind(np.zeros(ELEMENTS, np.float32), replica)
    feedback.drop_residual()
    feedback.add_change(change)
    before, known = feedback.residual(), values.copy()

    bodies = encode_dense(feedback, RANGES, magnitude_max, bytes_max=BYTES_MAX)

    assert (replica.values == known).all()
    updates = [decode(body, ELEMENTS) for body in bodies]
    by_start = {update.start: update for update in updates}
    for start, stop in RANGES:
        residual = before[start:stop]
        multiple = dense_multiple(float(np.abs(residual).max()), QUANTUM, magnitude_max)
        tau = np.float32(multiple * QUANTUM)
        expected = np.rint(residual / tau).astype(np.float64)
        counts = np.zeros(stop - start)
        if start in by_start:
            counts = by_start[start].change_of_range() / by_start[start].multiple
            assert by_start[start].multiple == multiple
        assert (counts == expected).all()
        left = residual.astype(np.float64) - expected * float(tau)
        # Where parameters have the residual, it is rounded as they are.
        error = 2 * np.spacing(np.abs(feedback.parameters[start:stop]))
        assert (np.abs(feedback.residual()[start:stop] - left) <= error).all()


def test_elements_far_beyond_the_largest_threshold_send_what_there_is_room_for() -> None:
    change = np.zeros(ELEMENTS, np.float32)
    change[:3] = 127.9, -127.9, 1.0
    feedback = feedback_with(change)

    [body] = encode_dense(feedback, [(0, ELEMENTS)], 7, bytes_max=BYTES_MAX)

    update = decode(body, ELEMENTS)
    assert (update.multiple, update.count.tolist()) == (MULTIPLE_MAX, [7, -7, 1])
    assert feedback.residual()[:3] == pytest.approx([120.9, -120.9, 0.0])


@KINDS_THAT_GIVE
@pytest.mark.parametrize(
    ("value", "error"),
    [(np.nan, NonFiniteError), (-np.inf, NonFiniteError), (128.0, OutOfRangeError)],
)
def test_an_element_at_fault_is_named_and_nothing_changes(
    kind: type[HostFeedback], value: float, error: type[CodecError]
) -> None:
    feedback = kind(np.zeros(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
    feedback.parameters += np.float32(0.3)
    encode_dense(feedback, RANGES, 7, bytes_max=BYTES_MAX)
    feedback.parameters[40] = value
    before = feedback.parameters.copy()

    with pytest.raises(error, match="element 40 is"):
        encode_dense(feedback, RANGES, 127, bytes_max=BYTES_MAX)

    assert feedback.parameters.tobytes() == before.tobytes()
    assert not feedback.replica.values.any()
    feedback.parameters[40] = 0
    feedback.check()


@KINDS_THAT_GIVE
def test_what_nobody_receives_is_given_back(
    kind: type[HostFeedback], monkeypatch: pytest.MonkeyPatch
) -> None:
    feedback = kind(np.zeros(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
    change = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
    feedback.add_change(change)

    def interrupted(update: Update, bytes_max: int) -> list[bytes]:
        if update.start:
            raise KeyboardInterrupt
        return split_update(update, bytes_max)

    monkeypatch.setattr(contributions, "split_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        encode_dense(feedback, RANGES, 127, bytes_max=BYTES_MAX)

    assert feedback.residual() == pytest.approx(change, abs=1e-7)


@pytest.mark.parametrize("magnitude_max", [0, 128])
def test_counts_that_have_no_byte_are_refused(magnitude_max: int) -> None:
    with pytest.raises(CodecError, match="it has to be 1 to 127"):
        encode_dense(feedback_with(np.ones(ELEMENTS, np.float32)), RANGES, magnitude_max,
                     bytes_max=BYTES_MAX)  # fmt: skip


@given(first=CHANGES, second=CHANGES, density=st.sampled_from([1 / 16, 1 / 4]))
def test_the_largest_elements_are_sent_and_the_rest_decays(
    first: Float32Array, second: Float32Array, density: float
) -> None:
    feedback = feedback_with(first)
    expected = np.zeros(ELEMENTS)
    for change in (first, second):
        feedback.parameters[:] = change
        expected = DECAY * expected + change

        bodies = encode_largest(feedback, RANGES, density, bytes_max=BYTES_MAX)

        assert not feedback.replica.values.any()
        assert not feedback.parameters.any()
        sent = np.zeros(ELEMENTS)
        for body in bodies:
            update = decode(body, ELEMENTS)
            sent[update.index] = update.change * QUANTUM
            size = np.abs(expected[update.start : update.stop])
            taken = np.isin(np.arange(update.start, update.stop), update.index)
            # None that stays is larger than one that is sent, to the rounding of float32.
            assert size[~taken].max(initial=0) <= size[taken].min() * (1 + 1e-5)
            assert (np.abs(update.count) <= 127).all()
        expected -= sent
        assert np.allclose(feedback.residual(), expected, rtol=1e-5, atol=QUANTUM)


@given(seed=st.integers(0, 2**32 - 1), density=st.sampled_from([1 / 64, 1 / 8]))
def test_so_many_are_the_largest(seed: int, density: float) -> None:
    quanta = (np.random.default_rng(seed).standard_normal(1000) ** 3 * 1e4).astype(np.float32)
    multiple = largest_multiple(quanta, density)

    assert 0 < np.count_nonzero(np.abs(quanta) >= multiple) <= round(1000 * density)
    assert np.abs(quanta).max() < 128 * multiple


def test_equal_elements_are_not_all_sent_while_there_are_larger_ones() -> None:
    quanta = np.full(1000, 50, np.float32)
    quanta[:3] = 60

    assert largest_multiple(quanta, 1 / 64) == 51
    assert largest_multiple(quanta[3:], 1 / 64) == 50
    assert largest_multiple(np.zeros(1000, np.float32), 1 / 64) == 1


def test_what_most_do_not_have_is_sent_in_few_levels() -> None:
    quanta = np.zeros(1000, np.float32)
    quanta[:4] = 1270, 100, 10, 1

    assert largest_multiple(quanta, 1 / 64) == 10
