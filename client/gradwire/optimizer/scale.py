"""The factor of a worker's changes, so that many workers together do not step too far.

- "sum": the changes of all W workers count in full, as with Strom and Deeplearning4j. Together they
  make W steps where a single worker makes one.
- "mean": their sum becomes the mean. For SGD this is exactly the step of one process with the batch
  of all workers.
- "sqrt": between the two. Sums of independent noise grow by √W, and optimizers that make all steps
  of one size, as Adam does, need this.
- "agreement": between "sqrt" and "mean", by how far the steps of the workers agree: `agreement` has
  the rule.
- "auto": "mean" or "agreement", by the kind of the optimizer; see `torch_scale`.
- "staleness": divides by the staleness of the worker's own updates, in updates of others (W. Zhang,
  S. Gupta, X. Lian and J. Liu, "Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI
  2016).
"""

import math

from gradwire.errors import UsageError
from gradwire.settings.training import SCALE_MAX, Scale


def scale_factor(
    scale: Scale, world_size: float, staleness: float, agreement: float = 0.0
) -> float:
    """Return the factor of this worker's next change.

    Parameters
    ----------
    scale : str, float or callable
        The setting of that name, already checked.
    world_size : float
        Number of workers; a whole number where `scale` is a function.
    staleness : float
        Mean staleness of this worker's updates, in updates of others.
    agreement : float
        How far the workers' steps agree, 0 to 1.

    Raises
    ------
    UsageError
        If the function returns anything but a number above 0 and at most `SCALE_MAX`.
    """
    match scale:
        case "sum" | "auto":  # "auto" without an optimizer: its kind is unknown
            return 1.0
        case "mean":
            return 1.0 / max(world_size, 1)
        case "sqrt":
            return 1.0 / math.sqrt(max(world_size, 1))
        case "agreement":
            workers = max(world_size, 1)
            return 1.0 / math.sqrt(workers * (1.0 + (workers - 1.0) * agreement))
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
