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

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradwire.errors import ConnectionLostError, DeadlineError, DivergedError, UsageError
from gradwire.optimizer.delays import Delays
from gradwire.participant.contributing import Contributing
from gradwire.participant.feature import Feature
from gradwire.participant.finishing import Finishing
from gradwire.participant.gradients import Gradients, gradient_feedback
from gradwire.participant.items import Items
from gradwire.participant.offline_limit import OfflineLimit
from gradwire.replica.checkpoint_state import CheckpointState
from gradwire.replica.compensation import Compensation
from gradwire.replica.divergence import Divergence
from gradwire.replica.line_limit import LineLimit
from gradwire.replica.outbox import Outbox
from gradwire.replica.prior_residual import PriorResidual
from gradwire.replica.pull import PeerUpdate, Pull
from gradwire.replica.push import Push
from gradwire.replica.scaled_change import ScaledChange
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import SessionStats, Tally, Traffic
from gradwire.replica.thresholds import Thresholds
from gradwire.replica.waits import Procedure, Wait, until
from gradwire.settings.settings import Settings
from gradwire.target.parameters import Parameters
from gradwire.target.with_state import Averaged
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_codecs import Feedback
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.kinds import WORKERS_MAX
from gradwire_protocol.messages.modes.mode import model_of
from gradwire_protocol.messages.work import Plan


class Participant:
    """A worker that takes part in a run, or an observer, which sends nothing.

    Parameters
    ----------
    feedback : Feedback
        Over the vector of `parameters`. Its replica contains what the master's WELCOME says.
    clock : callable
        Returns seconds since any fixed moment.
    prior_residual : PriorResidual, optional
        Which part of a saved residual the run has already; by default none.
    averaged : Averaged, optional
        The optimizer's state, where the mode averages it.
    observes : bool
        Whether it only receives, and trains nothing.
    """

    features: Sequence[Feature] = ()
    """In the order in which their hooks are called."""

    def __init__(
        self,
        *,
        settings: Settings,
        parameters: Parameters,
        feedback: Feedback,
        membership: Membership,
        worker: Worker,
        clock: Callable[[], float],
        prior_residual: PriorResidual | None = None,
        averaged: Averaged | None = None,
        observes: bool = False,
    ) -> None:
        welcome = membership.welcome
        assert welcome is not None
        self.settings = settings
        self.membership = membership
        self.worker = worker
        self.clock = clock
        self.observes = observes
        self.welcome: Welcome = welcome
        self.is_paused = False
        """Whether no update is applied to the parameters."""
        self.tally = Tally()
        self.delays = Delays()
        self.shared = SharedParameters(
            settings=settings,
            parameters=parameters,
            feedback=feedback,
            welcome=welcome,
            own_updates=worker.own_updates,
            read_at=membership.updates_received,
            clock=clock,
        )
        sent = feedback
        if welcome.mode.optimizer is not None:
            sent = gradient_feedback(welcome)
        self.thresholds = Thresholds(settings, sent, clock=clock)
        self.note_run_steps()
        self.compensation = Compensation(
            settings.scale, self.shared, membership, self.delays, self.tally
        )
        self.divergence = Divergence(
            settings.scale, self.shared, membership, self.delays, self.tally
        )
        self.outbox = Outbox(self.shared, membership, worker, self.tally)
        self.sending = Push(
            settings=settings,
            shared=self.shared,
            membership=membership,
            thresholds=self.thresholds,
            compensation=self.compensation,
            divergence=self.divergence,
            outbox=self.outbox,
            line=LineLimit(membership, self.outbox, self.tally, lambda: worker.rtt),
            tally=self.tally,
            clock=clock,
        )
        self.applying = Pull(self.shared, membership, worker, self.delays, self.tally, clock)
        self.contributing = None
        if welcome.mode.has_rounds:
            kind = Contributing if welcome.mode.optimizer is None else Gradients
            self.contributing = kind(
                settings=settings,
                welcome=welcome,
                shared=self.shared,
                feedback=sent,
                membership=membership,
                thresholds=self.thresholds,
                divergence=self.divergence,
                outbox=self.outbox,
                applying=self.applying,
                tally=self.tally,
                clock=clock,
                averaged=averaged,
            )
        self.state = CheckpointState(
            settings=settings,
            shared=self.shared,
            feedback=sent,
            thresholds=self.thresholds,
            sending=self.sending,
            prior_residual=prior_residual or PriorResidual(settings.feedback, None),
            tally=self.tally,
        )
        self._world_size = settings.workers or 1
        self._finishing = Finishing(
            self.shared, self.contributing or self.sending, self.applying, membership, worker
        )
        self.offline = OfflineLimit(settings, membership, clock)
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

    def scale_changes(self) -> None:
        """Multiply the target's changes from now on, because no learning rate does it."""
        self.shared.scaled_change = ScaledChange(
            self.shared.feedback, self.compensation.change_factor
        )

    def wait_for_workers(self, n: int, timeout_seconds: float) -> Procedure[None]:
        """Wait until at least `n` workers take part.

        Raises `DeadlineError` if fewer take part after `timeout_seconds`.
        """
        membership = self.membership
        self.check_connected()
        deadline = self.clock() + timeout_seconds
        if not (
            yield from until(
                membership,
                lambda: len(membership.peers) >= n,
                deadline,
                self.clock,
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
        yield from self._before_push()
        if not self._has_trained():
            self.sending.skip()
            self.check_connected()
            if not self.is_paused:
                self.applying.pull()
        elif self.contributing is not None:
            yield from self._contribute(self.contributing)
        else:
            self.sending.push()
            if not self.is_paused:
                self.applying.pull_gathered()
        yield from self._end_step()

    def push(self, change: Any = None) -> Procedure[int]:
        """Post what has reached the threshold; return how many elements that changes.

        The next `pull` ends this step.
        """
        yield from self._before_push()
        elements = 0
        if not self._has_trained() and change is None:
            self.sending.skip()
        elif self.contributing is not None:
            elements = yield from self._contribute(self.contributing, change)
        else:
            elements = self.sending.push(change)
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

    def lateness(self, ranks: Collection[int]) -> float | None:
        """Return how many steps later than in lockstep the last updates of these peers came.

        None while too few have come.
        """
        return self.delays.lateness(ranks, len(self.membership.peers))

    def items(self, plan: Plan, *, alone: bool = False) -> Items:
        """Return the items of a work, which the master grants one by one, if there is one."""
        if not alone:
            self.check_connected()
        if self.observes:
            raise UsageError("an observer trains on nothing: it gets no items")
        return Items(
            plan,
            running=self._loops,
            shared=self.shared,
            pull=lambda: None if self.is_paused else self.applying.pull(),
            membership=self.membership,
            worker=self.worker,
            clock=self.clock,
        )

    # The end.

    def finish(self, timeout_seconds: float) -> Procedure[None]:
        """Send what is left, and wait until all workers have finished and hold the same bits.

        Raises `DeadlineError` if other workers have not finished in time; it can be called again.
        """
        membership, finishing = self.membership, self._finishing
        deadline = self.clock() + timeout_seconds
        if not finishing.has_begun and not self.observes:
            for feature in self.features:
                feature.before_finish()
            finishing.begin()
        while True:
            # Read before the inbox is emptied: an update that comes in between is news then.
            before = membership.news
            self.check_connected()
            finishing.advance()
            if finishing.is_complete():
                break
            if self.clock() >= deadline:
                raise DeadlineError(finishing.timeout_message())
            yield Wait(partial(finishing.has_news, before), deadline, finishing.purpose)
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
        membership, finishing = self.membership, self._finishing
        deadline = self.clock() + timeout_seconds
        if not finishing.has_begun and not self.observes:
            for feature in self.features if self.tally.steps else ():  # what is untrained misleads
                if training_is_over:
                    feature.before_finish()
                else:
                    feature.before_leave()
            finishing.begin(None if training_is_over else 1.0)
        while True:
            before = membership.news
            self.check_connected()
            if finishing.send_rest():
                break
            if self.clock() >= deadline:
                raise DeadlineError(finishing.unsent_message("leave"))
            yield Wait(partial(finishing.has_news, before), deadline, finishing.purpose)
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

    def leave(self, reason: str) -> None:
        """Leave the run; what was pushed arrives."""
        self.membership.post(self.worker.leave, reason)

    def close(self) -> None:
        """Release what it holds in this process. Can be repeated."""
        features, self.features = self.features, ()
        for feature in features:
            feature.on_leave()

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

    def digest(self) -> int:
        """Return 64 bits that are the same for all workers with the same updates applied."""
        return self.shared.feedback.replica.digest()

    def save(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides the parameters."""
        if self.contributing is None:
            return self.state.save()
        with self.contributing.at_the_replica():
            return self.state.save()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `save` returned, or raise `UsageError` and change nothing."""
        self.check_connected()
        self.state.restore(state)

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

    def _settle(self) -> None:
        """Set what is trained to what all have."""
        self.shared.settle()
        if self.contributing is not None:
            self.contributing.settle()

    # Private: a step.

    def _contribute(self, contributing: Contributing, change: Any = None) -> Procedure[int]:
        """Count a step; after the last one of a round, contribute and wait for its result."""
        elements = 0
        if not contributing.note_step(change):
            self.sending.skip()
        if contributing.is_due and not self.is_paused:
            if contributing.overlaps:  # for the round of the contribution before
                yield from contributing.wait()
                self.check_connected()
            elements = contributing.contribute() or 0
            if not contributing.overlaps:
                yield from contributing.wait()
                self.check_connected()
        elif not self.is_paused:
            self.applying.pull()
            contributing.look_ahead()
        return elements

    def _before_push(self) -> Procedure[None]:
        self.check_connected()
        if self.observes:
            raise UsageError(
                "an observer sends nothing: its key has the role observer. To change the "
                "parameters, join with the key of a worker"
            )
        if self._finishing.has_begun:
            raise UsageError(
                "finish() has told the others that no more comes: call it again, or close()"
            )
        if not (yield from self.offline.may_train()):
            self.check_connected()
            raise DeadlineError(self.offline.timeout_message())

    def _has_trained(self) -> bool:
        """Call `before_push` of all features; return whether there is anything to push."""
        for feature in self.features:
            feature.before_push()
        return all(feature.has_trained() for feature in self.features)

    def _end_step(self) -> Procedure[None]:
        """Call the hooks at the end of a step, unless the session is paused."""
        if self.is_paused:
            return
        self._has_pushed = False
        for feature in self.features:
            feature.after_step()
            yield from feature.wait()
