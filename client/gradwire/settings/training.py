"""Settings of how a training is shared and of the threshold, and the types of their values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gradwire.errors import UsageError
from gradwire_codecs import (
    CodecError,
    DensityBand,
    FixedThreshold,
    TargetDensity,
    ThresholdPolicy,
    WarmUp,
)
from gradwire_codecs.policies.density import TARGET_DENSITY
from gradwire_protocol.settings import setting

CHOICES: Final = ("threshold", "target_density", "density_band")
"""Settings that choose the threshold; at most one of them can be given."""

WARM_UP_DENSITY: Final = 0.05
"""Of a first update. With sparse gradients, most elements have not changed by then: if more of them
had to reach the threshold, it would begin near 0."""

Feedback = Literal["local", "shared"]
"""Whether a worker's own residual is in the parameters that it trains."""

FinishResidual = Literal["auto", "send", "drop"]
Momentum = Literal["auto", "keep"]
StalenessBoundName = Literal["auto", "off"]
StalenessBound: TypeAlias = StalenessBoundName | int
"""How many steps a worker may be ahead of the slowest one: a number, ``"off"`` for any number, or
``"auto"`` for a number that follows from measured delays."""

ScaleName = Literal["auto", "sum", "mean", "sqrt", "agreement", "staleness"]
Scale: TypeAlias = ScaleName | float
"""What a worker's changes are multiplied by: a rule, or a number."""

SCALE_MAX: Final = 1e3
"""A larger factor is a mistake: the run would diverge."""


def _is_policy(value: object) -> bool:
    return hasattr(value, "observe")


@dataclass(frozen=True, kw_only=True)
class ThresholdSettings:
    """How a session chooses its threshold."""

    threshold: float | ThresholdPolicy | None = setting(
        None,
        "Size of a sent element: a number is a fixed threshold, an object of `gradwire_codecs` "
        "a policy. By default it adapts: to `target_density` or `density_band`.",
        above=0,
        accepts=_is_policy,
        accepts_text="a threshold policy",
    )

    target_density: float | None = setting(
        None,
        "Fraction of all parameters that one update should change. By default it is in inverse "
        "proportion to the root of the number of workers: 0.0106 with 2, 0.0075 with 4, 0.0053 "
        "with 8.",
        above=0,
        below=1,
    )

    density_band: tuple[float, float] | None = setting(
        None,
        "Two fractions of all parameters; the threshold stays while updates change a fraction "
        "between them.",
    )

    shake_up_steps: int = setting(
        0,
        "One in this many steps has a much smaller threshold, so that small changes do not wait "
        "forever; 0 for none.",
        least=2,
        or_else=(0,),
    )

    warm_up_steps: int = setting(
        200,
        "How many of the run's first steps `warm_up_workers` applies to. Unless a setting chooses "
        "the threshold, updates are denser in these: at first they change 0.05 of all parameters, "
        "and that falls as 1/t in step t to the usual density. With 0, it is the usual one from "
        "the start.",
        least=0,
    )

    def check_thresholds(self) -> None:
        """Refuse settings that contradict each other about the threshold.

        Raises
        ------
        UsageError
            With the names of the settings, and their limits.
        """
        given = [name for name in CHOICES if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)}: only one of them can choose the threshold")
        band = self.density_band
        if band is not None and not 0 < band[0] <= band[1] < 1:
            raise UsageError(
                f"density_band={band}; it has to be two fractions above 0 and below 1, the smaller "
                "one first"
            )

    @property
    def has_usual_threshold(self) -> bool:
        """Whether no setting is about the threshold but `warm_up_steps`."""
        return all(getattr(self, name) is None for name in CHOICES)

    def make_policy(self) -> ThresholdPolicy:
        """Return the threshold policy of these settings: a new one, or the caller's own.

        Raises
        ------
        UsageError
            If the policy does not accept a value.
        """
        try:
            return self._make_policy()
        except CodecError as error:
            raise UsageError(str(error)) from None

    def _make_policy(self) -> ThresholdPolicy:
        if isinstance(self.threshold, int | float):
            return FixedThreshold(float(self.threshold))
        if self.threshold is not None:
            return self.threshold
        if self.density_band is not None:
            return DensityBand(*self.density_band)
        if self.target_density is not None:
            return TargetDensity(self.target_density)
        usual = TargetDensity(TARGET_DENSITY)
        return WarmUp(usual, WARM_UP_DENSITY, self.warm_up_steps) if self.warm_up_steps else usual


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(ThresholdSettings):
    """How the training is shared."""

    feedback: Feedback = setting(
        "local",
        "Where unsent changes are kept: 'local' in the worker's own parameters, 'shared' outside "
        "of them, as in Strom's paper.",
    )

    finish_residual: FinishResidual = setting(
        "auto",
        "What to do with unsent changes at the end: 'send' sends all of them, 'drop' ends with "
        "the shared parameters as they are. 'auto' sends their mean over the workers after a "
        "short run, and less the longer the run was, down to nothing; a single worker sends all.",
    )

    momentum: Momentum = setting(
        "auto",
        "What to do with the momentum of the optimizer that `join` is given: 'auto' lowers it "
        "by what the measured delays add to it, 'keep' leaves it as it is.",
    )

    scale: Scale = setting(
        "auto",
        "What this worker's changes are multiplied by: 'sum' counts them in full, 'mean' "
        "divides by the number of workers, 'sqrt' by its square root, 'agreement' by something "
        "between the two that depends on how far the workers' steps agree, 'staleness' by how "
        "stale updates are. With 'auto' all workers together make the step that DDP makes at the "
        "same learning rate: 'mean' where the optimizer's steps grow with the gradient, as SGD's "
        "do, 'agreement' where they do not, as Adam's, and 'sum' where `join` is given no "
        "optimizer. A number is used as it is.",
        above=0,
        most=SCALE_MAX,
    )

    staleness_bound: StalenessBound = setting(
        "auto",
        "How many steps this worker may be ahead of the slowest one before it waits. With 0, "
        "workers train in lockstep. With 'auto' they do so in their first 32 steps, and later "
        "where updates come late, but do not wait for a worker that is much slower than the rest. "
        "With 'off', no worker ever waits. A worker that makes no step for 10 seconds is not "
        "waited for.",
        least=0,
    )

    warm_up_workers: int | None = setting(
        None,
        "How many workers train during the `warm_up_steps`, while others wait in `join`; None "
        "for all.",
        least=1,
    )

    share_buffers: bool = setting(
        True,
        "Whether the workers share the buffers of a module: running statistics, such as those of "
        "BatchNorm, are averaged, and all others are those of the lowest rank. Otherwise each "
        "worker keeps its own.",
    )

    averaged_buffers: str | tuple[str, ...] = setting(
        "",
        "Names of further buffers to average like running statistics; `*` matches any "
        "characters, as in `('ema.*',)`. In one text, separate names by commas.",
        accepts=_are_names,
        accepts_text="a sequence of texts",
    )

    buffer_steps: int = setting(
        100,
        "How often buffers are shared, in steps; with 0, only when the run is finished.",
        least=0,
    )

    log_histograms_every: int | None = setting(
        None,
        "How often, in steps, the master's page gets histograms of each tensor's parameters and "
        "of what a step changed; None for never.",
        least=1,
    )


def names_in(averaged_buffers: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names in the setting `averaged_buffers`."""
    if isinstance(averaged_buffers, str):
        averaged_buffers = averaged_buffers.split(",")
    return tuple(name.strip() for name in averaged_buffers if name.strip())
