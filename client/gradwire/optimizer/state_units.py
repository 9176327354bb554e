"""What an optimizer keeps, in units that means and roundings suit.

State is averaged as elements of a replica, which are integers, rounded to 8 bits. Squares of
gradients differ by many orders of magnitude within a tensor, so it is their logarithms that are
averaged. A mean of gradients is compared with the root of its squares in each step, so it is
averaged in parts of that root: an error is then one of the step, and not of a gradient that may be
smaller than the error. Everything else is averaged as it is.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array

SQUARES: Final = frozenset(
    {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta", "exp_inf", "step_size"}
)
"""What is never negative: torch's names."""

COMPARED: Final = {
    "exp_avg": (("exp_avg_sq", 0.5), ("exp_inf", 1.0)),
    "grad_avg": (("square_avg", 0.5),),
}
"""Means, and of which other slot which power they are compared with: of the first that there is."""

SQUARE_UNIT: Final = 2.0**-16
"""Of a binary logarithm: relative to the value, 1.1e-5."""

LOGARITHM_MIN: Final = -126.0
"""Of the smallest float32 with all its digits. What is below counts as 0."""

LOGARITHM_MAX: Final = 127.0
"""Above that, what a worker has contributed would be infinite for all."""

RATIO_UNIT: Final = 2.0**-16
"""Of what is compared: parts of a root."""

PLAIN_UNIT: Final = 2.0**-20
"""Of everything else, as of momentum: magnitudes below 128 are expressed, to 9.5e-7."""

NUMBER_UNIT: Final = 2.0**-24
"""Of a number of a tensor that is no number of steps, as NAdam's product of momenta."""

UNITS_MAX: Final = 2**27 - 1
"""Largest magnitude of an element: a run can begin with it."""


def to_units(slots: Mapping[str, Float32Array], name: str) -> Float32Array:
    """Return a slot in units: whole numbers, and NaN where it is NaN or infinite.

    Parameters
    ----------
    slots : mapping of str to ndarray of shape (n,), dtype float32
        All slots.
    """
    values = slots[name]
    units: Float32Array
    with np.errstate(divide="ignore", invalid="ignore"):
        if name in SQUARES:
            units = (np.log2(values) - np.float32(LOGARITHM_MIN)) / np.float32(SQUARE_UNIT)
            np.maximum(units, 0, out=units)
        elif (root := _root(slots, name)) is not None:
            units = np.divide(values, root, out=np.zeros_like(values), where=root > 0)
            units /= np.float32(RATIO_UNIT)
        else:
            units = values / np.float32(PLAIN_UNIT)
    np.clip(units, -UNITS_MAX, UNITS_MAX, out=units)
    np.rint(units, out=units)
    units[~np.isfinite(values)] = np.nan
    return units


def from_units(units: Mapping[str, Float32Array], name: str) -> Float32Array:
    """Return what `to_units` has made units of, as far as they tell.

    Parameters
    ----------
    units : mapping of str to ndarray of shape (n,), dtype float32
        Of all slots.
    """
    given = units[name]
    values: Float32Array
    if name in SQUARES:
        logarithm = given * np.float32(SQUARE_UNIT) + np.float32(LOGARITHM_MIN)
        values = np.exp2(np.minimum(logarithm, np.float32(LOGARITHM_MAX)))
        values[given <= 0] = 0
    elif _compared_with(units, name) is not None:
        squares = {key: from_units(units, key) for key in units if key in SQUARES}
        root = _root(squares, name)
        assert root is not None
        values = given * np.float32(RATIO_UNIT) * root
    else:
        values = given * np.float32(PLAIN_UNIT)
    return values


def _root(slots: Mapping[str, Float32Array], name: str) -> Float32Array | None:
    """Return what a slot is compared with; None for one that is not compared."""
    found = _compared_with(slots, name)
    if found is None:
        return None
    other, power = found
    return np.sqrt(slots[other]) if power < 1 else slots[other]


def _compared_with(slots: Mapping[str, object], name: str) -> tuple[str, float] | None:
    return next((each for each in COMPARED.get(name, ()) if each[0] in slots), None)
