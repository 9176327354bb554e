"""HISTOGRAMS: how the values of a worker's parameters are distributed, for people to look at.

Every so many steps a worker counts, for its largest tensors, how many values lie where: of the
parameters, and of what the step has changed. The message goes the way of LOGGED, in its stream, and
they count their numbers together.

The bins of a histogram divide the range from the lowest to the highest value evenly. Where all
values are equal, they are in the first one. What is NaN or infinite is in no bin.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import ELEMENTS_MAX, NAME_CHARACTERS_MAX
from gradwire_protocol.messages.logged.scalars import (
    COUNT_MAX,
    SERIES_NAME_CHARACTERS_MAX,
    STEP_MAX,
)
from gradwire_protocol.messages.schema import (
    SMALL_BYTES_MAX,
    Record,
    blob,
    integer,
    listing,
    text,
)

QUANTITIES: Final = "parameters", "update"
"""What histograms are of, by their number. The update is what a step has changed."""

LAYERS_MAX: Final = 64
"""Most tensors of a message."""

BINS: Final = 32

NUMBERS: Final = "lowest", "highest", "mean", "deviation"
"""What a histogram says of its finite values; 0 where there are none."""

HISTOGRAM: Final = np.dtype(
    [
        ("layer", "<u2"),
        ("quantity", "<u2"),
        ("elements", "<u4"),
        ("nan", "<u4"),
        ("infinite", "<u4"),
        *((name, "<f8") for name in NUMBERS),
        ("bins", "<u4", BINS),
    ]
)
"""A histogram, 176 bytes: the index of its tensor's name, what of it is counted, how many elements
the tensor has, and what was counted, which of a large tensor is a sample."""

HISTOGRAMS_MAX: Final = LAYERS_MAX * len(QUANTITIES)

RATIO_PREFIX: Final = "gradwire/update_ratio/"
"""Of the names of series that say how large the updates of a tensor are."""


@dataclass(frozen=True, slots=True)
class Histograms(Record):
    """Histograms of one step."""

    number: Annotated[int, integer(1, COUNT_MAX)]
    """Counts the messages of a worker, these and LOGGED."""
    step: Annotated[int, integer(0, STEP_MAX)]
    names: Annotated[tuple[str, ...], listing(text(NAME_CHARACTERS_MAX), LAYERS_MAX)]
    """Names of tensors: histograms refer to them by their index."""
    histograms: Annotated[bytes, blob(0, HISTOGRAM.itemsize * HISTOGRAMS_MAX)]
    """Array of `HISTOGRAM`."""
    dropped: Annotated[int, integer(0, COUNT_MAX)]
    """How many such messages the worker has dropped since the last one, for newer ones."""

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
        if len(self.histograms) % HISTOGRAM.itemsize:
            raise _invalid(f"{len(self.histograms)} bytes are no whole histograms")
        if len(set(self.names)) < len(self.names):
            raise _invalid("a name for a second time")
        found = np.frombuffer(self.histograms, HISTOGRAM)
        layers, quantities = found["layer"].astype(int), found["quantity"].astype(int)
        if (layer := layers.max(initial=-1)) >= len(self.names):
            raise _invalid(f"one of tensor {layer} of {len(self.names)}")
        if (quantity := quantities.max(initial=-1)) >= len(QUANTITIES):
            raise _invalid(f"quantity {quantity} of {len(QUANTITIES)}")
        if len(np.unique(layers * len(QUANTITIES) + quantities)) < len(found):
            raise _invalid("two of the same quantity of a tensor")
        if not all(np.isfinite(found[name]).all() for name in NUMBERS):
            raise _invalid("a number that is not finite")
        counted = found["bins"].sum(axis=1, dtype=np.int64) + found["nan"] + found["infinite"]
        if (counted > found["elements"]).any() or found["elements"].max(initial=0) > ELEMENTS_MAX:
            raise _invalid("more values than the tensor has elements")
        return found


def ratio_series(layer: str) -> str:
    """Return the name of the series with a tensor's ratio; of a long name the end and a checksum.

    The ratio is the norm of what a step has changed, divided by that of the parameters.
    """
    most = SERIES_NAME_CHARACTERS_MAX - len(RATIO_PREFIX)
    if len(layer) > most:
        checksum = f"{crc32(layer.encode()):08x}"
        layer = f"{checksum}…{layer[len(checksum) + 1 - most :]}"
    return RATIO_PREFIX + layer


def _invalid(text: str) -> InvalidMessageError:
    return InvalidMessageError(f"Histograms: {text}")
