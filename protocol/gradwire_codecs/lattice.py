"""The compiled loops in which a change moves between parameters, residual and replica.

Element i of the replica stands for ``values[i] * quantum``, rounded to float32, here as everywhere.
"""

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int32Array, UInt32Array
from gradwire_codecs.compiled import compiled


@compiled
def absorb(
    parameters: Float32Array, waiting: Float32Array, values: Int32Array, quantum: np.float32
) -> None:
    """Move what the optimizer changed from the parameters to the residual."""
    for i in range(parameters.size):
        shared = np.float32(values[i]) * quantum
        waiting[i] = (parameters[i] - shared) + waiting[i]
        parameters[i] = shared


@compiled
def release(
    parameters: Float32Array,
    waiting: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    index: UInt32Array,
    change: Int32Array,
) -> None:
    """Take the hits out of the residual, and put them into replica and parameters."""
    for j in range(index.size):
        i = index[j]
        waiting[i] = np.float32(
            np.float64(waiting[i]) - np.float64(change[j]) * np.float64(quantum)
        )
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))
        parameters[i] = np.float32(values[i]) * quantum


@compiled
def add(
    parameters: Float32Array,
    values: Int32Array,
    quantum: np.float32,
    index: UInt32Array,
    change: Int32Array,
) -> None:
    """Add a peer's change to replica and parameters."""
    for j in range(index.size):
        i = index[j]
        old = np.float32(values[i]) * quantum
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))
        # What the parameter was ahead of the replica it stays ahead. Adding the change to it would
        # round, and what rounding takes away would look like a change of our own: it would gather
        # in the residual of every worker and be sent back against the peer.
        parameters[i] = np.float32(values[i]) * quantum + (parameters[i] - old)


@compiled
def add_to_replica(values: Int32Array, index: UInt32Array, change: Int32Array) -> None:
    """Add a change to a replica."""
    for j in range(index.size):
        i = index[j]
        values[i] = np.int32(np.int64(values[i]) + np.int64(change[j]))
