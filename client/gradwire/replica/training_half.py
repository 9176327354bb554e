"""`TrainingHalf`: what the parts of a worker's training half have in common.

`Push`, `Contributing` and the others are each made with it, and know each other by it alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradwire.errors import ConnectionLostError, DivergedError
from gradwire.optimizer.delays import Delays
from gradwire.replica.compensation import Compensation
from gradwire.replica.divergence import Divergence
from gradwire.replica.outbox import Outbox
from gradwire.replica.pull import Pull
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.replica.thresholds import Thresholds
from gradwire.replica.waits import Procedure, until
from gradwire.settings.settings import Settings
from gradwire.target.parameters import Parameters
from gradwire.target.with_state import Averaged
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_codecs import Feedback, LocalFeedback, Replica
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.modes.mode import model_of


@dataclass(eq=False, kw_only=True)
class TrainingHalf:
    """The parameters of one worker, what it knows of them, and its way to the network half."""

    settings: Settings
    parameters: Parameters
    feedback: Feedback
    """Over the vector of `parameters`. Its replica contains what the master's WELCOME says."""
    membership: Membership
    worker: Worker
    clock: Callable[[], float]
    """Returns seconds since any fixed moment."""
    brought_digest: str | None = None
    """Digest of the run's parameters, if this worker brought the same ones."""
    averaged: Averaged | None = None
    """The optimizer's state, where the mode averages it."""
    observes: bool = False
    """Whether it only receives, and trains nothing."""

    def __post_init__(self) -> None:
        settings, membership = self.settings, self.membership
        assert membership.welcome is not None
        self.welcome: Welcome = membership.welcome
        self.is_paused = False
        """Whether no update is applied to the parameters."""
        self.tally = Tally()
        self.delays = Delays()
        self.shared = SharedParameters(
            settings=settings,
            parameters=self.parameters,
            feedback=self.feedback,
            welcome=self.welcome,
            own_updates=self.worker.own_updates,
            read_at=membership.updates_received,
            clock=self.clock,
        )
        self.sends_from = self.feedback
        """The feedback with the residual: over parameters, or over gradients."""
        if self.welcome.mode.optimizer is not None:
            self.sends_from = _gradient_feedback(self.welcome)
        self.thresholds = Thresholds(settings, self.sends_from, clock=self.clock)
        noted = self.shared, membership, self.delays, self.tally
        self.compensation = Compensation(settings.scale, *noted)
        self.divergence = Divergence(settings.scale, *noted)
        self.outbox = Outbox(self.shared, membership, self.worker, self.tally)
        self.applying = Pull(
            self.shared, membership, self.worker, self.delays, self.tally, self.clock
        )

    def until(
        self, condition: Callable[[], bool], seconds: float, purpose: Callable[[], str]
    ) -> Procedure[bool]:
        """Wait for a condition, at most for so many seconds; return whether it holds.

        A closed membership ends the wait. `purpose` is that of `Wait`.
        """
        return until(self.membership, condition, self.clock() + seconds, self.clock, purpose)

    def check_connected(self) -> None:
        """Raise the error that ended the membership, if one did.

        That is a `ConnectionLostError`, a `ProtocolError` or a `DivergedError`.

        If the master announced its end, all that has come is applied first.
        """
        membership = self.membership
        if membership.closed:
            if membership.stopping is not None and not self.is_paused:
                self.applying.pull()  # the master has sent everything before
            if isinstance(membership.error, DivergedError):
                raise self.divergence.error(str(membership.error))
            raise membership.error or ConnectionLostError("the connection is closed")


def _gradient_feedback(welcome: Welcome) -> Feedback:
    """Return a feedback over gradients, instead of parameters; its replica stays zero."""
    optimizer, elements = welcome.mode.optimizer, model_of(welcome.layout).elements
    assert optimizer is not None
    replica = Replica.zeros(elements, optimizer.gradient_exponent)
    return LocalFeedback(np.zeros(elements, np.float32), replica)
