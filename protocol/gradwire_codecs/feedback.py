"""Residual feedback: how a worker's parameters, its replica and its unsent part hang together.

Both kinds keep the same promise: what is sent plus what is kept equals what came in, to the
rounding of one float32. They differ in where the unsent part, the residual, waits:

- `LocalFeedback`: in the parameters. ``P = S * quantum + residual``, so the residual needs no
  memory and the worker computes its next gradient with its own unsent change applied.
- `SharedFeedback`: in a vector of its own, as in Strom's paper and in Deeplearning4j. After
  encoding, ``P = S * quantum`` everywhere, so all workers compute with the same parameters.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import numpy as np

from gradwire_codecs import lattice
from gradwire_codecs.arrays import Buffer, Float32Array, Int32Array, UInt32Array, describe
from gradwire_codecs.errors import CodecError, NonFiniteError, OutOfRangeError
from gradwire_codecs.header import INT32_MAX
from gradwire_codecs.reading import read_encoded
from gradwire_codecs.replica import Replica
from gradwire_codecs.sections import MULTIPLE_MAX, Sections
from gradwire_codecs.threshold import NOT_FINITE, OUT_OF_RANGE, scan
from gradwire_codecs.update import (
    BYTES_MIN,
    Update,
    split_update,
)

MAGNITUDE_MAX: Final = 127
"""Most thresholds one element sends per update, unless the caller says otherwise. It bounds the
densest update to 8 bits per element; with an adaptive threshold magnitudes above 3 are rare."""

HITS_CAPACITY_MIN: Final = 2**16
HITS_CAPACITY_MAX: Final = 2**20
HITS_CAPACITY_SHARE: Final = 16
"""Room for hits: a sixteenth of the elements, within these bounds, 8 bytes each. A denser update
is encoded in ranges of as many elements as there is room for hits."""

SAMPLE: Final = 2**16
"""Elements looked at to find the first threshold; the quantile of 1 % is then good to 4 %."""

BYTES_MAX: Final = 2**22
"""Largest encoded update unless the caller says otherwise."""


class Feedback(ABC):
    """What both kinds have in common; see `LocalFeedback` and `SharedFeedback`.

    Parameters
    ----------
    parameters : ndarray of shape (N,), dtype float32
        The model's parameters, kept and changed in place.
    replica : Replica
        Of the same length; kept and changed in place.
    """

    moves_parameters: ClassVar[bool]
    """Whether `encode` and `absorb` change the parameters."""

    def __init__(self, parameters: Float32Array, replica: Replica) -> None:
        if (
            parameters.dtype != np.float32
            or parameters.shape != (len(replica),)
            or not parameters.flags.c_contiguous
            or not parameters.flags.writeable
        ):
            raise CodecError(
                f"parameters have to be a writeable flat float32 array of {len(replica)} "
                f"elements, not {describe(parameters)}"
            )
        self.parameters = parameters
        self.replica = replica
        self._waiting: Float32Array = np.empty(0, np.float32)
        capacity = min(
            max(len(replica) // HITS_CAPACITY_SHARE, HITS_CAPACITY_MIN), HITS_CAPACITY_MAX
        )
        self._index: UInt32Array = np.empty(min(capacity, len(replica)), np.uint32)
        self._count: Int32Array = np.empty(min(capacity, len(replica)), np.int32)

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
            Range of elements to look at; all of them unless told otherwise.

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
        if not 1 <= multiple <= MULTIPLE_MAX:
            raise CodecError(f"multiple={multiple}; it is 1 to {MULTIPLE_MAX}")
        if not 1 <= magnitude_max <= INT32_MAX:
            raise CodecError(f"magnitude_max={magnitude_max}; it is 1 to {INT32_MAX}")
        if bytes_max < BYTES_MIN:
            raise CodecError(f"bytes_max={bytes_max}; a single element may take {BYTES_MIN}")
        stop = len(self.replica) if stop is None else stop
        if not 0 <= start < stop <= len(self.replica):
            raise CodecError(f"elements {start} to {stop} of a vector of {len(self.replica)}")
        magnitude_max = min(magnitude_max, INT32_MAX // multiple)
        hits = self._scan(multiple, magnitude_max, start, stop)
        self.absorb()
        if hits <= self._index.size:
            return self._take(multiple, start, stop, hits, bytes_max)
        parts: list[bytes] = []
        for low in range(start, stop, self._index.size):
            high = min(low + self._index.size, stop)
            hits = self._scan(multiple, magnitude_max, low, high)
            parts += self._take(multiple, low, high, hits, bytes_max)
        return parts

    def check(self) -> None:
        """Raise what `encode` would raise for a parameter, and change nothing."""
        self._scan(1, INT32_MAX, 0, len(self.replica))

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
        """Add a sum of updates, in quanta per element.

        Parameters
        ----------
        total : ndarray of shape (n,), dtype int32
        start : int
            Place of its first element.
        """
        for low in range(0, len(total), HITS_CAPACITY_MAX):
            part = total[low : low + HITS_CAPACITY_MAX]
            index = np.flatnonzero(part)
            self._add((index + (start + low)).astype(np.uint32), part[index])

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
        stop = start + len(error)
        before = self._shared(start, stop)
        self.replica.values[start:stop] += error
        self._keep(start, before, self._shared(start, stop))

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
            raise NonFiniteError(first, float(self.parameters[first]))
        return max(float(np.quantile(sample, 1 - density)), float(self.replica.quantum))

    def residual_sample(self) -> Float32Array:
        """Return some tens of thousands of elements of the residual, always the same ones."""
        return self.residual(-(-len(self.replica) // SAMPLE))

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
    def _commit(self, update: Update) -> None:
        """Move the hits from the residual to the replica."""

    @abstractmethod
    def _keep(self, start: int, before: Float32Array, after: Float32Array) -> None:
        """Make up in the residual, from `start` on, for what the replica stands for now."""

    def check_residual(self, residual: Float32Array) -> None:
        """Raise `CodecError` for a residual that `restore_residual` would not take."""
        if residual.dtype != np.float32 or residual.shape != self.parameters.shape:
            raise CodecError(
                f"the residual has to be a float32 array of shape {self.parameters.shape}, "
                f"not {describe(residual)}"
            )
        finite = np.isfinite(residual)
        if not finite.all():
            first = int(np.argmin(finite))
            raise NonFiniteError(first, float(residual[first]))

    def _add(self, index: UInt32Array, change: Int32Array) -> None:
        replica = self.replica
        lattice.add(self.parameters, replica.values, replica.quantum, index, change)

    def _shared(self, start: int, stop: int) -> Float32Array:
        """Return what some elements of the replica stand for."""
        values: Float32Array = self.replica.values[start:stop].astype(np.float32)
        values *= self.replica.quantum
        return values

    def _scan(self, multiple: int, magnitude_max: int, start: int, stop: int) -> int:
        hits, element = scan(
            self.parameters,
            self._waiting,
            self.replica.values,
            self.replica.quantum,
            multiple,
            magnitude_max,
            start,
            stop,
            self._index,
            self._count,
        )
        if hits == NOT_FINITE:
            raise NonFiniteError(element, float(self.parameters[element]))
        if hits == OUT_OF_RANGE:
            limit = 2.0 ** (31 + self.replica.quantum_exponent)
            raise OutOfRangeError(element, float(self.parameters[element]), limit)
        return hits

    def _take(self, multiple: int, start: int, stop: int, hits: int, bytes_max: int) -> list[bytes]:
        sections = Sections.single(start, stop, multiple)
        update = Update(sections, self._index[:hits], self._count[:hits])
        parts = split_update(update, bytes_max)
        self._commit(update)
        return parts


class LocalFeedback(Feedback):
    """The residual stays in the parameters. Takes what `Feedback` takes."""

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

    def absorb(self) -> None:
        """Do nothing: the residual is where it belongs."""

    def _commit(self, update: Update) -> None:
        self.replica.apply(update)

    def _keep(self, start: int, before: Float32Array, after: Float32Array) -> None:
        """Do nothing: the parameters are ahead of the replica by so much now."""


class SharedFeedback(Feedback):
    """The residual waits in a vector of its own. Takes what `Feedback` takes."""

    moves_parameters = True

    def __init__(self, parameters: Float32Array, replica: Replica) -> None:
        super().__init__(parameters, replica)
        self._waiting = np.zeros(len(replica), np.float32)

    def residual(self, stride: int = 1) -> Float32Array:
        """Return a copy of the residual, or of every `stride`-th element of it."""
        changed = _difference(self.parameters[::stride], self.replica, stride)
        return changed + self._waiting[::stride]

    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual; the parameters become what the replica says."""
        self.check_residual(residual)
        self.replica.write_parameters(self.parameters)
        self._waiting[:] = residual

    def settle(self) -> None:
        """Forget the residual: the parameters become what the replica says, bit by bit."""
        self.replica.write_parameters(self.parameters)
        self._waiting[:] = 0

    def absorb(self) -> None:
        """Bring what the optimizer has changed to where the residual waits."""
        lattice.absorb(self.parameters, self._waiting, self.replica.values, self.replica.quantum)

    def _commit(self, update: Update) -> None:
        lattice.release(
            self.parameters,
            self._waiting,
            self.replica.values,
            self.replica.quantum,
            update.index,
            update.change,
        )

    def _keep(self, start: int, before: Float32Array, after: Float32Array) -> None:
        place = slice(start, start + len(before))
        self._waiting[place] += before - after
        self.parameters[place] = after + (self.parameters[place] - before)


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
