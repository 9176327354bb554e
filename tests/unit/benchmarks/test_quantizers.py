"""Rivals of dense contributions: each has as many bits as it says, and rounds as well as it can."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.codec_dense import Contributor, error_after
from benchmarks.rivals.quantizers import TorchQuantizer
from gradwire_codecs.arrays import Float32Array

ELEMENTS = 64
RANGES = [(0, 10), (10, ELEMENTS)]
ROUNDS = 50

CHANGES = arrays(np.float32, ELEMENTS, elements=st.floats(-1.0, 1.0, width=16))
BITS = st.sampled_from([8, 4])

# torch warns that it will drop its quantizers one day.
pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")


def largest_error(found: Float32Array, change: Float32Array, bits: int) -> float:
    """Return the largest error, in steps of the range that it is in."""
    steps = [np.abs(change[start:stop]).max() / (2 ** (bits - 1) - 1) for start, stop in RANGES]
    errors = [np.abs(found - change)[start:stop].max() for start, stop in RANGES]
    worst = max(error / max(step, 1e-6) for error, step in zip(errors, steps, strict=True))
    return float(worst)


@given(CHANGES, BITS)
def test_torch_is_at_most_half_a_step_off(change: Float32Array, bits: int) -> None:
    quantizer = TorchQuantizer(RANGES, bits, has_feedback=False)

    encoded = quantizer.encode(change)
    quantizer.add(encoded)

    assert quantizer.size_bytes(encoded) == ELEMENTS * bits // 8 + 4 * len(RANGES)
    assert largest_error(quantizer.sum(), change, bits) <= 0.501


@pytest.mark.parametrize("bits", [8, 4])
def test_the_error_grows_with_the_rounds_unless_there_is_error_feedback(bits: int) -> None:
    def growth(*quantizers: Contributor | TorchQuantizer) -> float:
        one, many = quantizers
        return error_after(ROUNDS, many, 1_000) / error_after(1, one, 1_000)

    ranges = [(0, 1_000)]

    ours = growth(*(Contributor(ranges, bits) for _ in range(2)))
    with_feedback, without = (
        growth(*(TorchQuantizer(ranges, bits, has_feedback=feedback) for _ in range(2)))
        for feedback in (True, False)
    )

    assert max(ours, with_feedback) < 1.5
    assert without > 0.8 * ROUNDS**0.5
