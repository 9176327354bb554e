"""`SharedParameters`: a worker's parameters and replica, and which updates they contain.

They belong to the training half of a worker. They change in `Push`, `Pull` and `CheckpointState`,
and at no other time but one: while no step may come for long, the network thread borrows the
replica (see `Pull.lend`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from gradwire.errors import UsageError
from gradwire.replica.repair import Repair
from gradwire.replica.scaled_change import ScaledChange
from gradwire.settings.settings import Settings
from gradwire.target.parameters import Parameters, named_errors
from gradwire.worker.update_log import OwnUpdateLog
from gradwire_codecs import Feedback, check_finite
from gradwire_codecs.arrays import Float32Array, describe
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.fields import raise_to


class SharedParameters:
    """Parameters and replica of one worker.

    Parameters
    ----------
    feedback : Feedback
        Over the vector of `parameters`, with a replica that contains what `welcome` says.
    own_updates : OwnUpdateLog
        Own updates, at least those that some worker lacks.
    read_at : int
        Updates received before the parameters are read for the first time.
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
        """Value of one unit of the replica."""
        self.versions = {**welcome.versions, self.rank: welcome.sequence}
        """By rank: the last update that the parameters contain, own ones included."""
        self.position = welcome.place.position
        """Up to where they contain the master's log."""
        self.accepted = welcome.sequence
        """The last own update that the log has up to there."""
        self.has_rounds = welcome.mode.has_rounds
        """Whether own updates are contributions, which the replica contains as part of a result."""
        self.results: deque[list[bytes]] = deque(maxlen=welcome.mode.results_kept)
        """The encoded updates of the last results that `Contributing` has not looked at; only where
        a look ahead follows from them."""
        self.misses_results = False
        """Whether there were others: blocks of a replica, or a sum, contain them."""
        self._partial: list[bytes] | None = [] if welcome.mode.has_outer_step else None
        self.contained = welcome.sequence
        """In rounds, the last own update that is in a result."""
        self.changing = Lock()
        """Held while the replica changes, or while another thread reads it."""
        self.repair = Repair(
            feedback,
            self.rank,
            self.versions,
            OwnUpdateLog() if self.has_rounds else own_updates,
            welcome.layout,
            clock=clock,
        )
        self.read_at = read_at
        """Updates received when the parameters were read that are being trained."""
        self.scaled_change: ScaledChange | None = None
        """What multiplies changes, where the optimizer's learning rate does not."""
        self.named_errors: Callable[[], AbstractContextManager[None]] = partial(
            named_errors, welcome.layout, self.quantum
        )

    def note(self, versions: Mapping[int, int]) -> None:
        """Note which updates of others were applied; in rounds, which own ones are in them."""
        self.contained = max(versions.get(self.rank, 0), self.contained)
        raise_to(self.versions, {r: s for r, s in versions.items() if r != self.rank})

    def forget_versions(self) -> None:
        """Note that another replica takes the place of ours, whose versions are noted next."""
        self.versions = {self.rank: self.versions[self.rank]}
        self.contained = 0

    def note_place(self, position: int, accepted: int) -> None:
        """Note up to where the log was applied, and the last own update in it."""
        self.position, self.accepted = position, accepted

    def note_result(self, body: bytes, *, is_end: bool) -> None:
        """Note an update of a round's result."""
        if self._partial is not None:
            self._partial.append(body)
            if is_end:
                self.results.append(self._partial)
                self._partial = []

    def forget_result(self) -> None:
        """Note that results are not known: blocks of a replica, or a sum, contain them."""
        if self._partial is not None:
            self.results.clear()
            self.misses_results, self._partial = True, []

    def checked_change(self, change: Any, size: int | None = None) -> Float32Array:
        """Return what a script hands over as a change, as an array of shape (N,).

        Parameters
        ----------
        change : array or tensor
        size : int, optional
            N; by default that of the replica.

        Raises
        ------
        UsageError
            If it is not float32, or has not N elements.
        NonFiniteError
            If it holds a NaN or an infinity.
        """
        try:
            array = self.parameters.to_array(change)
        except (TypeError, ValueError, RuntimeError):
            array = np.asarray(None)  # numpy cannot read it; refused below
        size = size or len(self.feedback.replica)
        if array.dtype != np.float32 or array.size != size:
            raise UsageError(
                f"a change has to be float32 with {size} elements, not {describe(array)}"
            )
        flat: Float32Array = array.reshape(-1)
        with self.named_errors():
            check_finite(flat)
        return flat

    def settle(self) -> None:
        """Set the parameters to the shared ones; drop what was not sent."""
        self.feedback.drop_residual()
        self.parameters.scatter()

    def take_residual_out(self) -> Float32Array:
        """Set the parameters to the shared ones; return the residual: shape (N,), float32."""
        self.parameters.gather()
        residual = self.feedback.residual()
        with self.undisturbed():
            self.settle()
        return residual

    def put_residual_back(self, residual: Float32Array) -> None:
        """Add a residual that was taken out to what was trained since then."""
        self.parameters.gather()
        residual += self.feedback.residual()
        with self.undisturbed():
            self.feedback.restore_residual(residual)
        self.parameters.scatter()

    def undisturbed(self) -> AbstractContextManager[None]:
        """Do not count what is done to the residual in the block as training."""
        return nullcontext() if self.scaled_change is None else self.scaled_change.undisturbed()
