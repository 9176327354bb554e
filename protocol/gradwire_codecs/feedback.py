"""Residual feedback: how a worker's parameters, its replica and its unsent part hang together.

Both kinds keep the same promise: what is sent plus what is kept equals what came in, to the
rounding of one float32. They differ in where the unsent part, the residual, waits:

- `LocalFeedback`: in the parameters. ``P = S * quantum + residual``, so the residual needs no
  memory and the worker computes its next gradient with its own unsent change applied.
- `SharedFeedback`: in a vector of its own, as in Strom's paper and in Deeplearning4j. After
  encoding, ``P = S * quantum`` everywhere, so all workers compute with the same parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Final

import numpy as np

from gradwire_codecs import lattice
from gradwire_codecs.arrays import (
    Buffer,
    Float32Array,
    Int32Array,
    Int64Array,
    UInt32Array,
    describe,
)
from gradwire_codecs.errors import CodecError, NonFiniteError
from gradwire_codecs.header import INT32_MAX
from gradwire_codecs.reading import read_encoded
from gradwire_codecs.replica import Replica, check_finite
from gradwire_codecs.sections import MULTIPLE_MAX, Sections
from gradwire_codecs.threshold_pass import ThresholdPass
from gradwire_codecs.update import (
    BYTES_MIN,
    Update,
    split_update,
)

MAGNITUDE_MAX: Final = 127
"""Most thresholds one element sends per update, unless the caller says otherwise. It bounds the
densest update to 8 bits per element; with an adaptive threshold magnitudes above 3 are rare."""

SAMPLE: Final = 2**16
"""Elements looked at to find the first threshold; the quantile of 1 % is then good to 4 %."""

SUM_ELEMENTS: Final = 2**20
"""Elements of a sum that are added at a time, so that little memory is used."""

BYTES_MAX: Final = 2**22
"""Largest encoded update unless the caller says otherwise."""


class Feedback(ABC):
    """What every kind does, wherever its vectors are; see `LocalFeedback` and `SharedFeedback`."""

    moves_parameters: ClassVar[bool]
    """Whether `encode` and `absorb` change the parameters."""

    replica: Replica
    """What is shared; who owns the feedback reads it."""

    @abstractmethod
    def encode(
        self,
        threshold: int | Sections,
        *,
        magnitude_max: int = MAGNITUDE_MAX,
        bytes_max: int = BYTES_MAX,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]:
        """Encode what has reached the threshold, and count it as shared from now on.

        Parameters
        ----------
        threshold : int or Sections
            The threshold in quanta, 1 to 2^24, or which elements to look at and their thresholds.
        magnitude_max : int
            Most thresholds that one element sends, 1 to 2^31 - 1.
        bytes_max : int
            Largest size of one encoded update.
        start, stop : int, optional
            With one threshold, the range of elements to look at; all of them unless told
            otherwise.

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
    def mend(self, error: Int32Array, start: int = 0) -> None:
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
        return self.residual(-(-len(self.replica) // SAMPLE))

    @abstractmethod
    def residual_at(self, index: Int64Array) -> Float32Array:
        """Return the elements of the residual at these places, of shape (n,)."""

    @abstractmethod
    def clip(self, limit: np.float32, start: int, stop: int) -> tuple[int, float]:
        """Cut the residual of a range of elements to plus or minus `limit`.

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
        """

    @abstractmethod
    def undoing(self) -> AbstractContextManager[None]:
        """Put the parameters back to what they were before, where the block raises."""

    @abstractmethod
    def residual(self, stride: int = 1) -> Float32Array:
        """Return a copy of the residual, or of every `stride`-th element of it."""

    @abstractmethod
    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual, and the parameters by the replica plus what belongs into them.

        Parameters
        ----------
        residual : ndarray of shape (N,), dtype float32
            What `residual` once returned, perhaps for an older replica.
        """

    @abstractmethod
    def settle(self) -> None:
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
        finite = np.isfinite(residual)
        if not finite.all():
            first = int(np.argmin(finite))
            raise NonFiniteError(first, float(residual[first]))

    def _sections(self, threshold: int | Sections, start: int, stop: int | None) -> Sections:
        elements = len(self.replica)
        if not isinstance(threshold, Sections):
            stop = elements if stop is None else stop
            if not 0 <= start < stop <= elements:
                raise CodecError(f"elements {start} to {stop} of a vector of {elements}")
            return Sections.single(start, stop, threshold)
        if start or stop is not None:
            raise CodecError("sections say themselves where they start and stop")
        if threshold.stop > elements:
            raise CodecError(f"sections up to {threshold.stop} of a vector of {elements}")
        return threshold


class HostFeedback(Feedback):
    """What both kinds have in common where the vectors are arrays.

    Parameters
    ----------
    parameters : ndarray of shape (N,), dtype float32
        The model's parameters, kept and changed in place.
    replica : Replica
        Of the same length; kept and changed in place.
    threads : int
        How many threads `encode` works with, the calling one among them. What it returns does not
        depend on it.
    """

    def __init__(self, parameters: Float32Array, replica: Replica, *, threads: int = 1) -> None:
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
        waiting = len(replica) if self.moves_parameters else 0
        self._waiting: Float32Array = np.zeros(waiting, np.float32)
        self._pass = ThresholdPass(
            parameters, self._waiting, replica.values, replica.quantum, threads
        )

    def encode(
        self,
        threshold: int | Sections,
        *,
        magnitude_max: int = MAGNITUDE_MAX,
        bytes_max: int = BYTES_MAX,
        start: int = 0,
        stop: int | None = None,
    ) -> list[bytes]:
        """Encode what has reached the threshold, and count it as shared from now on."""
        sections = self._sections(threshold, start, stop)
        magnitude_max = checked_magnitude(magnitude_max, bytes_max, sections)
        ranges = self._pass.look(sections, magnitude_max, absorbing=self.moves_parameters)
        parts: list[bytes] = []
        for part in ranges:
            index, count = self._pass.take(part, magnitude_max)
            parts += split_update(Update(part, index, count), bytes_max)
            part.to_quanta(index, count)
            self._commit(index, count)
        return parts

    def check(self) -> None:
        """Raise what `encode` would raise for a parameter, and change nothing."""
        self._pass.look(self._sections(1, 0, None), INT32_MAX)

    def apply(self, update: Update | Buffer) -> int:
        """Add a peer's update; return how many elements it changes."""
        replica = self.replica
        if isinstance(update, Update):
            update.check_fits(len(replica))
            self._add(update.index, update.change)
            return len(update.index)
        encoded = read_encoded(update, len(replica))
        encoded.check()
        encoded.add_to_both(self.parameters, replica.values, replica.quantum)
        return encoded.hits

    def apply_sum(self, total: Int32Array, start: int = 0) -> None:
        """Add a sum of updates, in quanta per element."""
        for low in range(0, len(total), SUM_ELEMENTS):
            part = total[low : low + SUM_ELEMENTS]
            index = np.flatnonzero(part)
            self._add((index + (start + low)).astype(np.uint32), part[index])

    def mend(self, error: Int32Array, start: int = 0) -> None:
        """Correct the replica where it was damaged."""
        stop = start + len(error)
        before = self._shared(start, stop)
        self.replica.values[start:stop] += error
        self._keep(start, before, self._shared(start, stop))

    def absorb(self) -> None:
        """Bring what the optimizer has changed to where the residual waits."""
        if self.moves_parameters:
            self._pass.absorb(0, len(self.replica))

    def residual_at(self, index: Int64Array) -> Float32Array:
        """Return the elements of the residual at these places, of shape (n,)."""
        shared = self.replica.values[index].astype(np.float32) * self.replica.quantum
        found: Float32Array = self.parameters[index] - shared
        if self._waiting.size:
            found += self._waiting[index]
        return found

    def clip(self, limit: np.float32, start: int, stop: int) -> tuple[int, float]:
        """Cut the residual of a range of elements to plus or minus `limit`."""
        values, quantum = self.replica.values, self.replica.quantum
        self._pass.forget_waiting()
        return lattice.clip(self.parameters, self._waiting, values, quantum, limit, start, stop)

    def check_finite(self) -> None:
        """Raise `NonFiniteError` for the first parameter that is NaN or infinite."""
        check_finite(self.parameters)

    def add_change(self, change: Float32Array) -> None:
        """Add to the parameters what no optimizer has added."""
        self.parameters += change

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Put the parameters back to what they were before, where the block raises."""
        before = self.parameters.copy()
        try:
            yield
        except BaseException:
            self.parameters[:] = before
            raise

    def close(self) -> None:
        """End the threads, where there are any."""
        self._pass.close()

    @abstractmethod
    def _commit(self, index: UInt32Array, change: Int32Array) -> None:
        """Move changes, in quanta, from the residual to the replica."""

    @abstractmethod
    def _keep(self, start: int, before: Float32Array, after: Float32Array) -> None:
        """Make up in the residual, from `start` on, for what the replica stands for now."""

    def _add(self, index: UInt32Array, change: Int32Array) -> None:
        replica = self.replica
        lattice.add(self.parameters, replica.values, replica.quantum, index, change)

    def _shared(self, start: int, stop: int) -> Float32Array:
        """Return what some elements of the replica stand for."""
        values: Float32Array = self.replica.values[start:stop].astype(np.float32)
        values *= self.replica.quantum
        return values


class LocalFeedback(HostFeedback):
    """The residual stays in the parameters. Takes what `HostFeedback` takes."""

    moves_parameters = False

    def residual(self, stride: int = 1) -> Float32Array:
        """Return a copy of the residual, or of every `stride`-th element of it."""
        return _difference(self.parameters[::stride], self.replica, stride)

    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual; the parameters become the replica plus `residual`."""
        self.check_residual(residual)
        self.replica.write_parameters(self.parameters)
        self.parameters += residual

    def settle(self) -> None:
        """Forget the residual: the parameters become what the replica says, bit by bit."""
        self.replica.write_parameters(self.parameters)

    def _commit(self, index: UInt32Array, change: Int32Array) -> None:
        lattice.add_to_replica(self.replica.values, index, change)

    def _keep(self, start: int, before: Float32Array, after: Float32Array) -> None:
        """Do nothing: the parameters are ahead of the replica by so much now."""


class SharedFeedback(HostFeedback):
    """The residual waits in a vector of its own. Takes what `HostFeedback` takes."""

    moves_parameters = True

    def residual(self, stride: int = 1) -> Float32Array:
        """Return a copy of the residual, or of every `stride`-th element of it."""
        changed = _difference(self.parameters[::stride], self.replica, stride)
        return changed + self._waiting[::stride]

    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual; the parameters become what the replica says."""
        self.check_residual(residual)
        self.replica.write_parameters(self.parameters)
        self._waiting[:] = residual
        self._pass.forget_waiting()

    def settle(self) -> None:
        """Forget the residual: the parameters become what the replica says, bit by bit."""
        self.replica.write_parameters(self.parameters)
        self._waiting[:] = 0
        self._pass.forget_waiting()

    def _commit(self, index: UInt32Array, change: Int32Array) -> None:
        replica = self.replica
        lattice.release(
            self.parameters, self._waiting, replica.values, replica.quantum, index, change
        )

    def _keep(self, start: int, before: Float32Array, after: Float32Array) -> None:
        place = slice(start, start + len(before))
        self._waiting[place] += before - after
        self._pass.forget_waiting()
        self.parameters[place] = after + (self.parameters[place] - before)


def checked_magnitude(magnitude_max: int, bytes_max: int, sections: Sections) -> int:
    """Return the most thresholds that an element sends, so that its change fits the replica.

    Raises
    ------
    CodecError
        If it or `bytes_max` is of no use.
    """
    if not 1 <= magnitude_max <= INT32_MAX:
        raise CodecError(f"magnitude_max={magnitude_max}; it is 1 to {INT32_MAX}")
    if bytes_max < BYTES_MIN:
        raise CodecError(f"bytes_max={bytes_max}; a single element may take {BYTES_MIN}")
    return min(magnitude_max, INT32_MAX // sections.largest)


def _difference(parameters: Float32Array, replica: Replica, stride: int) -> Float32Array:
    shared = replica.values[::stride].astype(np.float32) * replica.quantum
    difference: Float32Array = parameters - shared
    return difference


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


def encode(
    parameters: Float32Array,
    replica: Replica,
    *,
    threshold: float,
    magnitude_max: int = MAGNITUDE_MAX,
) -> list[bytes]:
    """Encode what of `parameters` the replica does not know yet; no network is needed.

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
        Usually one encoded update; none where nothing has reached the threshold.

    Raises
    ------
    CodecError
        If an argument is of no use, a parameter is not finite, or one is out of range. The
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
