"""Changes that are multiplied before they are sent: what was trained, and nothing else."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwire.replica.scaled_change import ScaledChange
from gradwire_codecs import LocalFeedback, Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback
from support.feedbacks import KINDS

ELEMENTS = 500


def start(kind: type[HostFeedback]) -> HostFeedback:
    feedback = kind(np.zeros(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
    feedback.drop_residual()
    return feedback


@KINDS
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 8),
    factor=st.sampled_from([0.25, 1 / 3, 1.0, 2.0]),
    multiple=st.sampled_from([1_000, 30_000, 100_000]),
)
def test_what_is_sent_and_kept_is_what_came_in_times_the_factor(
    kind: type[HostFeedback], seed: int, steps: int, factor: float, multiple: int
) -> None:
    """Whatever peers send meanwhile, before or after the training of a step."""
    random = np.random.default_rng(seed)
    feedback, peer = start(kind), start(LocalFeedback)
    scaled = ScaledChange(feedback, lambda: factor)
    trained, received = np.zeros(ELEMENTS), np.zeros(ELEMENTS)

    def receive() -> None:
        before = peer.replica.values.copy()
        peer.parameters += random.normal(0, 1e-2, ELEMENTS).astype(np.float32)
        for body in peer.encode(50_000):
            feedback.apply(body)
        received[:] += (peer.replica.values - before) * float(peer.replica.quantum)

    for _ in range(steps):
        receive()
        change = random.normal(0, 1e-2, ELEMENTS).astype(np.float32)
        feedback.parameters += change
        trained += change
        receive()
        scaled.apply()
        feedback.encode(multiple)
        scaled.note()

    shared = feedback.replica.values * float(feedback.replica.quantum)
    expected = factor * trained + received
    # Every step rounds a few float32 of magnitude below 1, and what peers send as well.
    rounding = 40 * steps * 2.0**-24
    assert np.abs(shared + feedback.residual() - expected).max() <= rounding


@KINDS
@given(
    seed=st.integers(0, 2**32),
    factor=st.floats(-1.0, 3.0, width=32),
    elements=st.sampled_from([1, 7, 1024, 5000]),
)
def test_it_is_added_bit_by_bit_as_several_passes_would_add_it(
    kind: type[HostFeedback], seed: int, factor: float, elements: int
) -> None:
    random = np.random.default_rng(seed)

    def noise() -> Float32Array:
        return random.normal(0, 1, elements).astype(np.float32)

    feedback = kind(noise(), Replica.from_parameters(noise(), -24))
    feedback.absorb()
    feedback.parameters += noise()
    before, parameters = noise(), feedback.parameters.copy()
    residual, into = feedback.residual(), np.empty(elements, np.float32)

    feedback.read_residual(into)
    feedback.add_growth(before, np.float32(factor))

    assert into.tobytes() == residual.tobytes()
    expected = parameters + (residual - before) * np.float32(factor)
    assert feedback.parameters.tobytes() == expected.tobytes()
