"""Deeplearning4j's gradient sharing in numpy: its two encodings, and how it chooses between them.

After ``threshold.cpp``, ``type_conversions.cpp`` and ``specials_single.hpp`` of libnd4j, and
``EncodingHandler`` of deeplearning4j-nn (1.0.0-M2.1). Both encodings are int32 words, the first
four a header; encoding takes what is sent out of the residual, in place.

Threshold encoding::

    word    meaning
    0       k, how many elements are sent
    1       N, the length of the vector
    2       the threshold, bits of a float32
    3       0
    4...    k words: i + 1 where element i is sent as plus one threshold, -(i + 1) as minus one

Bitmap encoding, of every element::

    word    meaning
    0, 1    N
    2       the threshold, bits of a float32
    3       1
    4...    N // 16 + 1 words; element i has bits i % 16 and i % 16 + 16 of word 4 + i // 16:
            10 plus one threshold, 11 minus one, 01 minus half of one
"""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwire_codecs.arrays import Float32Array, Int32Array

HEADER_WORDS: Final = 4
THRESHOLD: Final = 0
BITMAP: Final = 1

SHARE_MAX: Final = 16
"""Threshold encoding sends at most one in so many elements."""

HITS_MIN: Final = 2
"""Fewer hits are not sent."""

Mask: TypeAlias = npt.NDArray[np.bool_]


def bitmap_words(elements: int) -> int:
    """Return the size of every bitmap encoding of so many elements, in words."""
    return elements // 16 + HEADER_WORDS + 1


def encode_threshold(residual: Float32Array, threshold: np.float32) -> Int32Array | None:
    """Send one threshold of each element that has reached it, up to `SHARE_MAX`.

    Of more, the first ones are taken. None where nothing is sent.
    """
    reached = np.flatnonzero(np.abs(residual) >= threshold)
    hits = reached[: residual.size // SHARE_MAX]
    if hits.size < HITS_MIN:
        return None
    sign = np.sign(residual[hits])
    residual[hits] -= sign * threshold
    words = np.empty(HEADER_WORDS + hits.size, np.int32)
    words[:2] = hits.size, residual.size
    words[2:3].view(np.float32)[0] = threshold
    words[3] = THRESHOLD
    words[HEADER_WORDS:] = (hits + 1) * sign.astype(np.int64)
    return words


def encode_bitmap(residual: Float32Array, threshold: np.float32) -> tuple[Int32Array, int]:
    """Send two bits of every element; return also how many of them change anything."""
    half = np.float32(0.5) * threshold
    plus, minus = residual >= threshold, residual <= -threshold
    minus_half = (residual <= -half) & ~minus
    residual[plus] -= threshold
    residual[minus] += threshold
    residual[minus_half] += half
    low, high = _halfwords(plus | minus), _halfwords(minus | minus_half)
    words = np.empty(bitmap_words(residual.size), np.int32)
    words[:2] = residual.size
    words[2:3].view(np.float32)[0] = threshold
    words[3] = BITMAP
    words[HEADER_WORDS:] = (low | high << 16).view(np.int32)
    return words, int(np.count_nonzero(plus | minus | minus_half))


def encode(residual: Float32Array, threshold: np.float32) -> Int32Array:
    """Send what has reached the threshold by the smaller encoding: what `EncodingHandler` comes to.

    Nothing is a header without words, which Deeplearning4j does not send.
    """
    if np.count_nonzero(np.abs(residual) >= threshold) >= residual.size // SHARE_MAX - HEADER_WORDS:
        return encode_bitmap(residual, threshold)[0]
    words = encode_threshold(residual, threshold)
    return np.zeros(HEADER_WORDS, np.int32) if words is None else words


class EncodingHandler:
    """Chooses the encoding of each update of a worker, as Deeplearning4j does.

    It begins with bitmaps and leaves them when fewer than one in 32 elements was sent. It returns
    to them when threshold encoding would take as many words: then that has taken its hits out of
    the residual and is thrown away, and a bitmap of what remains is sent instead. **These hits are
    lost.**
    """

    def __init__(self) -> None:
        self._takes_bitmap = True

    def encode(self, residual: Float32Array, threshold: np.float32) -> Int32Array | None:
        """Take an update out of the residual; None where nothing is sent."""
        if not self._takes_bitmap:
            words = encode_threshold(residual, threshold)
            if words is None or words.size < residual.size // SHARE_MAX:
                return words
            self._takes_bitmap = True
        words, sent = encode_bitmap(residual, threshold)
        self._takes_bitmap = sent >= words.size / 2
        return words


def _halfwords(bits: Mask) -> npt.NDArray[np.uint32]:
    """Return 16 bits a word, with room for one word more than the bits fill."""
    padded = np.zeros(16 * (bits.size // 16 + 1), np.bool_)
    padded[: bits.size] = bits
    return np.packbits(padded, bitorder="little").view("<u2").astype(np.uint32)
