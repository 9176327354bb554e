import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.rivals.dl4j import (
    BITMAP,
    THRESHOLD,
    EncodingHandler,
    decode,
    encode,
    encode_bitmap,
    encode_threshold,
)
from gradwire_codecs.arrays import Float32Array

TAU = np.float32(2.0**-10)

# Multiples of a small power of two, so that sums and differences are exact.
RESIDUALS = st.integers(0, 300).flatmap(
    lambda size: arrays(np.int16, size, elements=st.integers(-4096, 4096)).map(
        lambda counts: counts.astype(np.float32) * np.float32(2.0**-20)
    )
)


def test_threshold_encoding_is_what_deeplearning4j_writes() -> None:
    tau = np.float32(1e-3)
    residual = np.array([1, 2, 0, 0, -1, -1] + 58 * [0], np.float32)

    words = encode_threshold(residual, tau)

    assert words is not None
    assert list(words) == [4, 64, 981668463, 0, 1, 2, -5, -6]
    assert np.allclose(residual[:6], [0.999, 1.999, 0, 0, -0.999, -0.999])


def test_bitmap_encoding_is_what_deeplearning4j_writes() -> None:
    residual = np.array([0, -6e-4, 1e-3, -1e-3, 0, 0], np.float32)

    words, sent = encode_bitmap(residual, np.float32(1e-3))

    assert list(words) == [6, 6, 981668463, 1, 655372]
    assert sent == 3
    assert np.allclose(residual, [0, -1e-4, 0, 0, 0, 0], atol=1e-9)


@given(RESIDUALS)
def test_what_is_sent_and_what_is_kept_are_what_came_in(before: Float32Array) -> None:
    residual = before.copy()
    sent = np.zeros_like(before)

    decode(encode(residual, TAU), sent)

    assert np.array_equal(sent + residual, before)


def test_the_handler_leaves_bitmaps_once_few_elements_are_hits() -> None:
    handler = EncodingHandler()
    residual = np.zeros(1600, np.float32)
    residual[::100] = 4 * TAU

    first, second = handler.encode(residual, TAU), handler.encode(residual, TAU)

    assert first is not None
    assert first[3] == BITMAP
    assert second is not None
    assert second[3] == THRESHOLD
    assert np.array_equal(residual[::100], np.full(16, 2 * TAU))


def test_the_handler_loses_a_threshold_of_each_hit_when_it_returns_to_bitmaps() -> None:
    handler = EncodingHandler()
    handler.encode(np.zeros(1600, np.float32), TAU)
    residual = np.full(1600, 4 * TAU)
    before, sent = residual.copy(), np.zeros_like(residual)

    words = handler.encode(residual, TAU)

    assert words is not None
    assert words[3] == BITMAP
    decode(words, sent)
    lost = before - (sent + residual)
    assert np.array_equal(lost[:100], np.full(100, TAU))
    assert not lost[100:].any()
