"""`Session`: a worker's membership of a run, the object that a training loop holds.

It belongs to the training thread, and so do the parameters: they change in `step`, `push`, `pull`,
`finish`, `leave` and `load_state_dict`, and at no other time. The network has a thread of its own.
Only `wait`, `finish`, `leave` and `close` wait for it; these waits have deadlines, and say on
expiry what they waited for.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from gradwire.errors import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    TransportError,
    UsageError,
)
from gradwire.participant.items import Item, Items, plan_of
from gradwire.participant.participant import Participant
from gradwire.replica.pull import PeerUpdate
from gradwire.replica.stats import SessionStats
from gradwire.replica.waits import Procedure, until
from gradwire.session.early_stopping import EarlyStopping
from gradwire.threads.network import NetworkThread
from gradwire.threads.signals import close_at_exit, forget, postpone, uninterrupted
from gradwire.threads.waits import Waits
from gradwire.worker.state import printable
from gradwire.worker.worker import Worker
from gradwire_protocol.messages.admission import Peer

Result = TypeVar("Result")

logger = logging.getLogger("gradwire.session")

LEAVE_SECONDS: Final = 10.0
"""Containers are killed 10 to 30 seconds after SIGTERM."""


class Session:
    """A worker's membership of a run. Made by `gradwire.join`.

    As a context manager it finishes when the block ends normally. When the block ends with an
    exception it leaves at once, so that the other workers go on without it. However it ends, the
    parameters stay in the target: without `finish` they are what this worker has trained.

    With the key of an observer it only receives: `step` applies what workers sent and sends
    nothing, `push` is an error, and `finish` waits for the workers to finish, while no worker waits
    for it. It is none of the `workers`, and no worker has its rank.
    """

    def __init__(
        self, participant: Participant, network: NetworkThread[Worker], waits: Waits
    ) -> None:
        self._participant = participant
        self._membership = participant.membership
        self._network = network
        self._waits = waits
        self._over: str | None = None
        self._gone = False
        self._is_alone = False
        """Whether the master is lost for good, and the script goes on without it."""
        self._steps_alone = 0
        self._kept_is_told = False
        self._is_used = False
        """Whether the script has called `step`, `push`, `pull` or `items`."""
        self._process = os.getpid()
        close_at_exit(self, self._loss_warning)

    # The run.

    @property
    def rank(self) -> int:
        """The rank of this worker, 0 or more; the same for as long as the session lasts.

        When the worker has left, another one may get its rank.
        """
        return self._participant.welcome.rank

    @property
    def world_size(self) -> int:
        """Into how many parts to divide data: `rank` of it is this worker's.

        The setting `workers`, or torchrun's ``WORLD_SIZE``, and more where a rank of the run is
        higher. It grows when workers join, and stays when they finish or leave, so that each rank
        is below it and keeps its part. `workers` says who takes part now.
        """
        return self._participant.world_size()

    @property
    def workers(self) -> tuple[Peer, ...]:
        """The workers that take part now, this one included: `rank`, `name`, `finished` of each."""
        return tuple(self._membership.peers)

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._participant.welcome.run

    @property
    def transport(self) -> str:
        """What carries the packets to the master: ``"udp"`` or ``"tcp"``."""
        return self._participant.worker.transport

    @property
    def is_open(self) -> bool:
        """Whether this session was neither finished nor closed, and has not lost its run.

        In a fork of the process that joined it is not open.
        """
        is_over = self._over is not None or self._membership.closed or self._is_alone
        return not self.is_inherited and not is_over

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that joined, which has the session."""
        return self._process != os.getpid()

    @property
    def finished(self) -> bool:
        """Whether all workers have finished: an observer ends its loop then."""
        return self._membership.finished is not None

    @property
    def quantum(self) -> float:
        """Resolution of the shared parameters: the value of one unit."""
        return self._participant.shared.quantum

    def wait(self, n_workers: int | None = None, *, timeout: float = 60.0) -> None:
        """Wait until at least `n_workers` workers take part.

        Parameters
        ----------
        n_workers : int, optional
            By default the setting `workers`, or torchrun's ``WORLD_SIZE``.
        timeout : float
            Seconds.

        Raises
        ------
        DeadlineError
            If fewer take part after that time.
        """
        wanted = n_workers if n_workers is not None else self._participant.settings.workers
        if wanted is None:
            raise UsageError("wait() for how many workers? Pass n_workers, or set WORLD_SIZE")
        self._run_or(
            partial(self._participant.wait_for_workers, wanted, timeout), alone=lambda: None
        )

    # Training.

    def step(self) -> None:
        """Push what this step changed, and apply what peers sent; an observer only applies.

        Call it after ``optimizer.step()``. If `join` was given the optimizer, and the optimizer
        made no step since the last call, nothing is pushed. In a mode with rounds, the last step of
        a round contributes what was changed, and waits for what all together come to.

        Raises
        ------
        DivergedError
            If a parameter is NaN or infinite, or jumped out of the range of the run; nothing was
            changed or sent.
        OutOfRangeError
            If a parameter has outgrown the run's quantum; nothing was changed or sent.
        NonFiniteError
            If a buffer that is due to be averaged is NaN or infinite.
        ConnectionLostError
            If the master stopped, or was lost and not reached again for `reconnect_seconds`. With
            the setting `on_lost` "finish" no error: such a step, and all further ones, are this
            worker's own.
        """
        self._make_step(self._participant.step)

    def push(self, change: Any = None) -> int:
        """Pass to the network what has reached the threshold; the next `pull` ends this step.

        For loops that do not call `step`. Like `step` it sends buffers that are due. If no change
        is given, and the optimizer that `join` was given made no step since the last call, nothing
        is pushed.

        Parameters
        ----------
        change : array-like of the target's size, optional
            A dense change to add to the parameters first, float32: for loops that compute one
            instead of changing the parameters themselves.

        Returns
        -------
        int
            How many elements are being sent.

        Raises
        ------
        DivergedError, OutOfRangeError, ConnectionLostError
            As `step`.
        NonFiniteError
            If `change` holds a NaN or an infinity.
        UsageError
            If this is an observer.
        """
        sent: int = self._make_step(partial(self._participant.push, change), change)
        return sent

    def pull(self) -> list[PeerUpdate]:
        """Apply what peers sent since the last time; return these updates.

        The first `pull` after a `push`, or after several, ends their step, as the end of `step`
        does: buffers that are due are averaged, and with a `staleness_bound` it waits for workers
        that are too far behind. Any other `pull` only applies. An observer's `pull` always ends a
        step.

        Updates that were added up, as the master does with those that come together, or that came
        while it waited for other workers, are applied, too, but not returned.
        """
        self._is_used = True
        return self._run_or(self._participant.pull, alone=list[PeerUpdate])

    def items(
        self,
        name: str,
        count: int,
        *,
        epochs: int = 1,
        shuffle_seed: int | None = None,
        lease_seconds: float = 3600.0,
    ) -> Iterator[Item]:
        """Divide items, such as the shards of a data set, among the workers, while they train.

        Yields the next item that no other worker has; train on it, with a `step` for each batch.
        The next turn of the loop says that it is finished. It counts as done when all workers have
        the updates that came of it. What a worker has not finished that breaks off, or is lost,
        goes to another one. So each item is trained on at least once, and twice only where a worker
        was lost in the middle; a master that is killed and started again goes on where it was. Fast
        workers get more items than slow ones, and workers that join in the middle get their share.

        All workers have to say the same. The loop ends when all items of all epochs are done, so it
        may wait for what others hold, or when training is to end (`stopping`).

        Parameters
        ----------
        name : str
            Of the work; a run may have several.
        count : int
            Items of an epoch. Some minutes of work or less each, as what is lost with a worker is
            trained on again.
        epochs : int
            How often each item comes.
        shuffle_seed : int, optional
            Shuffles the items, in each epoch in another order, which is the same at all workers.
        lease_seconds : float
            An item that a worker has held for so long is given to another one as well.

        Raises
        ------
        UsageError
            If other workers said something else about this work, or this is an observer.
        ConnectionLostError
            As `step`.
        DeadlineError
            If other workers do not finish the last items within two leases.

        Examples
        --------
        ::

            for item in session.items("train", len(shards), epochs=3, shuffle_seed=0):
                for batch in load(shards[item]):
                    ...
                    session.step()
        """
        plan = plan_of(
            name, count, epochs=epochs, shuffle_seed=shuffle_seed, lease_seconds=lease_seconds
        )
        self._is_used = True
        if self._is_alone:
            self._check_open()
            return self._loop_over(self._participant.items(plan, alone=True))
        with self._open():
            items = self._participant.items(plan)
        return self._loop_over(items)

    def _loop_over(self, items: Items) -> Iterator[Item]:
        try:
            while (item := self._run_or(items.next, alone=items.next_alone)) is not None:
                yield item
        finally:
            items.end()

    @property
    def stopping(self) -> str | None:
        """Why training is to end, by the word of a worker or an operator; None while it is not.

        A loop that sees it ends, and finishes. `items` ends by itself.
        """
        return self._membership.stop_reason

    def stop_training(self, reason: str) -> None:
        """Have all workers end their training, this one included: each sees `stopping`.

        Parameters
        ----------
        reason : str
            For the logs of all workers, such as "no improvement in 5 epochs".
        """
        self._check_open()
        if self._participant.observes:
            raise UsageError("an observer has no say in a run: it cannot end the training")
        if self._is_alone:
            self._membership.on_stop_training(printable(reason))
            return
        self._membership.post(self._participant.worker.stop_training, printable(reason))

    def early_stopping(self, **limits: Any) -> EarlyStopping:
        """Return what judges scores, and has all workers end their training when it is time.

        One worker is enough to judge. `EarlyStopping.note` also says to stop where another one has.

        Parameters
        ----------
        **limits
            Of `EarlyStopping`: `patience`, `minimum_improvement`, `target`, `maximum_seconds`,
            `maximum_scores`, `larger_is_better`.

        Raises
        ------
        UsageError
            If a limit is none, or there is no limit at all.

        Examples
        --------
        ::

            early = session.early_stopping(patience=3)
            for epoch in range(100):
                ...
                with session.paused(shared=True):
                    early.note(loss_on_held_out_data(model))
                    if early.is_best:
                        best = copy.deepcopy(model.state_dict())
                if session.stopping:
                    break
        """
        return EarlyStopping(**limits, tell=self.stop_training, told=lambda: self.stopping)

    @contextmanager
    def paused(self, *, shared: bool = False) -> Iterator[None]:
        """Apply nothing to the parameters inside the block: for an evaluation.

        Peers' updates wait meanwhile, in bounded memory.

        Parameters
        ----------
        shared : bool
            Whether the parameters are the shared ones inside, as an observer has them: without what
            this worker has not sent yet, which is put back afterwards. An evaluation then says how
            good the run is, and not this one worker. It takes 4 bytes for each parameter meanwhile,
            and 4 more for a moment at the end.
        """
        participant = self._participant
        if self._is_alone:
            yield
        elif shared and self._over is None:
            with self.paused(), self._residual_taken_out():
                yield
        elif participant.is_paused:
            yield
        else:
            participant.is_paused = True
            try:
                with self._replica_lent(applies=False):
                    yield
            finally:
                participant.is_paused = False

    @contextmanager
    def _replica_lent(self, *, applies: bool) -> Iterator[None]:
        """Lend the replica inside the block.

        Lending it may take a lock, which a signal handler that closes the session must not
        interrupt.
        """
        applying = self._participant.applying
        try:
            with uninterrupted():
                applying.lend(applies=applies)
            yield
        finally:
            applying.take_back()

    @contextmanager
    def _residual_taken_out(self) -> Iterator[None]:
        shared = self._participant.shared
        with uninterrupted():
            residual = shared.take_residual_out()
        try:
            yield
        finally:
            with uninterrupted():
                shared.put_residual_back(residual)
                if not self.is_open:  # it has ended inside, where this was not in the target
                    self._participant.keep_trained()

    # The end.

    def finish(self, *, timeout: float | None = None) -> None:
        """Send what is left, wait for all other workers to finish, and end with the same bits.

        Every worker sends as much of its residual as the setting `finish_residual` says, applies
        everything that the others sent, and sets its parameters to the shared ones and its buffers
        to those that all workers agree on. An observer does the same, but sends nothing.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default the setting `finish_timeout_seconds`.

        Raises
        ------
        DeadlineError
            If other workers have not finished in time. It can be called again.
        UsageError
            Inside of `paused`.
        """
        self._warn_if_unused()
        if self._run_end("finish", "finished", self._participant.finish, timeout):
            self._leave("finished")

    def leave(self, *, training_is_over: bool = False, timeout: float | None = None) -> None:
        """Send all that is left, and leave; the others train on.

        Unlike `finish`, it waits for no other worker, and the run does not end when all have left
        so. Unlike `close`, nothing that was trained is lost: the whole residual goes to the others,
        and so do the buffers, which count until the run is finished or the rank is given to another
        worker. The parameters end as the shared ones, as far as this worker knows them.

        Parameters
        ----------
        training_is_over : bool
            Whether the others end, too, as where all `items` are done. Then as much of the residual
            is sent as the setting `finish_residual` says.
        timeout : float, optional
            Seconds until the slowest worker has taken what is left; by default the setting
            `finish_timeout_seconds`.

        Raises
        ------
        DeadlineError
            If it has not taken it in time. It can be called again.
        UsageError
            Inside of `paused`.
        """
        end = partial(self._participant.send_rest, training_is_over=training_is_over)
        if self._run_end("leave", "left", end, timeout):
            self._leave("left")

    def close(self, reason: str | None = None) -> None:
        """Leave the run. What was pushed arrives, the rest stays in the target. Can be repeated.

        If a signal handler calls it in the middle of a `step`, it leaves when that is over. In a
        fork of the process that joined, it lets go of optimizer and model, and tells nobody.
        """
        if self.is_inherited:
            self._end()
            return
        if postpone(partial(self.close, reason)):
            return
        if self._is_alone and self._over is None:
            self._end_alone(reason or "closed")
        elif self._over is None:
            if reason is None:
                self._warn_if_unused()
            try:
                self._leave(reason or "closed")
            finally:
                self._participant.keep_trained()
        elif not self._gone:
            self._wait_until_gone(self._over)  # a signal came while it was leaving

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Finish, or leave at once if the block failed."""
        if error is not None:
            self._close_after(error)
        elif self._over is None:
            try:
                self.finish()
            except BaseException as failure:
                self._close_after(failure)
                raise

    # Statistics and checkpoints.

    @property
    def stats(self) -> SessionStats:
        """What the session has done so far."""
        return self._participant.stats(self._network.traffic)

    def digest(self) -> str:
        """Return 64 bits in hex that are the same for all workers with the same updates applied."""
        return f"{self._participant.digest():016x}"

    def state_dict(self) -> dict[str, Any]:
        """Return what the session adds to a checkpoint: residual, threshold, versions.

        It belongs to the parameters that this worker has at this moment: save both together. It
        holds plain tensors (arrays for a numpy target), numbers and texts, so that
        ``torch.load(weights_only=True)`` reads it.
        """
        with uninterrupted():
            return self._participant.save()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned: the parameters get that residual.

        The shared parameters are the run's and stay as they are. With local feedback the parameters
        of a checkpoint contain the residual. If they have become the run's, as those of the worker
        that founds it do, all workers have that residual, and before the first step it is not added
        again.

        Raises
        ------
        UsageError
            If the state does not fit; nothing is changed then.
        """
        with self._open(), uninterrupted():
            self._participant.restore(state)

    # Private.

    def _run(self, procedure: Procedure[Result]) -> Result:
        """Run a part of the participant's training half, unless the session is over."""
        with self._open():
            return self._waits.run(procedure)

    def _run_or(
        self,
        begin: Callable[[], Procedure[Result]],
        *,
        alone: Callable[[], Result],
        gives_up: bool = False,
    ) -> Result:
        """Run a procedure; once the master is lost for good, call `alone` instead.

        That is where the setting `on_lost` wants it; else the loss is an error.

        Parameters
        ----------
        gives_up : bool
            Whether a master is lost for good that does not come back before the deadline of this.
        """
        if not self._is_alone:
            try:
                return self._run(begin())
            except TransportError as error:
                is_given_up = gives_up and self._membership.lost is not None
                if not self._is_survived(error, is_given_up=is_given_up):
                    raise
                self._go_on_alone(error)
        self._check_open()
        return alone()

    def _is_survived(self, error: GradwireError, *, is_given_up: bool) -> bool:
        """Return whether a script goes on after this error: its master is lost, as it may be."""
        participant = self._participant
        if participant.settings.on_lost != "finish" or participant.observes:
            return False
        return isinstance(error, ConnectionLostError) or (
            is_given_up and isinstance(error, DeadlineError)
        )

    def _go_on_alone(self, error: TransportError) -> None:
        participant = self._participant
        self._is_alone = True
        self._network.call(self._network.worker.abort, "lost for good")
        self._network.stop()
        participant.keep_trained()
        self._end()
        logger.warning(
            "the master is lost for good, and training goes on alone after %d steps "
            "(on_lost='finish'): %s", participant.tally.steps, error,
        )  # fmt: skip

    def _make_step(self, begin: Callable[[], Procedure[Any]], change: Any = None) -> Any:
        """Make a step; return how many elements are sent."""
        self._is_used = True
        alone = partial(self._step_alone, self._participant.tally.steps, change)
        return self._run_or(begin, alone=alone, gives_up=True)

    def _step_alone(self, steps_before: int, change: Any) -> int:
        """Make a step of this worker's own, unless it was made when the master was lost."""
        if self._participant.tally.steps == steps_before:
            self._participant.train_alone(change)
            self._steps_alone += 1
        return 0

    def _end_alone(self, reason: str) -> None:
        """End a session whose master is lost: the model keeps what this worker has trained."""
        self._over, self._gone = reason, True
        self._participant.keep_trained()
        logger.warning(
            "%s without the master: the model has what this worker has trained, in %d steps, the "
            "last %d of them alone; the models of other workers differ",
            printable(reason), self._participant.tally.steps, self._steps_alone,
        )  # fmt: skip

    def _close_after(self, error: BaseException) -> None:
        """Leave because the block of the session ends with this error."""
        was_over = self.is_inherited or self._over is not None
        self.close(f"{type(error).__name__}: {error}")
        if not was_over:
            self._tell_kept(error)

    def _tell_kept(self, error: BaseException) -> None:
        """Leave in the target what was trained, and say so in the error that ends the session."""
        participant = self._participant
        participant.keep_trained()
        kept = f"the model keeps what this worker has trained in {participant.tally.steps} steps"
        if participant.observes:
            kept = "the model keeps what it has received"
        if not self._kept_is_told:
            logger.warning("the session ended without finish(), and %s", kept)
        self._kept_is_told = True
        if not isinstance(error, GradwireError):
            error.add_note(f"gradwire: {kept}")
        elif kept not in str(error):
            error.args = (f"{error}; {kept}", *error.args[1:])

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Refuse what the block does if the session is over; end it if that happens inside."""
        self._check_open()
        try:
            yield
        except GradwireError as error:
            self._check_open()  # a signal handler may have closed it meanwhile
            if self._membership.closed and not self._is_survived(error, is_given_up=True):
                self._tell_kept(error)
            raise
        finally:
            if self._membership.closed and self._over is None:
                self._network.stop()
                self._end()

    def _warn_if_unused(self) -> None:
        """Warn of a script that has joined, and shares nothing."""
        is_over = self.is_inherited or self._over is not None
        if not self._is_used and not self._participant.observes and not is_over:
            self._is_used = True
            logger.warning("%s", self._unused())

    def _unused(self) -> str:
        return (
            f"rank {self.rank} of run {self.run!r} has made no step: nothing was shared while its "
            "script trained. Call session.step() after each optimizer.step()"
        )

    def _loss_warning(self) -> str | None:
        """Return a warning about what is lost if the script ends now; None if nothing is."""
        if self.is_inherited or self._over is not None:
            return None
        if not self._is_used:
            has_failed = hasattr(sys, "last_value")  # the script, by an error that ended it
            return None if has_failed or self._participant.observes else self._unused()
        steps = self._participant.tally.steps
        if not steps:
            return None
        return (
            f"rank {self.rank} of run {self.run!r} ended after {steps} steps without finish(): "
            "what it had not sent is lost, and its model differs from that of the others. Call "
            "session.finish() after the loop, or train inside of 'with gradwire.join(...) as "
            "session:'; session.close() leaves without this warning"
        )

    def _check_open(self) -> None:
        if self.is_inherited:
            raise UsageError(
                "this session belongs to the process that joined, not to its fork: join() in here "
                "to take part as another worker"
            )
        if self._over is not None:
            raise UsageError(f"this session is over ({self._over}); join again")

    def _run_end(
        self,
        method: str,
        reason: str,
        end: Callable[[float], Procedure[None]],
        timeout: float | None,
    ) -> bool:
        """Run an end of the participant's training half, in so many seconds.

        Returns whether there is a master to leave.
        """
        participant = self._participant
        self._check_open()
        if participant.is_paused:
            raise UsageError(f"{method}() inside of paused(): leave that block first")
        seconds = participant.settings.finish_timeout_seconds if timeout is None else timeout
        self._run_or(partial(end, seconds), alone=partial(self._end_alone, reason), gives_up=True)
        return not self._is_alone

    def _leave(self, reason: str) -> None:
        self._participant.leave(printable(reason))
        self._over = reason
        self._wait_until_gone(reason)

    def _wait_until_gone(self, reason: str) -> None:
        """Wait until the master has confirmed that we left, `LEAVE_SECONDS` at most."""
        network, membership = self._network, self._membership
        with self._replica_lent(applies=True):  # to a master that has restarted
            closed = self._waits.run(
                until(
                    membership,
                    lambda: membership.closed,
                    monotonic() + LEAVE_SECONDS,
                    monotonic,
                    lambda: "the master to confirm that it has everything",
                )
            )
        if not closed:
            logger.warning(
                "left without knowing that everything arrived: the master did not confirm within "
                "%g s",
                LEAVE_SECONDS,
            )
            network.call(network.worker.abort, printable(reason))
        network.stop()
        self._end()
        self._gone = True

    def _end(self) -> None:
        """Release what the session holds in this process. Can be repeated."""
        forget(self)
        self._participant.close()
