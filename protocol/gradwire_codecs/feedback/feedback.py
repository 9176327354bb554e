"""Residual feedback: a worker's parameters P, its replica S, and its residual, the unsent change.

Both kinds guarantee the same: what is sent plus the residual equals the changes that were made, to
the rounding of one float32. They differ in where the residual is stored:

- `LocalFeedback`: in the parameters. ``P = S * quantum + residual``, so the residual needs no
  memory and the worker computes its next gradient with its own unsent change applied.
- `SharedFeedback`: in a vector of its own, as in Strom's paper and in Deeplearning4j. After
  encoding, ``P = S * quantum`` everywhere, so all workers compute with the same parameters.
"""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from gradwire_codecs.arrays import Buffer, Float32Array, Int32Array, describe
from gradwire_codecs.errors import CodecError, NonFiniteError
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import BYTES_MIN, DenseUpdate, Update, check_multiple
from gradwire_codecs.replica.replica import Replica, check_finite

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9, 99.99)
"""Those of Deeplearning4j's encodingDebugMode."""

MAGNITUDE_MAX: Final = 127
"""Most thresholds one element sends per update, unless the caller says otherwise. It bounds the
densest update to 8 bits per element; with an adaptive threshold magnitudes above 3 are rare."""

SAMPLE: Final = 2**16
"""Elements that the first threshold is computed from: the quantile of 1 % is then exact to 4 %."""

EVERYWHERE: Final = slice(None)

BYTES_MAX: Final = 2**22
"""Largest encoded update unless the caller says otherwise."""


@dataclass(frozen=True, slots=True)
class ResidualStatistics:
    """Absolute values of the elements of a residual, in thresholds, from a sample.

    Far above 1: the threshold is too low for what an update may carry, and the residual grows. All
    far below 1: the threshold is so high that changes are sent late.
    """

    mean: float
    max: float
    p50: float
    """The median; the others are percentiles, too."""
    p95: float
    p99: float
    p99_9: float
    p99_99: float

    @classmethod
    def of(cls, sample: Float32Array, threshold: float) -> "ResidualStatistics":
        """Compute the statistics of a sample.

        Parameters
        ----------
        sample : ndarray of shape (n,), dtype float32
            Elements of a residual. Those that are not finite are left out (the next step refuses
            them); if none is left, all statistics are 0.
        threshold : float
            Positive, in units of the parameters.
        """
        size = np.abs(sample, dtype=np.float64) / threshold
        size = size[np.isfinite(size)]
        if not size.size:
            return cls(*[0.0] * 7)
        percentiles = np.percentile(size, PERCENTILES).tolist()
        return cls(float(size.mean()), float(size.max()), *percentiles)


class Feedback(ABC):
    """The interface of both kinds, whether their vectors are arrays or tensors on a device.

    See `LocalFeedback` and `SharedFeedback`.
    """

    stores_residual: ClassVar[bool]
    """Whether the residual has a vector of its own, so that `encode` and `absorb` change the
    parameters; else it is in them."""

    replica: Replica
    """The shared parameters; the owner of the feedback may read it."""

    quanta_sent: int = 0
    """Sum of the absolute values, in quanta, that the last `encode` took out of the residual."""

    def encode(
        self,
        multiple: int,
        *,
        magnitude_max: int = MAGNITUDE_MAX,
        bytes_max: int = BYTES_MAX,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]:
        """Encode what has reached the threshold, and move it from the residual to the replica.

        Parameters
        ----------
        multiple : int
            The threshold in quanta, 1 to 2^24.
        magnitude_max : int
            Most thresholds that one element sends, 1 to 2^31 - 1.
        bytes_max : int
            Largest size of one encoded update.
        start, stop : int, optional
            The range of elements to encode; all of them by default.

        Returns
        -------
        list of bytes
            Encoded updates, usually one: none if nothing has reached the threshold, several
            of adjoining ranges if one would be too large.

        Raises
        ------
        NonFiniteError
            If a parameter is NaN or infinite.
        OutOfRangeError
            If a parameter has left the range of the quantum. After either error, parameters,
            replica and residual are as they were.
        """
        stop = self._checked_stop(start, stop)
        magnitude_max = _checked_magnitude(magnitude_max, bytes_max, multiple)
        self.quanta_sent = 0
        return self._encode(start, stop, multiple, magnitude_max, bytes_max)

    @abstractmethod
    def take(self, start: int, stop: int, magnitude_max: int) -> DenseUpdate | None:
        """Take all elements of a range out of the residual, each rounded to whole thresholds.

        The replica stays as it is. What rounding leaves stays in the residual. `check` has to have
        found nothing.

        Parameters
        ----------
        start, stop : int
            A range that is not empty.
        magnitude_max : int
            Thresholds of the largest element, 1 to 127.

        Returns
        -------
        DenseUpdate or None
            What was taken; None if the residual is zero.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise the error that `encode` would raise for a parameter; change nothing."""

    @abstractmethod
    def apply(self, update: Update | Buffer) -> int:
        """Add a peer's update, decoded or not, to the replica and to the parameters.

        Returns
        -------
        int
            How many elements it changes.

        Raises
        ------
        MalformedUpdateError
            If it is no valid update of a vector of this length; nothing is then changed.
        """

    @abstractmethod
    def apply_sum(self, total: Int32Array, start: int = 0) -> None:
        """Add a sum of updates to the elements from `start` on.

        Parameters
        ----------
        total : ndarray of shape (n,), dtype int32
            In quanta.
        start : int
            Position of the first element.
        """

    @abstractmethod
    def correct_replica(self, error: Int32Array, start: int = 0) -> None:
        """Correct damaged elements of the replica, from `start` on.

        Replica plus residual stays the same: it is what the worker has learned, which the damage
        has not changed. So later updates take back what was sent because of the damage.

        Parameters
        ----------
        error : ndarray of shape (n,), dtype int32
            Added to the elements, modulo 2^32.
        start : int
            Position of the first element.
        """

    def first_threshold(self, density: float) -> float:
        """Return the threshold that a part `density` of the elements has reached, from a sample.

        It is at least one quantum.

        Raises
        ------
        NonFiniteError
            If the sample holds a NaN or an infinity.
        """
        stride = -(-len(self.replica) // SAMPLE)
        sample = np.abs(self.residual_sample())
        finite = np.isfinite(sample)
        if not finite.all():
            first = int(np.argmin(finite)) * stride
            raise NonFiniteError(first, float(sample[first // stride]))
        return max(float(np.quantile(sample, 1 - density)), float(self.replica.quantum))

    def residual_sample(self, elements: int = SAMPLE) -> Float32Array:
        """Return up to `elements` elements of the residual, always the same ones."""
        return self.residual(self._every_kth(elements))

    def replica_sample(self, elements: int) -> Int32Array:
        """Return a copy of as many elements of the replica, the same ones, in quanta."""
        return self.replica.values_at(self._every_kth(elements)).copy()

    def trained_sample(self, elements: int) -> Float32Array:
        """Return up to `elements` of what was trained, replica plus residual, float32."""
        trained: Float32Array = self.replica_sample(elements) * self.replica.quantum
        trained += self.residual_sample(elements)
        return trained

    @abstractmethod
    def check_finite(self) -> None:
        """Raise `NonFiniteError` for the first parameter that is NaN or infinite."""

    @abstractmethod
    def add_change(self, change: Float32Array, start: int = 0) -> None:
        """Add a change to the parameters, as an optimizer would.

        Parameters
        ----------
        change : ndarray of shape (n,), dtype float32
        start : int
            Position of the first element.
        """

    def read_residual(self, into: Float32Array) -> None:
        """Copy the residual to an array.

        Parameters
        ----------
        into : ndarray of shape (N,), dtype float32
        """
        into[:] = self.residual()

    def add_growth(self, before: Float32Array, factor: np.float32) -> None:
        """Add `factor` times the growth of the residual since `before`, by way of the parameters.

        Parameters
        ----------
        before : ndarray of shape (N,), dtype float32
            An earlier residual; not modified.
        factor : float32
        """
        growth = self.residual()
        growth -= before
        growth *= factor
        self.add_change(growth)

    @abstractmethod
    def decay(self, factor: float) -> None:
        """Multiply the residual by `factor`, but for what the optimizer has changed since then.

        The residual has to have a vector of its own.
        """

    @abstractmethod
    def restoring_on_error(self) -> AbstractContextManager[None]:
        """Restore the parameters if the block raises."""

    @abstractmethod
    def residual(self, where: slice = EVERYWHERE) -> Float32Array:
        """Return a copy of the residual, or of a slice of it."""

    @abstractmethod
    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual, and compute the parameters from the replica and it.

        Parameters
        ----------
        residual : ndarray of shape (N,), dtype float32
            An earlier result of `residual`, perhaps for an older replica.
        """

    @abstractmethod
    def drop_residual(self) -> None:
        """Set the residual to zero: the parameters become those of the replica, bit by bit."""

    @abstractmethod
    def absorb(self) -> None:
        """Move what the optimizer has changed to where the residual is stored.

        `encode` does so, too; this is for a step that sends nothing.
        """

    def check_residual(self, residual: Float32Array) -> None:
        """Raise `CodecError` for a residual that `restore_residual` cannot take."""
        if residual.dtype != np.float32 or residual.shape != (len(self.replica),):
            raise CodecError(
                f"the residual has to be a float32 array of shape ({len(self.replica)},), "
                f"not {describe(residual)}"
            )
        check_finite(residual)

    @abstractmethod
    def _encode(
        self, start: int, stop: int, multiple: int, magnitude_max: int, bytes_max: int
    ) -> list[bytes]:
        """Do what `encode` does, with checked arguments; count `quanta_sent` from 0."""

    def _every_kth(self, elements: int) -> slice:
        return slice(None, None, -(-len(self.replica) // elements))

    def _checked_stop(self, start: int, stop: int | None) -> int:
        elements = len(self.replica)
        stop = elements if stop is None else stop
        if not 0 <= start < stop <= elements:
            raise CodecError(
                f"elements {start} to {stop} of a vector of {elements}: empty, or outside of it"
            )
        return stop


def _checked_magnitude(magnitude_max: int, bytes_max: int, multiple: int) -> int:
    """Check arguments; return `magnitude_max`, or less so that a change fits the replica."""
    check_multiple(multiple)
    if not 1 <= magnitude_max <= INT32_MAX:
        raise CodecError(f"magnitude_max={magnitude_max}; it has to be 1 to {INT32_MAX}")
    if bytes_max < BYTES_MIN:
        raise CodecError(f"bytes_max={bytes_max}; it has to be {BYTES_MIN} or more")
    return min(magnitude_max, INT32_MAX // multiple)


def dense_multiple(peak: float, quantum: float, magnitude_max: int) -> int:
    """Return the threshold, in quanta, of which a range's largest element is `magnitude_max`.

    It is rounded up to a whole number, and is 1 to `MULTIPLE_MAX`.
    """
    return min(max(math.ceil(peak / quantum / magnitude_max), 1), MULTIPLE_MAX)


def multiple_of(threshold: float, quantum: float) -> int:
    """Return the whole number of quanta nearest to `threshold`, 1 to `MULTIPLE_MAX`.

    Raises
    ------
    CodecError
        If the threshold is not positive and finite.
    """
    if not 0 < threshold < float("inf"):
        raise CodecError(f"threshold={threshold}; it has to be positive and finite")
    return max(round(min(threshold / float(quantum), MULTIPLE_MAX)), 1)
