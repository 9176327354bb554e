"""Which settings say how the training itself is shared, and what each of them may be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from gradwire.errors import UsageError
from gradwire.settings.thresholds import ThresholdSettings

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


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(ThresholdSettings):
    """How the training is shared."""

    feedback: Feedback = "local"
    """Where what is not sent waits: ``"local"``: in the worker's own parameters, ``"shared"``:
    apart from them, as in Strom's paper. Of a number from 0 to 1, that portion is in them."""

    finish_residual: FinishResidual = "send"
    """What becomes at the end of what is not sent yet: ``"send"`` sends all of it, ``"drop"`` ends
    with the shared parameters as they are."""

    momentum: Momentum = "auto"
    """What becomes of the momentum of an optimizer that `join` is given: ``"auto"`` lowers it by
    what the measured delays add to it, ``"keep"`` leaves it as it is."""

    scale: Scale = "sum"
    """What this worker's changes are multiplied by: ``"sum"`` counts them in full, ``"mean"``
    divides by the number of workers, ``"sqrt"`` by its square root, ``"staleness"`` by how stale
    updates are. A number is taken as it is; a function gets the number of workers and the mean
    staleness."""

    staleness_bound: int | None = None
    """How many steps this worker may be ahead of the slowest one; further ones wait for it. None
    never waits."""

    staleness_timeout_seconds: float = 10.0
    """How long a step waits for a worker that makes none; it is then not waited for until it
    does."""

    warm_up_workers: int | None = None
    """How many workers train during the `warm_up_steps`, while others wait in `join`; None for
    all."""

    share_buffers: bool = True
    """Whether buffers of a module, such as the running statistics of BatchNorm, are averaged among
    the workers; each keeps its own otherwise."""

    buffer_steps: int = 100
    """How many steps apart they are averaged; with 0, only when the run is finished."""

    share_optimizer_state: bool = False
    """Whether a worker that joins later asks another one for the state of its optimizer, and gives
    its own to those who ask."""

    def check_training(self) -> None:
        """Refuse what cannot be done.

        Raises
        ------
        UsageError
            Which names the setting, its value and its limits.
        """
        check_feedback(self.feedback)
        if self.finish_residual not in get_args(FinishResidual):
            raise UsageError(f"finish_residual={self.finish_residual!r}; it is 'send' or 'drop'")
        if self.momentum not in get_args(Momentum):
            raise UsageError(f"momentum={self.momentum!r}; it is 'auto' or 'keep'")
        check_scale(self.scale)
        if self.buffer_steps < 0:
            raise UsageError(f"buffer_steps={self.buffer_steps}; it is 0 or more")
        for name in ("staleness_bound", "warm_up_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}; it is 1 or more")


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
