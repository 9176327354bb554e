"""Residual feedback over arrays: `LocalFeedback`, `SharedFeedback`, and `encode` for one call."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Buffer, Float32Array, Int32Array, UInt32Array, describe
from gradwire_codecs.errors import CodecError
from gradwire_codecs.feedback.feedback import (
    EVERYWHERE,
    MAGNITUDE_MAX,
    Feedback,
    dense_multiple,
    multiple_of,
)
from gradwire_codecs.feedback.threshold_pass import ThresholdPass
from gradwire_codecs.format.header import INT32_MAX
from gradwire_codecs.format.reading import add_counts, read_encoded
from gradwire_codecs.format.update import DenseUpdate, Update, split_update
from gradwire_codecs.kernels import lattice
from gradwire_codecs.kernels.threshold import thresholds_of
from gradwire_codecs.replica.replica import Replica, check_finite

SUM_ELEMENTS: Final = 2**20
"""Elements of a sum that are added at a time, to bound the memory."""


class HostFeedback(Feedback):
    """The base of all kinds whose vectors are arrays.

    Parameters
    ----------
    parameters : ndarray of shape (N,), dtype float32
        The model's parameters; changed in place.
    replica : Replica
        Of the same length; changed in place.
    """

    def __init__(self, parameters: Float32Array, replica: Replica) -> None:
        if (
            parameters.dtype != np.float32
            or parameters.shape != (len(replica),)
            or not parameters.flags.c_contiguous
            or not parameters.flags.writeable
            or not parameters.flags.aligned
        ):
            raise CodecError(
                f"parameters have to be a writeable flat float32 array of {len(replica)} "
                f"elements, not {describe(parameters)}"
            )
        self.parameters = parameters
        self.replica = replica
        stored = len(replica) if self.stores_residual else 0
        self._stored: Float32Array = np.zeros(stored, np.float32)
        self._pass = ThresholdPass(*self._vectors)

    def _encode(
        self, start: int, stop: int, multiple: int, magnitude_max: int, bytes_max: int
    ) -> list[bytes]:
        parts: list[bytes] = []
        try:
            for low, high in self._pass.scan(
                start,
                stop,
                multiple,
                magnitude_max,
                absorbing=self.stores_residual,
                committing=not self.stores_residual,
            ):
                index, count = self._pass.hits_in(low, high)
                parts += split_update(Update(low, high, multiple, index, count), bytes_max)
                self.quanta_sent += multiple * thresholds_of(count)
                if not self._pass.committed:
                    count *= np.int32(multiple)
                    self._commit(index, count)
            self._pass.confirm()
        except BaseException:
            self._pass.roll_back()  # no peer will receive it
            raise
        return parts

    def check(self) -> None:
        """Raise the error that `encode` would raise for a parameter; change nothing."""
        if not self._pass.nothing_can_fail():
            self._pass.scan(0, len(self.replica), 1, INT32_MAX)

    def take(self, start: int, stop: int, magnitude_max: int) -> DenseUpdate | None:
        """Take all elements of a range out of the residual, each rounded to whole thresholds."""
        peak = self._pass.peak(start, stop)
        if not peak:
            return None
        multiple = dense_multiple(peak, float(self.replica.quantum), magnitude_max)
        counts = self._pass.take(start, stop, multiple, magnitude_max)
        return DenseUpdate(start, stop, multiple, counts)

    def apply(self, update: Update | Buffer) -> int:
        """Add a peer's update; return how many elements it changes."""
        replica = self.replica
        if isinstance(update, Update):
            update.check_fits(len(replica))
            if isinstance(update, DenseUpdate):
                covered = slice(update.start, update.stop)
                add_counts(
                    update.counts, update.multiple, covered,
                    replica.values, self.parameters, replica.quantum,
                )  # fmt: skip
            else:
                self._add(update.index, update.change)
            return update.hits
        if not len(update):
            return 0  # `NOTHING`
        encoded = read_encoded(update, len(replica))
        encoded.check()
        encoded.add_to(replica.values, self.parameters, replica.quantum)
        return encoded.hits

    def apply_sum(self, total: Int32Array, start: int = 0) -> None:
        """Add a sum of updates to the elements from `start` on."""
        for low in range(0, len(total), SUM_ELEMENTS):
            part = total[low : low + SUM_ELEMENTS]
            index = np.flatnonzero(part)
            self._add((index + (start + low)).astype(np.uint32), part[index])

    def correct_replica(self, error: Int32Array, start: int = 0) -> None:
        """Correct damaged elements of the replica; replica plus residual stays the same."""
        where = slice(start, start + len(error))
        before = self._replica_values(where)
        self.replica.values[where] += error
        if self.stores_residual:
            after = self._replica_values(where)
            self._stored[where] += before - after
            self._pass.forget_stored_max()
            self.parameters[where] = after + (self.parameters[where] - before)

    def absorb(self) -> None:
        """Move what the optimizer has changed to the residual, if that has a vector of its own."""
        if self.stores_residual:
            self._pass.absorb(0, len(self.replica))

    def decay(self, factor: float) -> None:
        """Multiply the residual by `factor`, but for what the optimizer has changed since."""
        self._stored *= np.float32(factor)

    def residual(self, where: slice = EVERYWHERE) -> Float32Array:
        """Return a copy of the residual, or of a slice of it."""
        found: Float32Array = self.parameters[where] - self._replica_values(where)
        if self._stored.size:
            found += self._stored[where]
        return found

    def check_finite(self) -> None:
        """Raise `NonFiniteError` for the first parameter that is NaN or infinite."""
        check_finite(self.parameters)

    def add_change(self, change: Float32Array, start: int = 0) -> None:
        """Add a change to the parameters, as an optimizer would."""
        self.parameters[start : start + len(change)] += change

    def read_residual(self, into: Float32Array) -> None:
        """Copy the residual to an array."""
        lattice.read_residual(*self._vectors, into)

    def add_growth(self, before: Float32Array, factor: np.float32) -> None:
        """Add to the parameters `factor` times the growth of the residual since `before`."""
        lattice.add_growth(*self._vectors, before, factor)

    @contextmanager
    def restoring_on_error(self) -> Iterator[None]:
        """Restore the parameters if the block raises."""
        before = self.parameters.copy()
        try:
            yield
        except BaseException:
            self.parameters[:] = before
            raise

    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual, and compute the parameters from the replica and it."""
        self.check_residual(residual)
        self.replica.write_parameters(self.parameters)
        if self.stores_residual:
            self._stored[:] = residual
            self._pass.forget_stored_max()
        else:
            self.parameters += residual

    def drop_residual(self) -> None:
        """Set the residual to zero: the parameters become those of the replica, bit by bit."""
        self.replica.write_parameters(self.parameters)
        self._stored[:] = 0
        self._pass.forget_stored_max()

    @property
    def _vectors(self) -> tuple[Float32Array, Float32Array, Int32Array, np.float32]:
        """The first arguments of most kernels."""
        return self.parameters, self._stored, self.replica.values, self.replica.quantum

    def _commit(self, index: UInt32Array, change: Int32Array) -> None:
        """Move changes, in quanta, from the residual to the replica."""
        if self.stores_residual:
            lattice.commit_stored(*self._vectors, index, change)
        else:
            lattice.add_to_replica(self.replica.values, index, change)

    def _add(self, index: UInt32Array, change: Int32Array) -> None:
        replica = self.replica
        lattice.add_to_both(self.parameters, replica.values, replica.quantum, index, change)

    def _replica_values(self, where: slice) -> Float32Array:
        """Return a slice of the replica in units of the parameters."""
        values: Float32Array = self.replica.values[where].astype(np.float32)
        values *= self.replica.quantum
        return values


class LocalFeedback(HostFeedback):
    """The residual stays in the parameters; arguments as for `HostFeedback`."""

    stores_residual = False


class SharedFeedback(HostFeedback):
    """The residual has a vector of its own; arguments as for `HostFeedback`."""

    stores_residual = True


def encode(
    parameters: Float32Array,
    replica: Replica,
    *,
    threshold: float,
    magnitude_max: int = MAGNITUDE_MAX,
) -> list[bytes]:
    """Encode what `parameters` have and the replica does not.

    Elements that differ from the replica by at least `threshold` are encoded as whole
    thresholds and added to the replica. The rest stays: it is the difference between the two.

    Parameters
    ----------
    parameters : ndarray of shape (N,), dtype float32
        Not modified.
    replica : Replica
        Of the same length; modified in place.
    threshold : float
        In units of the parameters; rounded to a whole number of quanta.
    magnitude_max : int
        Most thresholds that one element sends.

    Returns
    -------
    list of bytes
        Usually one encoded update; none if nothing has reached the threshold.

    Raises
    ------
    CodecError
        If an argument is out of range, or a parameter is not finite or out of range. The
        replica is then unchanged.

    Examples
    --------
    >>> parameters = np.array([0.5, -0.03, 0.0, 1.0], np.float32)
    >>> mine, theirs = Replica.zeros(4), Replica.zeros(4)
    >>> for update in encode(parameters, mine, threshold=0.25):
    ...     _ = theirs.apply(update)
    >>> theirs.values * theirs.quantum
    array([0.5, 0. , 0. , 1. ])
    >>> mine.digest() == theirs.digest()
    True
    """
    multiple = multiple_of(threshold, float(replica.quantum))
    return LocalFeedback(parameters, replica).encode(multiple, magnitude_max=magnitude_max)
