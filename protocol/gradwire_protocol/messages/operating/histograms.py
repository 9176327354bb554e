"""HISTOGRAMS: how the values of a worker's parameters are distributed, for people to look at.

Every so many steps a worker counts, for its largest tensors, how many values lie where: of the
parameters, of what the last step has changed, and of the residual. The message goes the way of
LOGGED, on the same stream, and with the same rule for what is sent again.

The bins of a histogram divide the range from the lowest to the highest value evenly; a value at the
border of two is in the upper one, and the highest in the last. Where all values are equal, they are
in the first. What is NaN or infinite is in no bin, and in neither mean nor deviation.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import numpy as np
import numpy.typing as npt

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX, NAME_CHARACTERS_MAX, TENSORS_MAX
from gradwire_protocol.messages.operating.scalars import AGE_MAX, COUNT_MAX, STEP_MAX
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    CompressedRecord,
    blob,
    integer,
    listing,
    text,
)

QUANTITIES: Final = "parameters", "update", "residual"
"""What histograms are of, by their number. The update is what a step has changed."""

LAYERS_MAX: Final = 64
"""Most tensors of a message: the largest of a model."""

BINS: Final = 32

HISTOGRAM: Final = np.dtype(
    [
        ("layer", "<u2"),
        ("quantity", "<u2"),
        ("elements", "<u4"),
        ("nan", "<u4"),
        ("infinite", "<u4"),
        ("lowest", "<f4"),
        ("highest", "<f4"),
        ("mean", "<f8"),
        ("deviation", "<f8"),
        ("bins", "<u4", BINS),
    ]
)
"""A histogram, 168 bytes: the index of its tensor's name, what of it is counted, how many elements
the tensor has, and what was counted. Of a large tensor only a sample is: the bins, the NaNs and the
infinities say how many values that were. Without a finite value, the four numbers are 0."""

HISTOGRAMS_MAX: Final = LAYERS_MAX * len(QUANTITIES)
"""Most histograms of a message: 32 KB of them."""


@dataclass(frozen=True, slots=True)
class Histograms(CompressedRecord):
    """Histograms of one step."""

    number: Annotated[int, integer(1, COUNT_MAX)]
    """Counts the messages of a worker."""
    step: Annotated[int, integer(0, STEP_MAX)]
    age: Annotated[int, integer(0, AGE_MAX)]
    """How many milliseconds before this message they were made."""
    tensors: Annotated[int, integer(1, TENSORS_MAX)]
    """How many tensors the model has."""
    names: Annotated[tuple[str, ...], listing(text(NAME_CHARACTERS_MAX), LAYERS_MAX)]
    """Names of tensors: histograms refer to them by their index."""
    histograms: Annotated[bytes, blob(0, HISTOGRAM.itemsize * HISTOGRAMS_MAX)]
    """Array of `HISTOGRAM`."""
    dropped: Annotated[int, integer(0, COUNT_MAX)]
    """How many times, since its last message, the worker has left out histograms that were due."""

    KIND: ClassVar[Kind] = Kind.HISTOGRAMS
    BYTES_MAX: ClassVar[int] = (
        SMALL_BYTES_MAX
        + LAYERS_MAX * (4 * NAME_CHARACTERS_MAX + 5)
        + HISTOGRAM.itemsize * HISTOGRAMS_MAX
    )

    @property
    def array(self) -> npt.NDArray[np.void]:
        """The histograms: shape (n,), dtype `HISTOGRAM`, read-only.

        Raises `InvalidMessageError` if they contradict themselves.
        """
        return checked_histograms(self.names, self.histograms)


def checked_histograms(names: tuple[str, ...], histograms: bytes) -> npt.NDArray[np.void]:
    """Return histograms of tensors with these names, or raise `InvalidMessageError`."""
    if len(histograms) % HISTOGRAM.itemsize:
        raise InvalidMessageError(f"Histograms: {len(histograms)} bytes are no whole histograms")
    if len(set(names)) < len(names):
        raise InvalidMessageError("Histograms: a name for a second time")
    found = np.frombuffer(histograms, HISTOGRAM)
    if not len(found):
        return found
    layers, quantities = found["layer"], found["quantity"]
    if layers.max() >= len(names):
        raise InvalidMessageError(f"Histograms: one of tensor {layers.max()} of {len(names)}")
    if quantities.max() >= len(QUANTITIES):
        raise InvalidMessageError(f"Histograms: quantity {quantities.max()} is unknown")
    if len(np.unique(layers * np.uint32(len(QUANTITIES)) + quantities)) < len(found):
        raise InvalidMessageError("Histograms: two of the same quantity of a tensor")
    numbers = [found[name] for name in ("lowest", "highest", "mean", "deviation")]
    if not all(np.isfinite(each).all() for each in numbers):
        raise InvalidMessageError("Histograms: a number that is not finite")
    counted = found["bins"].sum(axis=1, dtype=np.int64) + found["nan"] + found["infinite"]
    if (counted > found["elements"]).any() or found["elements"].max() > ELEMENTS_MAX:
        raise InvalidMessageError("Histograms: more values than the tensor has elements")
    return found
