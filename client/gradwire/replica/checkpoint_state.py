"""`CheckpointState`: what a session adds to a script's checkpoint, and restores from one."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from gradwire.errors import UsageError
from gradwire.replica.prior_residual import PriorResidual
from gradwire.replica.push import Push
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.replica.thresholds import Thresholds
from gradwire.settings.settings import Settings
from gradwire_codecs import Feedback
from gradwire_codecs.arrays import describe
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_protocol.settings import declared_settings

STATE_VERSION: Final = 1

SHARDS: Final = "shards"
"""Key of the states of the parts that several masters have."""


def states_of_parts(state: Mapping[str, Any], sizes: Sequence[int]) -> list[Mapping[str, Any]]:
    """Return a saved state as those of parts, whichever masters had parts when it was saved.

    Where it is cut in another way, a part goes on with the threshold policy of the one that had its
    middle. Raises `UsageError` if the state is of another number of parameters, or is none.

    Parameters
    ----------
    sizes : sequence of int
        Elements of each part.
    """
    states = state.get(SHARDS, [state])
    if not isinstance(states, Sequence) or not all(isinstance(s, Mapping) for s in states):
        raise UsageError(
            f"the saved state has {describe(states)} where the states of the parts should be that "
            "several masters had"
        )
    try:
        residuals = [np.asarray(each["residual"]).reshape(-1) for each in states]
    except KeyError as error:
        raise UsageError(f"the saved state has no {error}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the saved state does not fit: {error}") from None
    if [len(each) for each in residuals] == list(sizes):
        return list(states)
    total, expected = sum(map(len, residuals)), sum(sizes)
    if total != expected:
        raise UsageError(f"the saved state is of {total} parameters; this session has {expected}")
    residual = np.concatenate(residuals)
    stops = list(accumulate(map(len, residuals)))
    cut: list[Mapping[str, Any]] = []
    for start, stop in pairwise(accumulate(sizes, initial=0)):
        middle = (start + stop - 1) // 2
        closest = states[next(i for i, end in enumerate(stops) if middle < end)]
        # The digest was of other elements: it names no parameters of this session.
        cut.append({**closest, "residual": residual[start:stop], "digest": "", "versions": {}})
    return cut


class CheckpointState:
    """Residual, threshold policy and versions of one worker."""

    def __init__(
        self,
        *,
        settings: Settings,
        shared: SharedParameters,
        feedback: Feedback,
        thresholds: Thresholds,
        sending: Push,
        prior_residual: PriorResidual,
        tally: Tally,
    ) -> None:
        self._settings = settings
        self._shared = shared
        self._feedback = feedback
        """The one with the residual."""
        self._thresholds = thresholds
        self._sending = sending
        self._prior_residual = prior_residual
        self._tally = tally

    def save(self) -> dict[str, Any]:
        """Return residual, threshold policy and versions."""
        shared = self._shared
        shared.parameters.gather()
        return {
            "version": STATE_VERSION,
            "run": shared.run,
            "feedback": self._settings.feedback,
            "digest": f"{shared.feedback.replica.digest():016x}",
            "residual": shared.parameters.like_target(self._feedback.residual()),
            **self._thresholds.state(),
            "versions": dict(shared.versions),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore residual and threshold policy, or raise `UsageError` and change nothing."""
        version = state.get("version")
        if not isinstance(version, int) or version != STATE_VERSION:  # `!=` of an array is an array
            raise UsageError(
                f"the saved state has version {version!r}; this gradwire reads {STATE_VERSION}"
            )
        shared = self._shared
        model = model_of(shared.parameters.layout).elements
        if SHARDS in state:
            [state] = states_of_parts(state, [model])
        try:
            residual = np.asarray(state["residual"])
            if residual.shape == (model,):  # what is behind the parameters has none
                left = len(self._feedback.replica) - model
                residual = np.concatenate((residual, np.zeros(left, residual.dtype)))
            self._feedback.check_residual(residual)
            feedback = state.get("feedback", self._settings.feedback)
            declared_settings(Settings)["feedback"].check(feedback)
            self._thresholds.restore(state)
            shared.parameters.gather()
            if not self._tally.steps:
                residual = self._prior_residual.unshared_part(residual, state)
            self._feedback.restore_residual(residual)
            if shared.scaled_change is not None:
                shared.scaled_change.note()
        except KeyError as error:
            raise UsageError(f"the saved state has no {error}") from None
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"the saved state does not fit: {error}") from None
        self._sending.due = True
        shared.parameters.scatter()
