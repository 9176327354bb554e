"""Settings of the threshold: the policy that they choose, and which of them exclude each other."""

from dataclasses import dataclass
from typing import Final

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
        "for ever; 0 for none.",
        least=2,
        or_else=(0,),
    )

    warm_up_steps: int = setting(
        200,
        "How many of the run's first steps `warm_up_workers` applies to. Where no setting is about "
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
