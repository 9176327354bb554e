"""`Sharing`: a worker's part in the shared parameters, as it is put together.

::

    Push ──▶ Outbox ──▶ network thread ──▶ inbox ──▶ Pull
       │ Thresholds, Compensation ◀── Delays ◀─────────────┤
       └─────────────▶ SharedParameters ◀──────────────────┘

`Push` encodes what training has changed, and `Outbox` hands it over. `Pull` adds what peers
have sent. Both change the same `SharedParameters`, and all of it belongs to the training thread.
`Compensation` says what follows from how late changes come, and `CheckpointState` is what a
script's checkpoint holds of all this.
"""

from time import perf_counter

from gradwire.optimizer.delays import Delays
from gradwire.replica.checkpoint_state import CheckpointState
from gradwire.replica.compensation import Compensation
from gradwire.replica.outbox import Outbox
from gradwire.replica.prior_residual import PriorResidual
from gradwire.replica.pull import Pull
from gradwire.replica.push import Push
from gradwire.replica.scaled_change import ScaledChange
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.replica.thresholds import Thresholds
from gradwire.settings.settings import Settings
from gradwire.target.parameters import Parameters
from gradwire.threads.membership import Membership
from gradwire.threads.network import NetworkThread
from gradwire.worker.worker import Worker
from gradwire_codecs import Feedback


class Sharing:
    """The objects by which one worker sends and applies.

    Parameters
    ----------
    settings : Settings
    parameters : Parameters
    feedback : Feedback
        Over the vector of `parameters`, with a replica that contains what the master's WELCOME
        says.
    membership : Membership
        Whose inbox is emptied.
    network : NetworkThread
        Which encoded updates are given to.
    prior_residual : PriorResidual, optional
        What our own parameters were to the run; nothing, unless told otherwise.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        parameters: Parameters,
        feedback: Feedback,
        membership: Membership,
        network: NetworkThread[Worker],
        prior_residual: PriorResidual | None = None,
    ) -> None:
        welcome = membership.welcome
        assert welcome is not None
        self.tally = Tally()
        self.delays = Delays()
        self.shared = SharedParameters(
            settings=settings,
            parameters=parameters,
            feedback=feedback,
            welcome=welcome,
            read_at=membership.updates_received,
        )
        self.thresholds = Thresholds(settings, feedback, welcome.layout, clock=perf_counter)
        self.note_run_steps()
        self.compensation = Compensation(
            settings.scale, self.shared, membership, self.delays, self.tally
        )
        self.outbox = Outbox(self.shared, membership, network, self.tally)
        self.sending = Push(
            settings=settings,
            shared=self.shared,
            membership=membership,
            thresholds=self.thresholds,
            compensation=self.compensation,
            outbox=self.outbox,
            tally=self.tally,
        )
        self.applying = Pull(self.shared, membership, network, self.delays, self.tally)
        self.state = CheckpointState(
            settings=settings,
            shared=self.shared,
            thresholds=self.thresholds,
            sending=self.sending,
            prior_residual=prior_residual or PriorResidual(settings.feedback, None),
            tally=self.tally,
        )

    def note_run_steps(self) -> None:
        """Take note of how many steps the run has made, for a warm-up that others have begun.

        Those are as many as the worker with most updates has sent.
        """
        self.thresholds.note_run_steps(max(self.shared.versions.values()))

    def scale_changes(self) -> None:
        """Multiply what the target changes by from now on: no learning rate does it."""
        self.shared.scaled_change = ScaledChange(
            self.shared.feedback, self.compensation.parameter_factor
        )
