"""Which settings say how the training itself is shared, and what each of them may be."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gradwire.settings.thresholds import ThresholdSettings
from gradwire_protocol.settings import setting

FeedbackName = Literal["local", "shared"]
Feedback: TypeAlias = FeedbackName | float
"""How much of its own residual is in the parameters that a worker computes with: all, nothing, or
this portion."""

FinishResidual = Literal["auto", "send", "drop"]
Momentum = Literal["auto", "keep"]
StalenessBoundName = Literal["auto", "off"]
StalenessBound: TypeAlias = StalenessBoundName | int
"""How many steps a worker may be ahead of the slowest one: a number, any number, or whatever what
is measured asks for."""

ScaleName = Literal["auto", "sum", "mean", "sqrt", "staleness"]
Scale: TypeAlias = ScaleName | float | Callable[[int, float], float]
"""By what a worker's changes are multiplied: a rule, a number, or a function of the number of
workers and the mean staleness."""

SCALE_MAX: Final = 1e3
"""A factor above it is a mistake, and would end in a run that diverges."""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(ThresholdSettings):
    """How the training is shared."""

    feedback: Feedback = setting(
        "local",
        "Where unsent changes wait: 'local' in the worker's own parameters, 'shared' apart from "
        "them, as in Strom's paper. Of a number from 0 to 1, that portion is in the parameters.",
        above=0,
        most=1,
    )

    finish_residual: FinishResidual = setting(
        "auto",
        "What to do with unsent changes at the end: 'send' sends all of them, 'drop' ends with "
        "the shared parameters as they are. 'auto' sends their mean over the workers in a short "
        "run, of which much is not sent yet, and less the longer it was, down to nothing; a "
        "worker alone sends all.",
    )

    momentum: Momentum = setting(
        "auto",
        "What to do with the momentum of the optimizer that `join` is given: 'auto' lowers it "
        "by what the measured delays add to it, 'keep' leaves it as it is.",
    )

    scale: Scale = setting(
        "auto",
        "What this worker's changes are multiplied by: 'sum' counts them in full, 'mean' "
        "divides by the number of workers, 'sqrt' by its square root, 'staleness' by how stale "
        "updates are. 'auto' takes what all workers together need for the step that DDP makes at "
        "the same learning rate: 'mean' where the optimizer's steps grow with the gradient, as "
        "SGD's, 'sqrt' where they do not, as Adam's, and 'sum' where `join` is given no "
        "optimizer. A number is taken as it is; a function gets the number of workers and the "
        "mean staleness.",
        above=0,
        most=SCALE_MAX,
        accepts=callable,
        accepts_text="a function",
    )

    staleness_bound: StalenessBound = setting(
        "auto",
        "How many steps this worker may be ahead of the slowest one; further ones wait for it. "
        "With 0 workers go in lockstep. With 'auto' none waits until updates come late; then they "
        "go in lockstep, but leave out any that is much slower than the rest. With 'off' none "
        "ever waits.",
        least=0,
    )

    staleness_timeout_seconds: float = setting(
        10.0,
        "How long a step waits for a worker that makes none; it is then not waited for until it "
        "does. With `staleness_bound='auto'` it waits for as long as 20 steps take, but at most "
        "for this, or 3 steps where these take longer.",
        above=0,
    )

    warm_up_workers: int | None = setting(
        None,
        "How many workers train during the `warm_up_steps`, while others wait in `join`; None "
        "for all.",
        least=1,
    )

    share_buffers: bool = setting(
        True,
        "Whether buffers of a module, such as the running statistics of BatchNorm, are averaged "
        "among the workers; each keeps its own otherwise.",
    )

    buffer_steps: int = setting(
        100,
        "How many steps apart they are averaged; with 0, only when the run is finished.",
        least=0,
    )

    share_optimizer_state: bool = setting(
        False,
        "Whether a worker that joins later asks another one for the state of its optimizer, and "
        "gives its own to those who ask.",
    )


def portion_of(feedback: Feedback) -> float:
    """Return how much of the residual is in the parameters, 0 to 1."""
    if isinstance(feedback, str):
        return 1.0 if feedback == "local" else 0.0
    return float(feedback)
