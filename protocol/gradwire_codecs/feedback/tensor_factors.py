"""`TensorFactors`: thresholds per tensor, from what each tensor changes by in a step.

One threshold serves all tensors badly where they are of different scale: what is one step of an
embedding may be a hundred steps of a bias. So each tensor has a factor: the size of its own change
per step over that of all elements. What is measured is the optimizer's change and not the residual,
whose size follows from the threshold: a factor that followed from that would feed on itself.

Factors are powers of two and change only when what is measured is well beyond the rounding, so that
thresholds, and the sections that updates carry, stay the same for many steps.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gradwire_codecs.arrays import Float32Array, Int64Array
from gradwire_codecs.errors import CodecError
from gradwire_codecs.format.sections import MULTIPLE_MAX, Sections

SAMPLE: Final = 2**16
"""Elements looked at in all, as far as every tensor gets one."""

TENSOR_SAMPLE_MAX: Final = 1024
"""Elements looked at of one tensor: its root mean square is then good to some 3 %."""

SMOOTHING: Final = 0.05
"""How much of the running mean a new measurement makes up."""

EXPONENT_MAX: Final = 5
"""Thresholds differ from the common one by a factor of 32 at most."""

HYSTERESIS: Final = 0.75
"""A factor stays until the exact one is further away than this, in powers of two; rounding alone
would change it at 0.5, and go to and fro there."""

MEAN_SQUARE_MAX: Final = float(np.finfo(np.float32).max) ** 2
MEASURED_MAX: Final = 2**53
"""What a saved state may hold."""


class TensorFactors:
    """What to multiply the common threshold by, for each tensor.

    Parameters
    ----------
    lengths : sequence of int
        Elements of each tensor, in the order of the flat vector; 0 is a length, too.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        size = np.asarray(lengths, np.int64)
        if size.ndim != 1 or (size < 0).any() or size.sum() < 1:
            raise CodecError("tensors of no elements at all, or of a negative number of them")
        self.lengths: Sequence[int] = size.tolist()
        self._lengths = size
        most = min(max(SAMPLE // size.size, 1), TENSOR_SAMPLE_MAX)
        starts = np.cumsum(size) - size
        strides = np.maximum(-(-size // most), 1)
        places = [
            np.arange(start, start + length, stride)
            for start, length, stride in zip(starts, size, strides, strict=True)
        ]
        self.sample: Int64Array = np.concatenate(places).astype(np.int64)
        """Where to look, ascending; shape (s,)."""
        self._counts = np.array([len(place) for place in places])
        self._owner = np.repeat(np.arange(size.size), self._counts)
        self._mean_square = np.zeros(size.size)
        self._measured = 0
        self._exponents = np.zeros(size.size, np.int64)

    def observe(self, change: Float32Array) -> None:
        """Learn what one step of the optimizer has changed.

        Parameters
        ----------
        change : ndarray of shape (s,), dtype float32
            At the elements of `sample`. One that is not finite, or zero everywhere, teaches
            nothing.
        """
        square = np.square(change, dtype=np.float64)
        if not np.isfinite(square).all() or not square.any():
            return
        self._measured += 1
        sums = np.bincount(self._owner, square, minlength=self._lengths.size)
        weight = max(SMOOTHING, 1 / self._measured)
        self._mean_square += weight * (sums / np.maximum(self._counts, 1) - self._mean_square)
        self._follow()

    @property
    def factors(self) -> npt.NDArray[np.float64]:
        """What each tensor's threshold is of the common one, a power of two, 1/32 to 32."""
        return np.exp2(self._exponents)

    def sections(self, multiple: int) -> Sections:
        """Return thresholds for all elements, where the common one is `multiple` quanta.

        Each is a whole number of quanta, at least one.
        """
        multiples = np.clip(np.rint(multiple * self.factors), 1, MULTIPLE_MAX).astype(np.int64)
        return Sections.of(self.lengths, multiples.tolist())

    def state(self) -> dict[str, list[float]]:
        """Return what `restore` needs: numbers for each tensor, and how often was measured."""
        return {
            "mean_square": self._mean_square.tolist(),
            "exponent": self._exponents.astype(np.float64).tolist(),
            "measured": [float(self._measured)],
        }

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Go on from where what returned `state` was.

        Raises
        ------
        CodecError
            If it is of other tensors, or no such numbers; nothing is then changed.
        """
        tensors = self._lengths.size
        mean_square = _saved(state, "mean_square", tensors, 0, MEAN_SQUARE_MAX)
        exponents = _saved(state, "exponent", tensors, -EXPONENT_MAX, EXPONENT_MAX)
        [measured] = _saved(state, "measured", 1, 0, MEASURED_MAX)
        self._mean_square, self._exponents = mean_square, np.rint(exponents).astype(np.int64)
        self._measured = round(float(measured))

    def _follow(self) -> None:
        """Bring the factors to what was measured, where they are well away from it."""
        moving = self._mean_square > 0
        if not self._lengths[moving].any():
            return
        # Half of the logarithm of a mean square is that of its root. Factors are relative to the
        # mean of the logarithms: so they leave the thresholds of most elements, and the density,
        # about where they were. A tensor that stands still has the least factor.
        exact = np.full(self._lengths.size, -np.inf)
        exact[moving] = np.log2(self._mean_square[moving]) / 2
        exact -= np.average(exact[moving], weights=self._lengths[moving])
        exact = np.clip(exact, -EXPONENT_MAX, EXPONENT_MAX)
        off = np.abs(exact - self._exponents) > HYSTERESIS
        self._exponents[off] = np.rint(exact[off]).astype(np.int64)


def _saved(
    state: Mapping[str, Sequence[float]], name: str, size: int, least: float, most: float
) -> npt.NDArray[np.float64]:
    """Return numbers of a saved state."""
    try:
        numbers = np.array(state[name], np.float64)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CodecError(f"no numbers {name!r} of tensors in the saved state") from None
    if numbers.shape != (size,):
        raise CodecError(f"{name!r} of shape {numbers.shape} in the saved state; it is ({size},)")
    if not ((numbers >= least) & (numbers <= most)).all():
        raise CodecError(f"{name!r} in the saved state; it is {least:g} to {most:g}")
    return numbers
