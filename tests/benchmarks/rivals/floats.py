"""Gradient compression that sends numbers, as others do it: top-k, and 8-bit quantization."""

from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_codecs.arrays import Float32Array

TOP_K_HIT: Final = np.dtype([("index", "<i4"), ("value", "<f4")])
"""What an element takes: 8 bytes. (torch's own sparse tensors take 12: their indices are int64.)"""

BUCKET: Final = 512
"""Elements that have one scale; of Alistarh et al.'s experiments."""

LEVELS: Final = 127


def encode_top_k(gradient: Float32Array, k: int) -> bytes:
    """Return the `k` elements of largest magnitude with their values, by position."""
    index = np.argpartition(np.abs(gradient), gradient.size - k)[gradient.size - k :]
    index.sort()
    hits = np.empty(k, TOP_K_HIT)
    hits["index"], hits["value"] = index, gradient[index]
    return hits.tobytes()


def decode_top_k(encoded: bytes, elements: int) -> Float32Array:
    """Return the vector, which is 0 where nothing was sent."""
    gradient = np.zeros(elements, np.float32)
    hits = np.frombuffer(encoded, TOP_K_HIT)
    gradient[hits["index"]] = hits["value"]
    return gradient


def encode_qsgd(gradient: Float32Array, random: np.random.Generator) -> bytes:
    """Quantize to a byte per element and a scale per bucket, at random so that the mean is kept.

    QSGD [1]_ with 127 levels and the largest magnitude of a bucket as its scale, the variant of the
    paper's experiments; without its entropy coding, which saves little at 8 bits.

    References
    ----------
    .. [1] D. Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and
       encoding", NeurIPS 2017.
    """
    padded = np.zeros(-(-gradient.size // BUCKET) * BUCKET, np.float32)
    padded[: gradient.size] = gradient
    buckets = padded.reshape(-1, BUCKET)
    scale: Float32Array = np.abs(buckets).max(axis=1)
    per_level = np.maximum(scale, np.finfo(np.float32).tiny)[:, None]
    level = buckets / per_level * np.float32(LEVELS)
    level = np.floor(level + random.random(level.shape, np.float32))
    levels = np.clip(level, -LEVELS, LEVELS).astype(np.int8).reshape(-1)[: gradient.size]
    return scale.astype("<f4").tobytes() + levels.tobytes()


def decode_qsgd(encoded: bytes, elements: int) -> Float32Array:
    """Return the quantized vector."""
    scales = -(-elements // BUCKET)
    scale = np.frombuffer(encoded, "<f4", scales)
    level: npt.NDArray[np.int8] = np.frombuffer(encoded, np.int8, elements, 4 * scales)
    bucket_scale = np.repeat(scale, BUCKET)[:elements].astype(np.float32)
    gradient: Float32Array = level * (bucket_scale / np.float32(LEVELS))
    return gradient
