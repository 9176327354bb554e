"""`FixedThreshold`: a threshold that never changes."""

from dataclasses import dataclass

from gradwire_codecs.policies.policy import (
    Observation,
    PolicyState,
    check_positive,
    saved_positive,
)


@dataclass(slots=True)
class FixedThreshold:
    """A threshold that never changes, as in Strom's paper."""

    threshold: float
    """In units of the parameters; positive."""

    def __post_init__(self) -> None:
        """Refuse a threshold that is not positive and finite."""
        check_positive("threshold", self.threshold)

    def first_density(self, elements: int) -> float:
        """Return any density: no first threshold has to be found."""
        return 0.01

    def start(self, threshold: float) -> None:
        """Do nothing: the threshold is fixed."""

    def observe(self, observation: Observation) -> None:
        """Do nothing: the threshold is fixed."""

    def state(self) -> PolicyState:
        """Return the threshold."""
        return {"threshold": self.threshold}

    def restore(self, state: PolicyState) -> None:
        """Continue with a saved threshold."""
        self.threshold = saved_positive(state, "threshold")
