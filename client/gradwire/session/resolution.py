"""What of a model is finer than the shared parameters can hold: it gets a warning, with the remedy.

The shared parameters are whole numbers of quanta, of 2^-24 unless parameters are large, and travel
as such. So a parameter below half a quantum is 0 for all workers, and one of float64 has the digits
that are left.
"""

import logging
from typing import Final

import numpy as np

from gradwire_codecs import Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout

logger = logging.getLogger("gradwire.session")

NAMED_MAX: Final = 3
"""Parameters that a warning names."""


def warn_of_small(layout: Layout, parameters: Float32Array, replica: Replica) -> None:
    """Warn of tensors of which most that is not 0 is 0 in the run.

    Parameters
    ----------
    layout : Layout
    parameters : ndarray of shape (N,), dtype float32
        Those of the worker that begins the run.
    replica : Replica
        What it begins with.
    """
    lost = list[str]()
    start = 0
    for tensor in layout.tensors:
        span = slice(start, start + tensor.elements)
        start = span.stop
        values = parameters[span]
        there = np.count_nonzero(values)
        if 2 * np.count_nonzero(replica.values[span]) < there:
            lost.append(f"{tensor.name!r} (up to {float(np.abs(values).max()):.2g})")
    if not lost:
        return
    more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
    logger.warning(
        "most of parameter %s%s is 0 from now on: it is smaller than half a quantum, %.2g, and "
        "what workers share is whole quanta. Train it in another unit, such as its logarithm, or "
        "keep a constant as a buffer",
        ", ".join(lost[:NAMED_MAX]),
        more,
        float(replica.quantum) / 2,
    )


def warn_of_doubles(target: object) -> None:
    """Warn of a module that has parameters of float64."""
    parameters = getattr(target, "parameters", None)
    if callable(parameters) and any(str(each.dtype) == "torch.float64" for each in parameters()):
        logger.warning(
            "this model has parameters of float64, and what workers share has the digits of "
            "float32: where others change a parameter, its further digits are lost"
        )
