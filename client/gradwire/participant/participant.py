"""`Participant`: one worker's membership of a run, from its first step to its last.

::

    step ──▶ Push ──▶ Outbox ──▶ Worker ══▶ master
               │ Thresholds, Compensation ◀── Delays ◀──┐
               └──────▶ SharedParameters ◀─── Pull ◀── Inbox ◀── Worker ◀══ master

A worker has two halves. The training half is here: it encodes and posts what a step has changed,
applies what peers have sent, and keeps the replica right. The network half is `Worker`: messages
and the time go in, messages and deadlines come out. The halves share a `Membership`.

Nothing here has a thread, a socket or a clock of its own. `Session` runs it with two threads, the
simulator with none.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gradwire.errors import DeadlineError, UsageError
from gradwire.participant.contributing import Contributing
from gradwire.participant.ending import Ending
from gradwire.participant.feature import Feature
from gradwire.participant.gradients import Gradients
from gradwire.participant.items import Items
from gradwire.replica.checkpoint_state import CheckpointState
from gradwire.replica.pull import PeerUpdate
from gradwire.replica.push import Push
from gradwire.replica.stats import SessionStats, Traffic
from gradwire.replica.training_half import TrainingHalf
from gradwire.replica.waits import Procedure
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_protocol.messages.work import Plan

OFFLINE_STEPS_MAX: Final = 1_000
"""A worker that trains by itself drifts away from the others, so further steps wait for the
master."""


class Participant(TrainingHalf):
    """A worker that takes part in a run, or an observer, which sends nothing."""

    features: Sequence[Feature] = ()
    """In the order in which their hooks are called."""

    handed_over: Any = None
    """The change that the script hands over to a push; None but while that begins."""

    offline_steps_max = OFFLINE_STEPS_MAX

    def __post_init__(self) -> None:
        super().__post_init__()
        self.note_run_steps()
        self.sending = Push(self)
        self.contributing: Contributing | None = None
        if self.welcome.mode.has_rounds:
            kind = Contributing if self.welcome.mode.optimizer is None else Gradients
            self.contributing = kind(self)
        self.state = CheckpointState(self, self.sending)
        self.ending = Ending(self, self.contributing or self.sending)
        self._world_size = self.settings.workers or 1
        self._offline_steps = 0
        """Steps since the connection was lost."""
        self._loops: set[str] = set()
        """Works whose items a loop runs over."""
        self._has_pushed = False
        """Whether the step of a push was not ended by a pull yet."""

    # Setup.

    def note_run_steps(self) -> None:
        """Skip the part of a warm-up that the run has already made.

        A run has made as many steps as its worker with the most updates has sent.
        """
        self.thresholds.note_run_steps(max(self.shared.versions.values()))

    def wait_for_workers(self, n: int, timeout_seconds: float) -> Procedure[None]:
        """Wait until at least `n` workers take part.

        Raises `DeadlineError` if fewer take part after `timeout_seconds`.
        """
        membership = self.membership
        self.check_connected()
        if not (
            yield from self.until(
                lambda: len(membership.peers) >= n,
                timeout_seconds,
                lambda: f"{n - len(membership.peers)} of {n} workers",
            )
        ):
            self.check_connected()
            raise DeadlineError(
                f"waited {timeout_seconds:g} s for {n} workers; {len(membership.peers)} take part"
            )

    # Training.

    def step(self) -> Procedure[None]:
        """Push what this step changed, and apply what peers sent; an observer only applies."""
        if self.observes:
            yield from self.pull()
            return
        yield from self._push(None, pulls=not self.is_paused)
        yield from self._end_step()

    def push(self, change: Any = None) -> Procedure[int]:
        """Post what has reached the threshold; return how many elements that changes.

        The next `pull` ends this step.
        """
        elements = yield from self._push(change, pulls=False)
        self._has_pushed = True
        return elements

    def pull(self) -> Procedure[list[PeerUpdate]]:
        """Apply what peers have sent; return the updates that were not conflated."""
        self.check_connected()
        if self.is_paused:
            return []
        applied = self.applying.pull()
        if self._has_pushed or self.observes:
            yield from self._end_step()
        return applied

    def world_size(self) -> int:
        """Return a number above each rank that the run has had, as far as this worker knows."""
        versions = self.shared.versions
        ranks = {rank for rank, sequence in versions.items() if sequence and rank < WORKERS_MAX}
        ranks |= {peer.rank for peer in self.membership.peers}
        self._world_size = max(self._world_size, *(rank + 1 for rank in ranks))
        return self._world_size

    def items(self, plan: Plan) -> Items:
        """Return the items of a work, which the master grants one by one, if there is one."""
        if self.observes:
            raise UsageError("an observer trains on nothing: it gets no items")
        return Items(plan, self, self._loops)

    def log(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Hand scalars to the network half: of a step, or of the last one."""
        step = self.tally.steps if step is None else step
        scalars = self.worker.scalars
        if scalars.add(step, values, self.clock()):
            self.membership.post(scalars.wake)

    def log_histograms(self, step: int, names: tuple[str, ...], histograms: bytes) -> None:
        """Hand histograms of a step to the network half: names and array of `Histograms`."""
        scalars = self.worker.scalars
        if scalars.put_histograms(step, names, histograms):
            self.membership.post(scalars.wake)

    # The end.

    def finish(self, timeout_seconds: float) -> Procedure[None]:
        """Send what is left, and wait until all workers have finished and hold the same bits.

        Raises `DeadlineError` if other workers have not finished in time; it can be called again.
        """
        if not self.ending.has_begun and not self.observes:
            for feature in self.features:
                feature.before_finish()
            self.ending.begin()
        yield from self.ending.wait(timeout_seconds, for_others=True)
        self.applying.pull()
        self._settle()
        for feature in self.features:
            feature.after_finish()

    def send_rest(
        self, timeout_seconds: float, *, training_is_over: bool = False
    ) -> Procedure[None]:
        """Send all that is left, and end with the shared parameters that this worker knows of.

        That is residual and buffers. Where the training is over, as much of the residual is sent as
        `finish` sends. Raises `DeadlineError` if the slowest worker has not taken it in time; it
        can be called again.
        """
        if not self.ending.has_begun and not self.observes:
            for feature in self.features if self.tally.steps else ():  # what is untrained misleads
                if training_is_over:
                    feature.before_finish()
                else:
                    feature.before_leave()
            self.ending.begin(None if training_is_over else 1.0)
        yield from self.ending.wait(timeout_seconds, for_others=False)
        self._settle()

    def keep_trained(self) -> None:
        """Set the parameters to all that was trained, as a loop without a session has them.

        For an end without `finish`: what is not sent, was dropped, or was contributed to a round
        that has no result, stays with this worker. Can be repeated.
        """
        if self.observes:
            return
        shared, feedback = self.shared, self.shared.feedback
        self.membership.inbox.take_all()  # a step that goes on after this applies nothing
        dropped, self.sending.dropped = self.sending.dropped, None
        contributing = self.contributing
        contributed = None if contributing is None else contributing.take_uncontained()
        if dropped is None and contributed is None and not feedback.stores_residual:
            return
        shared.parameters.gather()
        trained = feedback.replica.values * feedback.replica.quantum + feedback.residual()
        if dropped is not None:
            trained += dropped
        if contributed is not None:
            trained += contributed * feedback.replica.quantum
        feedback.drop_residual()  # from now on it is in the parameters
        shared.parameters.set(trained.astype(np.float32, copy=False))

    def train_alone(self, change: Any = None) -> None:
        """Count a step that no one else hears of, after adding a change to the parameters."""
        self.tally.steps += 1
        if change is not None:
            parameters = self.shared.parameters
            flat = self.shared.checked_change(change, model_of(self.welcome.layout).elements)
            parameters.gather()
            trained = parameters.vector.copy()
            trained[: len(flat)] += flat
            parameters.set(trained)

    # Statistics and checkpoints.

    def stats(self, traffic: Traffic) -> SessionStats:
        """Return the statistics of the session so far."""
        tally, membership, worker, delays = self.tally, self.membership, self.worker, self.delays
        ranks = {peer.rank for peer in membership.peers}
        return SessionStats(
            **tally.counts(),
            updates_delivered=membership.updates_delivered,
            updates_stable=max(
                membership.stable.get(self.shared.rank, 0) - self.welcome.sequence, 0
            ),
            buffers_refused=worker.buffers_refused,
            scalars_dropped=worker.scalars.dropped,
            histograms_dropped=worker.scalars.histograms_dropped,
            reconnections=membership.reconnections,
            rebases=membership.rebases,
            repairs=self.shared.repair.repairs,
            blocks_repaired=self.shared.repair.blocks_repaired,
            transport=worker.transport,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            datagrams_sent=traffic.packets_sent,
            datagrams_received=traffic.packets_received,
            residual=self.thresholds.residual_statistics(),
            staleness=delays.staleness,
            staleness_max=delays.staleness_max,
            staleness_by_rank={r: s for r, s in delays.staleness_by_rank.items() if r in ranks},
            staleness_distribution=delays.staleness_distribution(),
            own_staleness=delays.own_staleness,
            own_staleness_distribution=delays.own_staleness_distribution(),
            residual_age_steps=delays.residual_age_steps,
            residual_age_distribution=delays.residual_age_distribution(),
            delay_steps=self.compensation.added_lag().total,
            rtt_seconds=worker.rtt,
        )

    def save(self) -> dict[str, Any]:
        """Return what `CheckpointState.restore` needs."""
        if self.contributing is None:
            return self.state.save()
        with self.contributing.at_the_replica():
            return self.state.save()

    def _settle(self) -> None:
        """Set what is trained to what all have."""
        self.shared.settle()
        if self.contributing is not None:
            self.contributing.settle()

    # Private: a step.

    def _push(self, change: Any, *, pulls: bool) -> Procedure[int]:
        """Send what was trained, or contribute it; apply what peers sent, if this pulls."""
        yield from self._before_push()
        self.handed_over = change
        for feature in self.features:
            feature.before_push()
        self.handed_over = None
        has_trained = all(feature.has_trained() for feature in self.features)
        if not has_trained and change is None:
            self.tally.note_untrained()
            if pulls:
                self.applying.pull()
            return 0
        if self.contributing is not None:
            return (yield from self.contributing.step(change))
        elements = self.sending.push(change)
        if pulls:
            self.applying.pull_gathered()
        return elements

    def _before_push(self) -> Procedure[None]:
        self.check_connected()
        if self.observes:
            raise UsageError(
                "an observer sends nothing: its key has the role observer. To change the "
                "parameters, join with the key of a worker"
            )
        if self.ending.has_begun:
            raise UsageError(
                "finish() has told the others that no more comes: call it again, or close()"
            )
        yield from self._wait_for_master()

    def _wait_for_master(self) -> Procedure[None]:
        """Count a step without the master; after too many, wait until it is back.

        The wait ends, too, where the master needs the training thread.
        """
        membership, settings, steps_max = self.membership, self.settings, self.offline_steps_max
        self._offline_steps = 0 if membership.lost is None else self._offline_steps + 1
        if self._offline_steps <= steps_max:
            return
        # Dialling ends after `reconnect_seconds`; a last try takes up to `connect_timeout_seconds`.
        timeout = settings.reconnect_seconds + settings.connect_timeout_seconds
        if not (
            yield from self.until(
                self._may_go_on,
                timeout,
                lambda: (
                    f"the master to come back ({membership.lost}): {steps_max} steps were "
                    "trained without it"
                ),
            )
        ):
            self.check_connected()
            raise DeadlineError(
                f"{steps_max} steps were trained without the master; waited {timeout:g} s for it "
                "to come back"
            )

    def _may_go_on(self) -> bool:
        """Return whether the connection is back, or the master needs the training thread."""
        membership = self.membership
        is_called = membership.replica_wanted is not None or membership.comparison is not None
        return membership.lost is None or is_called

    def _end_step(self) -> Procedure[None]:
        """Call the hooks at the end of a step, unless the session is paused."""
        if self.is_paused:
            return
        self._has_pushed = False
        for feature in self.features:
            feature.after_step()
            yield from feature.wait()
