"""Which settings say how the training itself is shared, and what each of them may be."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from gradwire.errors import UsageError

if TYPE_CHECKING:
    from gradwire.settings import Settings

FeedbackName = Literal["local", "shared"]
Feedback: TypeAlias = FeedbackName | float
"""How much of its own residual is in the parameters that a worker computes with: all, nothing, or
this portion."""

FinishResidual = Literal["send", "drop"]
Momentum = Literal["auto", "keep"]
ScaleName = Literal["sum", "mean", "sqrt", "staleness"]
Scale: TypeAlias = ScaleName | float | Callable[[int, float], float]
"""By what a worker's changes are multiplied: a rule, a number, or a function of the number of
workers and the mean staleness."""

SCALE_MAX: Final = 1e3
"""A factor above it is a mistake, and would end in a run that diverges."""


def check_training_settings(settings: "Settings") -> None:
    """Refuse what cannot be done.

    Raises
    ------
    UsageError
        Which names the setting, its value and its limits.
    """
    check_feedback(settings.feedback)
    if settings.finish_residual not in get_args(FinishResidual):
        raise UsageError(f"finish_residual={settings.finish_residual!r}; it is 'send' or 'drop'")
    if settings.momentum not in get_args(Momentum):
        raise UsageError(f"momentum={settings.momentum!r}; it is 'auto' or 'keep'")
    check_scale(settings.scale)
    if settings.buffer_steps < 0:
        raise UsageError(f"buffer_steps={settings.buffer_steps}; it is 0 or more")
    for name in ("warm_up_steps", "staleness_bound", "warm_up_workers"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise UsageError(f"{name}={value}; it is 1 or more")
    density = settings.warm_up_density
    if density is not None and not 0 < density < 1:
        raise UsageError(f"warm_up_density={density}; it has to be in (0, 1)")


def check_feedback(feedback: object) -> None:
    """Refuse what is neither a name nor a portion.

    Raises
    ------
    UsageError
        Which says what it may be.
    """
    if feedback in get_args(FeedbackName):
        return
    number = isinstance(feedback, int | float) and not isinstance(feedback, bool)
    if not (number and 0 < feedback <= 1):  # type: ignore[operator]
        raise UsageError(f"feedback={feedback!r}; it is 'local', 'shared', or a number in (0, 1]")


def portion_of(feedback: Feedback) -> float:
    """Return how much of the residual is in the parameters, 0 to 1."""
    if isinstance(feedback, str):
        return 1.0 if feedback == "local" else 0.0
    return float(feedback)


def check_scale(scale: object) -> None:
    """Refuse what no change can be multiplied by.

    Raises
    ------
    UsageError
        Which says what it may be.
    """
    if isinstance(scale, str):
        if scale not in get_args(ScaleName):
            raise UsageError(
                f"scale={scale!r}; it is 'sum', 'mean', 'sqrt', 'staleness', a number, or a "
                "function of the number of workers and the staleness"
            )
    elif isinstance(scale, int | float) and not isinstance(scale, bool):
        if not 0 < scale <= SCALE_MAX:
            raise UsageError(f"scale={scale}; it has to be above 0 and at most {SCALE_MAX:g}")
    elif not callable(scale):
        raise UsageError(f"scale={scale!r}; it is a name, a number or a function")
