"""Which threshold policy settings ask for, and which of them contradict each other."""

from typing import TYPE_CHECKING, Final

from gradwire.errors import UsageError
from gradwire_codecs import (
    ByteBudget,
    CodecError,
    DensityBand,
    FixedThreshold,
    TargetDensity,
    ThresholdPolicy,
    WarmUp,
)
from gradwire_codecs.policies.density import TARGET_DENSITY
from gradwire_codecs.residuals import TIMES_MIN

if TYPE_CHECKING:
    from gradwire.settings import Settings

CHOICES: Final = (
    "threshold",
    "target_density",
    "density_band",
    "update_bytes",
    "bytes_per_second",
)
"""Settings that say how the threshold is found; one of them at most."""


def check_threshold_settings(settings: "Settings") -> None:
    """Refuse what says two things about the threshold, or cannot be done.

    Raises
    ------
    UsageError
        Which names the settings, and their limits.
    """
    given = [name for name in CHOICES if getattr(settings, name) is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)}: only one of them can choose the threshold")
    if settings.threshold is not None and settings.initial_threshold is not None:
        raise UsageError(
            f"threshold and initial_threshold={settings.initial_threshold}: only a threshold that "
            "adapts begins with another one than it ends with"
        )
    initial, band = settings.initial_threshold, settings.density_band
    if initial is not None and not 0 < initial < float("inf"):
        raise UsageError(f"initial_threshold={initial}; it has to be positive and finite")
    if band is not None and not 0 < band[0] <= band[1] < 1:
        raise UsageError(f"density_band={band}; it is two parts in (0, 1), the smaller one first")
    _check_shake_up_and_clipping(settings)


def _check_shake_up_and_clipping(settings: "Settings") -> None:
    if settings.shake_up_steps < 0 or settings.shake_up_steps == 1:
        raise UsageError(f"shake_up_steps={settings.shake_up_steps}; it is 2 or more, or 0")
    if not 1 < settings.shake_up_divisor < float("inf"):
        raise UsageError(
            f"shake_up_divisor={settings.shake_up_divisor}; it has to be above 1 and finite"
        )
    times = settings.residual_clip
    if times is not None and not TIMES_MIN <= times < float("inf"):
        raise UsageError(f"residual_clip={times}; it is {TIMES_MIN:g} or more, and finite")
    if settings.clip_steps < 1:
        raise UsageError(f"clip_steps={settings.clip_steps}; it is 1 or more")


def policy_of(settings: "Settings") -> ThresholdPolicy:
    """Return the policy that settings ask for: a new one, or the caller's own.

    Raises
    ------
    UsageError
        If no policy takes such a value.
    """
    try:
        return _policy_of(settings)
    except CodecError as error:
        raise UsageError(str(error)) from None


def _policy_of(settings: "Settings") -> ThresholdPolicy:
    policy = _usual_policy_of(settings)
    density = settings.warm_up_density
    if density is None:
        return policy
    if not isinstance(policy, TargetDensity | DensityBand):
        name = next(name for name in CHOICES if getattr(settings, name) is not None)
        raise UsageError(
            f"warm_up_density={density} and {name}: a warm-up goes over to a density, of "
            "target_density or density_band"
        )
    return WarmUp(policy, density, settings.warm_up_steps)


def _usual_policy_of(settings: "Settings") -> ThresholdPolicy:
    initial = settings.initial_threshold
    if isinstance(settings.threshold, int | float):
        return FixedThreshold(float(settings.threshold))
    if settings.threshold is not None:
        return settings.threshold
    if settings.density_band is not None:
        return DensityBand(*settings.density_band, initial=initial)
    if settings.update_bytes is not None:
        return ByteBudget(update_bytes=settings.update_bytes, initial=initial)
    if settings.bytes_per_second is not None:
        return ByteBudget(bytes_per_second=settings.bytes_per_second, initial=initial)
    target = TARGET_DENSITY if settings.target_density is None else settings.target_density
    return TargetDensity(target, initial=initial)
