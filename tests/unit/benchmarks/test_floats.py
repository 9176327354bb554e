import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.rivals.floats import (
    BUCKET,
    LEVELS,
    decode_qsgd,
    decode_top_k,
    encode_qsgd,
    encode_top_k,
)
from gradwire_codecs.arrays import Float32Array

GRADIENTS = st.integers(1, 3 * BUCKET).flatmap(
    lambda size: arrays(np.float32, size, elements=st.floats(-1e3, 1e3, width=32))
)


@given(GRADIENTS, st.floats(0, 1))
def test_top_k_sends_the_largest_elements_exactly(gradient: Float32Array, share: float) -> None:
    k = max(round(share * gradient.size), 1)

    encoded = encode_top_k(gradient, k)
    decoded = decode_top_k(encoded, gradient.size)

    sent = np.frombuffer(encoded, np.int32)[::2]
    kept = np.delete(gradient, sent)
    assert len(encoded) == 8 * k
    assert np.array_equal(decoded[sent], gradient[sent])
    assert not kept.size or np.abs(kept).max() <= np.abs(gradient[sent]).min()


@given(GRADIENTS, st.integers(0, 2**32))
def test_qsgd_is_at_most_a_level_off(gradient: Float32Array, seed: int) -> None:
    encoded = encode_qsgd(gradient, np.random.default_rng(seed))

    decoded = decode_qsgd(encoded, gradient.size)

    buckets = -(-gradient.size // BUCKET)
    assert len(encoded) == gradient.size + 4 * buckets
    for bucket in range(buckets):
        of_it = slice(bucket * BUCKET, (bucket + 1) * BUCKET)
        level = np.abs(gradient[of_it]).max() / LEVELS
        error = np.abs(decoded[of_it] - gradient[of_it]).max()
        assert error <= 1.001 * level + np.finfo(np.float32).tiny  # below that, levels are coarse
