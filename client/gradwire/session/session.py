"""`Session`: a worker's membership of a run, the object that a training loop holds.

It belongs to the training thread, and so do the parameters: they change in `step`, `push`, `pull`,
`finish`, `leave` and `load_state_dict`, and at no other time. The network has a thread of its own.
Only `wait`, `finish`, `leave` and `close` wait for it; these waits have deadlines, and say on
expiry what they waited for.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from gradwire.errors import UsageError
from gradwire.participant.items import Item, Items, plan_of
from gradwire.replica.pull import PeerUpdate
from gradwire.replica.stats import SessionStats
from gradwire.replica.waits import Procedure
from gradwire.session.early_stopping import EarlyStopping
from gradwire.session.lifetime import Lifetime
from gradwire.session.scalars import scalars_of, step_of
from gradwire.threads.signals import uninterrupted
from gradwire.worker.state import printable
from gradwire_protocol.messages.admission import Peer


class Session(Lifetime):
    """A worker's membership in a run. Made by `gradwire.join`.

    As a context manager it finishes when the block ends normally. If the block ends with an
    exception, it leaves at once, and the other workers go on without it. However it ends, the
    parameters stay in the target: without `finish` they are what this worker has trained.

    With an observer's key it only receives: `step` applies what workers sent and sends nothing,
    `push` is an error, and `finish` waits for the workers to finish, while no worker waits for it.
    It is not one of the `workers`, and no worker has its rank.
    """

    # The run.

    @property
    def rank(self) -> int:
        """The rank of this worker, 0 or more; the same for as long as the session lasts.

        When the worker has left, another one may get its rank.
        """
        return self._participant.welcome.rank

    @property
    def world_size(self) -> int:
        """How many parts to divide data into; this worker's part is number `rank`.

        The setting `workers`, or torchrun's ``WORLD_SIZE``, or more if the run has a higher rank.
        It grows when workers join and does not shrink when they finish or leave, so that each rank
        is below it and keeps its part. `workers` lists who takes part now.
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
        begin = partial(self._participant.wait_for_workers, wanted, timeout)
        self._run(begin, alone=lambda: None)

    # Training.

    def step(self) -> None:
        """Push what this step changed, and apply what peers sent; an observer only applies.

        Call it after ``optimizer.step()``. If `join` was given the optimizer, and the optimizer
        made no step since the last call, nothing is pushed. In a mode with rounds, the last step of
        a round contributes what was changed, and waits for the result of the round.

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
            the setting `on_lost` "finish" there is no error: this step and all later ones are made
            alone.
        """
        self._make_step(self._participant.step)

    def push(self, change: Any = None) -> int:
        """Send what has reached the threshold; the next `pull` ends this step.

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
        """Apply what peers sent since the last call, and return these updates.

        The first `pull` after a `push`, or after several, ends their step, as the end of `step`
        does: buffers that are due are averaged, and with a `staleness_bound` it waits for workers
        that are too far behind. Any other `pull` only applies. An observer's `pull` always ends a
        step.

        Updates that the master added up, or that came while this worker waited for others, are
        applied but not returned.
        """
        self._is_used = True
        return self._run(self._participant.pull, alone=list[PeerUpdate])

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
        The next turn of the loop reports it as finished. It counts as done when all workers have
        the updates from it. If a worker breaks off or is lost, its unfinished item goes to another
        one. So each item is trained on at least once, and twice only if a worker was lost in the
        middle; a master that is killed and restarted continues where it was. Fast workers get more
        items than slow ones, and workers that join in the middle get their share.

        All workers have to pass the same arguments. The loop ends when all items of all epochs are
        done, so it may wait for items of others, or when training is to end (`stopping`).

        Parameters
        ----------
        name : str
            Of the work; a run may have several.
        count : int
            Items of an epoch. Each should take some minutes at most, because what is lost with a
            worker is trained on again.
        epochs : int
            How often each item comes.
        shuffle_seed : int, optional
            Shuffles the items, in each epoch in another order, the same on all workers.
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
        self._check_open()
        return self._loop_over(self._participant.items(plan))

    def _loop_over(self, items: Items) -> Iterator[Item]:
        try:
            while (item := self._run(items.next, alone=items.next_alone)) is not None:
                yield item
        finally:
            items.end()

    @property
    def stopping(self) -> str | None:
        """Why training is to end, as a worker or an operator has said; None until then.

        A loop of your own should check it, end, and finish. `items` ends by itself.
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
        """Return an object that judges scores and ends training on all workers when it is time.

        One worker is enough to judge. `EarlyStopping.note` also says to stop if another one has.

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
            Whether the block has the shared parameters, as an observer does: without what this
            worker has not sent yet, which is put back afterwards. An evaluation then measures the
            run and not this one worker. It takes 4 bytes for each parameter meanwhile, and 4 more
            for a moment at the end.
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

    # Statistics and checkpoints.

    def log(
        self, values: Mapping[str, Any] | None = None, *, step: int | None = None, **more: Any
    ) -> None:
        """Log numbers, such as the loss, to the master, which keeps the curves of all workers.

        This waits for nothing. About once a second the network thread sends what was logged, when
        no update waits. If that is more than the master takes, every second number of a series is
        left out, or more of them, and counted (`stats.scalars_dropped`).

        Parameters
        ----------
        values : mapping, optional
            Numbers by their names, of 1 to 64 characters that can be printed; 256 names in all. An
            array or a tensor of one number is read, which takes as long as its device. NaN and
            infinity are numbers, too.
        step : int, optional
            The step that they belong to; by default, this worker's last one.
        **more
            Further numbers.

        Raises
        ------
        UsageError
            If a value is not a number, a name or the step is invalid, or this is an observer.

        Examples
        --------
        ::

            session.log(loss=loss.item())
            session.log({"validation/loss": 0.25, "epoch": 3})
        """
        self._check_open()
        if self._participant.observes:
            raise UsageError("an observer has no rank, under which the master could keep numbers")
        numbers = scalars_of({**(values or {}), **more})
        if not self._is_alone:
            self._participant.log(numbers, step_of(step))

    @property
    def stats(self) -> SessionStats:
        """What the session has done so far."""
        return self._participant.stats(self._network.traffic)

    def digest(self) -> str:
        """Return 64 bits in hex that are the same for all workers with the same updates applied."""
        return f"{self._participant.shared.feedback.replica.digest():016x}"

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
        of a checkpoint contain the residual. If they have become the run's, as the first worker's
        do, all workers have that residual, and before the first step it is not added again.

        Raises
        ------
        UsageError
            If the state does not fit; nothing is changed then.
        """
        with self._open(), uninterrupted():
            self._participant.check_connected()
            self._participant.state.restore(state)

    # Private.

    def _make_step(self, begin: Callable[[], Procedure[Any]], change: Any = None) -> Any:
        """Make a step; return how many elements are sent."""
        self._is_used = True
        steps_before = self._participant.tally.steps

        def alone() -> int:
            if self._participant.tally.steps == steps_before:  # not made when the master was lost
                self._participant.train_alone(change)
            return 0

        return self._run(begin, alone=alone, gives_up=True)
