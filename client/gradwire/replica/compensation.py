"""`Compensation`: how to correct for late changes and for the number of workers.

After each step it notes how late changes are. From that follow how much to lower the optimizer's
momentum (`momentum`), and what to multiply its learning rate and the changes by (`scale`).
"""

import logging
from typing import Final

import numpy as np

from gradwire.optimizer.delays import Delays
from gradwire.optimizer.momentum import APPROACH_STEPS, Lag, added_lag, network_factor
from gradwire.optimizer.scale import Agreement, scale_factor, varies
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.settings.training import Scale
from gradwire.worker.membership import Membership
from gradwire_protocol.messages.fields import count_updates

logger = logging.getLogger("gradwire.session")

TOLD_TIMES: Final = 2.0
"""What steps count is logged again once it has changed so many times."""


class Compensation:
    """The corrections of one worker."""

    def __init__(
        self,
        scale: Scale,
        shared: SharedParameters,
        membership: Membership,
        delays: Delays,
        tally: Tally,
    ) -> None:
        self.scale: Scale = scale
        """The setting `scale`; in place of "auto" the value that suits the optimizer, if there is
        one."""
        self._shared = shared
        self._membership = membership
        self._delays = delays
        self._tally = tally
        self._agreement = Agreement(shared.feedback)
        self._told = 0.0
        """The agreement that was logged."""
        self._workers = 0.0
        """How many workers take part, smoothed over `APPROACH_STEPS`; 0 before the first step."""

    def note_change(self) -> None:
        """Note that training has changed the parameters, and nothing of it is sent yet."""
        if self.scale == "agreement":
            self._agreement.note_change(self._updates_of_others, self._world_size - 1)
            self._tally.agreement = self._agreement.value
            self._tell()

    def note_rest(self) -> None:
        """Note that what is due is sent; the rest stays in the residual."""
        if self.scale == "agreement":
            self._agreement.note_rest(self._updates_of_others)

    def note_step(self, quanta_sent: int) -> None:
        """Note what a step has sent, and how stale earlier own updates turned out to be."""
        residual = self._residual_size() if self._delays.wants_residual else None
        self._delays.note_step(quanta_sent * self._shared.quantum, residual)
        self._workers = self._smooth_workers()
        for staleness in self._membership.own_staleness.drain():
            self._delays.note_own(staleness)

    def added_lag(self) -> Lag:
        """Return how late changes are, beyond synchronous training."""
        return added_lag(
            residual_age=self._delays.residual_age_steps,
            network_delay=self._delays.network_delay_steps(self._world_size),
            world_size=self._world_size,
            is_local=not self._shared.feedback.stores_residual,
        )

    def change_factor(self) -> float:
        """Return what to multiply the next change of this worker by."""
        delays = self._delays
        workers = self._smooth_workers()
        # Before the first is known, assume lockstep: half of the others come first.
        stale = delays.own_staleness if delays.own_updates else (workers - 1) / 2
        self._tally.scale = scale_factor(self.scale, workers, stale, self._agreement.value)
        return self._tally.scale

    @property
    def varies(self) -> bool:
        """Whether changes may be multiplied by anything but 1."""
        return varies(self.scale)

    def final_residual_portion(self) -> float:
        """Return how much of its residual this worker sends when it has finished."""
        return self._delays.final_residual_portion(self._world_size)

    def delay_factor(self) -> float:
        """Return what to multiply a learning rate by because updates of peers come late."""
        delay = self._delays.network_delay_steps(self._world_size)
        return network_factor(delay, self._world_size)

    def _tell(self) -> None:
        """Log the agreement once it has changed by much."""
        now, workers = self._agreement.value, self._world_size
        divisor, told = (1.0 + (workers - 1.0) * a for a in (now, self._told))
        if max(divisor, told) > TOLD_TIMES**2 * min(divisor, told):
            self._told = now
            logger.info(
                "scale='agreement': the steps of the workers agree by %.2f, so that each counts "
                "%.2g times",
                now,
                scale_factor(self.scale, workers, 0.0, now),
            )

    @property
    def _world_size(self) -> int:
        return len(self._membership.peers)

    @property
    def _updates_of_others(self) -> int:
        return count_updates(self._shared.versions, without=self._shared.rank)

    def _smooth_workers(self) -> float:
        """Return the smoothed number of workers for the next change."""
        now = float(self._world_size)
        if not self._workers:
            return now
        return self._workers + (now - self._workers) / APPROACH_STEPS

    def _residual_size(self) -> float:
        """Return the sum of the residual's absolute values, estimated from a sample."""
        feedback = self._shared.feedback
        sample = feedback.residual_sample()
        every = len(feedback.replica) / sample.size
        return float(np.abs(sample).sum(dtype=np.float64)) * every
