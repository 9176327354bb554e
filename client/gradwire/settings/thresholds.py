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

CHOICES: Final = (
    "threshold",
    "target_density",
    "density_band",
    "update_bytes",
    "bytes_per_second",
)
"""Settings that say how the threshold is found; one of them at most."""


@dataclass(frozen=True, kw_only=True)
class ThresholdSettings:
    """What a session sends: how its threshold is found, and what is done with the residual."""

    threshold: float | ThresholdPolicy | None = None
    """Size of a sent element: a number keeps it fixed, and an object of `gradwire_codecs` does what
    it does. Without it, it adapts: to `target_density`, `density_band`, `update_bytes` or
    `bytes_per_second`."""

    initial_threshold: float | None = None
    """What a threshold that adapts begins with; None takes it from the first change."""

    target_density: float | None = None
    """Part of all parameters that one update should change; 0.01 where nothing else is said."""

    density_band: tuple[float, float] | None = None
    """The threshold stays while updates change a part of all parameters between these two."""

    update_bytes: float | None = None
    """What one update should take on average."""

    bytes_per_second: float | None = None
    """What the updates of this worker should take together: for a slow line."""

    tensor_thresholds: bool = False
    """Whether each tensor has a threshold of its own, by how much it changes in a step."""

    shake_up_steps: int = 0
    """Every so many steps, one has a much smaller threshold, so that small changes do not wait for
    ever; never with 0."""

    shake_up_divisor: float = 8.0
    """How much smaller it is then."""

    residual_clip: float | None = None
    """Thresholds that an element which is not sent keeps at most; what is above is lost, and
    counted. None loses nothing."""

    clip_steps: int = 5
    """How many steps apart that is done."""

    warm_up_steps: int = 1_000
    """How many of the run's first steps `warm_up_density` and `warm_up_workers` are about."""

    warm_up_density: float | None = None
    """Part of all parameters that an update changes at the beginning of them; it goes over to the
    usual one. None for the usual one from the start."""

    def check_thresholds(self) -> None:
        """Refuse what says two things about the threshold, or cannot be done.

        Raises
        ------
        UsageError
            Which names the settings, and their limits.
        """
        given = [name for name in CHOICES if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)}: only one of them can choose the threshold")
        if self.threshold is not None and self.initial_threshold is not None:
            raise UsageError(
                f"threshold and initial_threshold={self.initial_threshold}: only a threshold that "
                "adapts begins with another one than it ends with"
            )
        initial, band = self.initial_threshold, self.density_band
        if initial is not None and not 0 < initial < float("inf"):
            raise UsageError(f"initial_threshold={initial}; it has to be positive and finite")
        if band is not None and not 0 < band[0] <= band[1] < 1:
            raise UsageError(
                f"density_band={band}; it is two parts in (0, 1), the smaller one first"
            )
        if self.warm_up_steps < 1:
            raise UsageError(f"warm_up_steps={self.warm_up_steps}; it is 1 or more")
        density = self.warm_up_density
        if density is not None and not 0 < density < 1:
            raise UsageError(f"warm_up_density={density}; it has to be in (0, 1)")
        self._check_shake_up_and_clipping()

    def _check_shake_up_and_clipping(self) -> None:
        if self.shake_up_steps < 0 or self.shake_up_steps == 1:
            raise UsageError(f"shake_up_steps={self.shake_up_steps}; it is 2 or more, or 0")
        if not 1 < self.shake_up_divisor < float("inf"):
            raise UsageError(
                f"shake_up_divisor={self.shake_up_divisor}; it has to be above 1 and finite"
            )
        times = self.residual_clip
        if times is not None and not TIMES_MIN <= times < float("inf"):
            raise UsageError(f"residual_clip={times}; it is {TIMES_MIN:g} or more, and finite")
        if self.clip_steps < 1:
            raise UsageError(f"clip_steps={self.clip_steps}; it is 1 or more")

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
