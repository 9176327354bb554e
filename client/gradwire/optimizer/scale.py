"""What a worker's changes are multiplied by, so that many workers together do not go too far.

With the scale "sum" the changes of all W workers count in full, as Strom's and Deeplearning4j's: W
steps are made for one of a single worker. "mean" makes their sum the mean, which for SGD is exactly
the step of one process with the batch of all of them. "sqrt" is between the two: what sums of
independent noise grow by, and what optimizers need that make all steps of one size, as Adam does.
"auto" is "mean" or "sqrt", by the kind of the optimizer: see `torch_scale`.
"staleness" divides by how stale the worker's own updates are, in updates of others: W. Zhang,
S. Gupta, X. Lian and J. Liu, "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016.
"""

import math

from gradwire.errors import UsageError
from gradwire.settings.training import SCALE_MAX, Scale


def scale_factor(scale: Scale, world_size: float, staleness: float) -> float:
    """Return what this worker's next change is multiplied by.

    Parameters
    ----------
    scale : str, float or callable
        The setting of that name, which was checked.
    world_size : float
        How many workers take part now; for a function of the user's, a whole number.
    staleness : float
        Mean staleness of this worker's updates, in updates of others.

    Raises
    ------
    UsageError
        If a function returns what no change can be multiplied by.
    """
    match scale:
        case "sum" | "auto":  # without an optimizer, nobody knows what steps are made
            return 1.0
        case "mean":
            return 1.0 / max(world_size, 1)
        case "sqrt":
            return 1.0 / math.sqrt(max(world_size, 1))
        case "staleness":
            return 1.0 / max(staleness, 1.0)
    if not callable(scale):
        return float(scale)
    return _checked(scale(int(world_size), staleness), int(world_size), staleness)


def varies(scale: Scale) -> bool:
    """Return whether changes may be multiplied by anything but 1."""
    return scale not in ("auto", "sum", 1)


def _checked(result: object, world_size: int, staleness: float) -> float:
    try:
        factor = float(result)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        factor = math.nan
    if not 0.0 < factor <= SCALE_MAX:
        raise UsageError(
            f"scale({world_size}, {staleness:g}) returned {result!r}; it has to be a number above "
            f"0 and at most {SCALE_MAX:g}"
        )
    return factor
