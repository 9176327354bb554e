"""The array types of this package. All arrays are flat and contiguous.

`feedback` and `replica` check the arrays of their callers, so that kernels can rely on it.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float32Array: TypeAlias = npt.NDArray[np.float32]
Int8Array: TypeAlias = npt.NDArray[np.int8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]

Buffer: TypeAlias = bytes | bytearray | memoryview


def as_bytes(body: Buffer) -> UInt8Array:
    """View a buffer as read-only bytes, so that numba compiles kernels for one type alone."""
    return np.frombuffer(memoryview(body).toreadonly(), np.uint8)


def describe(array: object) -> str:
    """Describe an object for an error message: an array's dtype and shape, or the type."""
    if isinstance(array, np.ndarray):
        known: npt.NDArray[Any] = array
        return f"an array of dtype {known.dtype} and shape {known.shape}"
    return f"an object of type {type(array).__name__}"
