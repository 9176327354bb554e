"""Which threshold policy settings ask for, and which of them contradict each other."""

from dataclasses import dataclass
from typing import Final

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
from gradwire_codecs.feedback.residuals import TIMES_MIN
from gradwire_codecs.policies.density import TARGET_DENSITY
from gradwire_protocol.settings import setting

CHOICES: Final = (
    "threshold",
    "target_density",
    "density_band",
    "update_bytes",
    "bytes_per_second",
)
"""Settings that say how the threshold is found; one of them at most."""


def _is_policy(value: object) -> bool:
    return hasattr(value, "observe")


@dataclass(frozen=True, kw_only=True)
class ThresholdSettings:
    """What a session sends: how its threshold is found, and what is done with the residual."""

    threshold: float | ThresholdPolicy | None = setting(
        None,
        "Size of a sent element: a number keeps it fixed, and an object of `gradwire_codecs` "
        "does what it does. Without it, it adapts: to `target_density`, `density_band`, "
        "`update_bytes` or `bytes_per_second`.",
        above=0,
        accepts=_is_policy,
        accepts_text="a threshold policy",
    )

    initial_threshold: float | None = setting(
        None,
        "What a threshold that adapts begins with; None takes it from the first change.",
        above=0,
    )

    target_density: float | None = setting(
        None,
        "Part of all parameters that one update should change; 0.01 where nothing else is said.",
        above=0,
        below=1,
    )

    density_band: tuple[float, float] | None = setting(
        None, "The threshold stays while updates change a part of all parameters between these two."
    )

    update_bytes: float | None = setting(None, "What one update should take on average.")

    bytes_per_second: float | None = setting(
        None, "What the updates of this worker should take together: for a slow line.", above=0
    )

    shake_up_steps: int = setting(
        0,
        "Every so many steps, one has a much smaller threshold, so that small changes do not "
        "wait for ever; never with 0.",
        least=2,
        or_else=(0,),
    )

    shake_up_divisor: float = setting(8.0, "How much smaller it is then.", above=1)

    residual_clip: float | None = setting(
        None,
        "Thresholds that an element which is not sent keeps at most; what is above is lost, and "
        "counted. None loses nothing.",
        least=TIMES_MIN,
    )

    clip_steps: int = setting(5, "How many steps apart that is done.", least=1)

    warm_up_steps: int = setting(
        1_000,
        "How many of the run's first steps `warm_up_density` and `warm_up_workers` are about.",
        least=1,
    )

    warm_up_density: float | None = setting(
        None,
        "Part of all parameters that an update changes at the beginning of them; it goes over "
        "to the usual one. None for the usual one from the start.",
        above=0,
        below=1,
    )

    def check_thresholds(self) -> None:
        """Refuse what says two things about the threshold.

        Raises
        ------
        UsageError
            Names the settings, and their limits.
        """
        given = [name for name in CHOICES if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)}: only one of them can choose the threshold")
        if self.threshold is not None and self.initial_threshold is not None:
            raise UsageError(
                f"threshold and initial_threshold={self.initial_threshold}: only a threshold that "
                "adapts begins with another one than it ends with"
            )
        band = self.density_band
        if band is not None and not 0 < band[0] <= band[1] < 1:
            raise UsageError(
                f"density_band={band}; it is two parts in (0, 1), the smaller one first"
            )

    def make_policy(self) -> ThresholdPolicy:
        """Return the threshold policy that these settings ask for: a new one, or the caller's own.

        Raises
        ------
        UsageError
            If no policy takes such a value.
        """
        try:
            return self._make_policy()
        except CodecError as error:
            raise UsageError(str(error)) from None

    def _make_policy(self) -> ThresholdPolicy:
        policy = self._make_usual_policy()
        density = self.warm_up_density
        if density is None:
            return policy
        if not isinstance(policy, TargetDensity | DensityBand):
            name = next(name for name in CHOICES if getattr(self, name) is not None)
            raise UsageError(
                f"warm_up_density={density} and {name}: a warm-up goes over to a density, of "
                "target_density or density_band"
            )
        return WarmUp(policy, density, self.warm_up_steps)

    def _make_usual_policy(self) -> ThresholdPolicy:
        initial = self.initial_threshold
        if isinstance(self.threshold, int | float):
            return FixedThreshold(float(self.threshold))
        if self.threshold is not None:
            return self.threshold
        if self.density_band is not None:
            return DensityBand(*self.density_band, initial=initial)
        if self.update_bytes is not None:
            return ByteBudget(update_bytes=self.update_bytes, initial=initial)
        if self.bytes_per_second is not None:
            return ByteBudget(bytes_per_second=self.bytes_per_second, initial=initial)
        target = TARGET_DENSITY if self.target_density is None else self.target_density
        return TargetDensity(target, initial=initial)
