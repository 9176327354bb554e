import numpy as np

from benchmarks.rivals.dl4j import (
    BITMAP,
    THRESHOLD,
    EncodingHandler,
    encode_bitmap,
    encode_threshold,
)

TAU = np.float32(2.0**-10)


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


def test_a_single_hit_waits() -> None:
    residual = np.array([1.0] + 99 * [0.0], np.float32)

    assert encode_threshold(residual, TAU) is None
    assert residual[0] == 1.0


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
