"""`SharedParameters`: what a worker holds of the shared parameters, and which updates are in it.

It belongs to the training half of a worker, and so do the parameters: they change in `Push`, `Pull`
and `CheckpointState`, and at no other time but one. While no step may come for long, the replica is
lent to the network thread: see `Pull.lent`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Lock

from gradwire.replica.repair import Repair
from gradwire.replica.scaled_change import ScaledChange
from gradwire.settings.settings import Settings
from gradwire.target.named_errors import named_errors
from gradwire.target.parameters import Parameters
from gradwire.worker.update_log import OwnUpdateLog
from gradwire_codecs import Feedback
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.admission import Welcome


class SharedParameters:
    """Parameters and replica of one worker, and what both of its halves know of them.

    Parameters
    ----------
    settings : Settings
    parameters : Parameters
    feedback : Feedback
        Over the vector of `parameters`, with a replica that contains what `welcome` says.
    welcome : Welcome
    own_updates : OwnUpdateLog
        Those at least that not everyone has.
    read_at : int
        How many updates have come before the parameters are read for the first time.
    clock : callable
        Returns seconds, from any beginning.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        parameters: Parameters,
        feedback: Feedback,
        welcome: Welcome,
        own_updates: OwnUpdateLog,
        read_at: int,
        clock: Callable[[], float],
    ) -> None:
        self.parameters = parameters
        self.feedback = feedback
        self.run = welcome.run
        self.rank = welcome.rank
        self.quantum = float(feedback.replica.quantum)
        """Resolution of the shared parameters."""
        self.versions = {**welcome.versions, self.rank: welcome.sequence}
        """What the parameters contain, own updates included."""
        self.changing = Lock()
        """Held while the replica changes, or is read by another thread."""
        self.repair = Repair(
            feedback,
            self.rank,
            self.versions,
            own_updates,
            welcome.layout,
            seconds=settings.digest_seconds,
            clock=clock,
        )
        self.read_at = read_at
        """How many updates had come when the parameters were read that are being trained."""
        self.scaled_change: ScaledChange | None = None
        """What multiplies changes, where the optimizer's learning rate does not."""
        self.named_errors: Callable[[], AbstractContextManager[None]] = partial(
            named_errors, welcome.layout, self.quantum
        )

    def digest(self) -> int:
        """Return 64 bits that are the same for all workers with the same updates applied."""
        return self.feedback.replica.digest()

    def settle(self) -> None:
        """Set the parameters to the shared ones; what was not sent is dropped."""
        self.feedback.drop_residual()
        self.parameters.scatter()

    def take_residual_out(self) -> Float32Array:
        """Set the parameters to the shared ones; return the residual, shape (N,)."""
        self.parameters.gather()
        residual = self.feedback.residual()
        with self.undisturbed():
            self.settle()
        return residual

    def put_residual_back(self, residual: Float32Array) -> None:
        """Add what was taken out to what was trained since then."""
        self.parameters.gather()
        residual += self.feedback.residual()
        with self.undisturbed():
            self.feedback.restore_residual(residual)
        self.parameters.scatter()

    def undisturbed(self) -> AbstractContextManager[None]:
        """Let what is done to the residual in the block not be taken for training."""
        return nullcontext() if self.scaled_change is None else self.scaled_change.undisturbed()

    def close(self) -> None:
        """End the codec's threads."""
        self.feedback.close()
