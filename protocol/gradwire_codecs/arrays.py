"""Names for the array types that travel between the modules of this package.

All of them are flat and contiguous; what checks that is at the public entrances
(`feedback`, `replica`), so that kernels can rely on it.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float32Array: TypeAlias = npt.NDArray[np.float32]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]

Buffer: TypeAlias = bytes | bytearray | memoryview


def describe(array: object) -> str:
    """Say what `array` is, for an error message: its dtype and shape, or else its type."""
    if isinstance(array, np.ndarray):
        known: npt.NDArray[Any] = array
        return f"an array of dtype {known.dtype} and shape {known.shape}"
    return f"an object of type {type(array).__name__}"
