"""Residual feedback: how a worker's parameters, its replica and its unsent part hang together.

All kinds keep the same promise: what is sent plus what is kept equals what came in, to the
rounding of one float32. They differ in where the unsent part, the residual, waits:

- `LocalFeedback`: in the parameters. ``P = S * quantum + residual``, so the residual needs no
  memory and the worker computes its next gradient with its own unsent change applied.
- `SharedFeedback`: in a vector of its own, as in Strom's paper and in Deeplearning4j. After
  encoding, ``P = S * quantum`` everywhere, so all workers compute with the same parameters.
- `PartialFeedback`: a portion of it in the parameters, ``P = S * quantum + portion * residual``,
  from which all of it can be told. What is changed there counts ``1 / portion`` times, so whoever
  changes parameters makes changes of that portion; what is sent moves the parameters by the rest.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import ClassVar, Final

import numpy as np

from gradwire_codecs.arrays import Buffer, Float32Array, Int32Array, describe
from gradwire_codecs.errors import CodecError, NonFiniteError
from gradwire_codecs.format.header import INT32_MAX, MULTIPLE_MAX
from gradwire_codecs.format.update import BYTES_MIN, Update, check_multiple
from gradwire_codecs.replica.replica import Replica, check_finite

MAGNITUDE_MAX: Final = 127
"""Most thresholds one element sends per update, unless the caller says otherwise. It bounds the
densest update to 8 bits per element; with an adaptive threshold magnitudes above 3 are rare."""

SAMPLE: Final = 2**16
"""Elements looked at to find the first threshold; the quantile of 1 % is then good to 4 %."""

EVERYWHERE: Final = slice(None)

BYTES_MAX: Final = 2**22
"""Largest encoded update unless the caller says otherwise."""


class Feedback(ABC):
    """What every kind does, wherever its vectors are.

    See `LocalFeedback`, `SharedFeedback` and `PartialFeedback`.
    """

    moves_parameters: ClassVar[bool]
    """Whether `encode` and `absorb` change the parameters."""

    portion: float
    """How much of its residual is in the parameters that a worker computes with, 0 to 1."""

    replica: Replica
    """What is shared; who owns the feedback reads it."""

    quanta_sent: int = 0
    """What the last `encode` has taken out of the residual: the sum of its absolute values."""

    def encode(
        self,
        multiple: int,
        *,
        magnitude_max: int = MAGNITUDE_MAX,
        bytes_max: int = BYTES_MAX,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]:
        """Encode what has reached the threshold, and count it as shared from now on.

        Parameters
        ----------
        multiple : int
            The threshold in quanta, 1 to 2^24.
        magnitude_max : int
            Most thresholds that one element sends, 1 to 2^31 - 1.
        bytes_max : int
            Largest size of one encoded update.
        start, stop : int, optional
            The range of elements to look at; all of them unless told otherwise.

        Returns
        -------
        list of bytes
            Encoded updates, usually one: none where nothing has reached the threshold, several
            of adjoining ranges where one would be too large.

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
    def check(self) -> None:
        """Raise what `encode` would raise for a parameter, and change nothing."""

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
        """Add a sum of updates, in quanta per element.

        Parameters
        ----------
        total : ndarray of shape (n,), dtype int32
        start : int
            Place of its first element.
        """

    @abstractmethod
    def correct_replica(self, error: Int32Array, start: int = 0) -> None:
        """Correct the replica where it was damaged.

        Replica and residual together stay what they are: they say what the worker knows, which the
        damage has not changed. So what was sent because of it is taken back by later updates.

        Parameters
        ----------
        error : ndarray of shape (n,), dtype int32
            What to add to its elements, modulo 2^32.
        start : int
            Place of the first one.
        """

    def first_threshold(self, density: float) -> float:
        """Return the threshold that about a part `density` of the elements has reached now.

        At least one quantum; taken from a sample.

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

    def residual_sample(self) -> Float32Array:
        """Return some tens of thousands of elements of the residual, always the same ones."""
        return self.residual(slice(None, None, -(-len(self.replica) // SAMPLE)))

    @abstractmethod
    def clip(self, limit: np.float32) -> tuple[int, float]:
        """Cut the residual to plus or minus `limit`.

        Returns
        -------
        elements : int
            How many were cut.
        magnitude : float
            Sum of the absolute values of what was cut off.
        """

    @abstractmethod
    def check_finite(self) -> None:
        """Raise `NonFiniteError` for the first parameter that is NaN or infinite."""

    @abstractmethod
    def add_change(self, change: Float32Array) -> None:
        """Add to the parameters what no optimizer has added.

        Parameters
        ----------
        change : ndarray of shape (N,), dtype float32
            As an optimizer would make it: of a portion of the residual, that portion of the change.
        """

    def read_residual(self, into: Float32Array) -> None:
        """Write a copy of the residual to an array.

        Parameters
        ----------
        into : ndarray of shape (N,), dtype float32
        """
        into[:] = self.residual()

    def add_growth(self, before: Float32Array, factor: np.float32) -> None:
        """Let what the residual has grown by have grown by `factor` times as much besides.

        Parameters
        ----------
        before : ndarray of shape (N,), dtype float32
            What the residual was; not modified.
        factor : float32
        """
        growth = self.residual()
        growth -= before
        growth *= factor
        self.add_change(growth)

    @abstractmethod
    def restoring_on_error(self) -> AbstractContextManager[None]:
        """Put the parameters back to what they were before, where the block raises."""

    @abstractmethod
    def residual(self, where: slice = EVERYWHERE) -> Float32Array:
        """Return a copy of the residual, or of some elements of it."""

    @abstractmethod
    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual, and the parameters by the replica plus what belongs into them.

        Parameters
        ----------
        residual : ndarray of shape (N,), dtype float32
            What `residual` once returned, perhaps for an older replica.
        """

    @abstractmethod
    def drop_residual(self) -> None:
        """Forget the residual: the parameters become what the replica says, bit by bit."""

    @abstractmethod
    def absorb(self) -> None:
        """Bring what the optimizer has changed to where the residual waits.

        `encode` does so by itself; this is for a step that sends nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """End the threads, where there are any."""

    def check_residual(self, residual: Float32Array) -> None:
        """Raise `CodecError` for a residual that `restore_residual` would not take."""
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

    def _checked_stop(self, start: int, stop: int | None) -> int:
        elements = len(self.replica)
        stop = elements if stop is None else stop
        if not 0 <= start < stop <= elements:
            raise CodecError(f"elements {start} to {stop} of a vector of {elements}")
        return stop


def _checked_magnitude(magnitude_max: int, bytes_max: int, multiple: int) -> int:
    """Return the most thresholds that an element sends, so that its change fits the replica.

    Raises
    ------
    CodecError
        If one of them is of no use.
    """
    check_multiple(multiple)
    if not 1 <= magnitude_max <= INT32_MAX:
        raise CodecError(f"magnitude_max={magnitude_max}; it is 1 to {INT32_MAX}")
    if bytes_max < BYTES_MIN:
        raise CodecError(f"bytes_max={bytes_max}; a single element may take {BYTES_MIN}")
    return min(magnitude_max, INT32_MAX // multiple)


def checked_portion(portion: float) -> float:
    """Return how much of the residual is to be in the parameters.

    Raises
    ------
    CodecError
        If it cannot be so much.
    """
    if not 0.0 < portion <= 1.0:
        raise CodecError(f"portion={portion}; it is above 0 and at most 1")
    return portion


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
