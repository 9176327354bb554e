"""`Lifetime`: how a session stays open, loses its master, and ends.

A session ends by `finish`, by `leave`, by `close`, by an error that ends its membership, or with
the process. Whatever is the end, what was trained stays in the target.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeVar

from gradwire.errors import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    TransportError,
    UsageError,
)
from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure
from gradwire.threads.network import NetworkThread
from gradwire.threads.signals import close_at_exit, forget, postpone, uninterrupted
from gradwire.threads.waits import Waits
from gradwire.worker.state import printable
from gradwire.worker.worker import Worker

Result = TypeVar("Result")

logger = logging.getLogger("gradwire.session")

LEAVE_SECONDS: Final = 10.0
"""Containers are killed 10 to 30 seconds after SIGTERM."""


class Lifetime:
    """What a `Session` is besides training: open, without its master, or over."""

    def __init__(
        self, participant: Participant, network: NetworkThread[Worker], waits: Waits
    ) -> None:
        self._participant = participant
        self._membership = participant.membership
        self._network = network
        self._waits = waits
        self._over: str | None = None
        """Why the session is over; None while it is not."""
        self._gone = False
        """Whether nothing of it is left to end."""
        self._alone_since: int | None = None
        """The step at which the master was lost for good, after which the script goes on."""
        self._kept_is_told = False
        self._is_used = False
        """Whether the script has called `step`, `push`, `pull` or `items`."""
        self._process = os.getpid()
        close_at_exit(self, self._loss_warning)

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
        self._run_end("finish", "finished", self._participant.finish, timeout)

    def leave(self, *, training_is_over: bool = False, timeout: float | None = None) -> None:
        """Send all that is left, and leave; the others train on.

        Unlike `finish`, it waits for no other worker, and the run does not end when all have left
        this way. Unlike `close`, nothing that was trained is lost: the whole residual goes to the
        others, and so do the buffers, which count until the run is finished or another worker gets
        the rank. The parameters end as the shared ones, as far as this worker knows them.

        Parameters
        ----------
        training_is_over : bool
            Whether the others end, too, for example because all `items` are done. Then as much of
            the residual is sent as the setting `finish_residual` says.
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
        self._run_end("leave", "left", end, timeout)

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

    # Private: while it is open.

    @property
    def _is_alone(self) -> bool:
        """Whether the master is lost for good, and the script goes on without it."""
        return self._alone_since is not None

    def _run(
        self,
        begin: Callable[[], Procedure[Result]],
        *,
        alone: Callable[[], Result],
        gives_up: bool = False,
    ) -> Result:
        """Run a procedure of the participant; once the master is lost for good, call `alone`.

        That is where the setting `on_lost` wants it; else the loss is an error.

        Parameters
        ----------
        gives_up : bool
            Whether a master is lost for good that does not come back before the deadline of this.
        """
        if not self._is_alone:
            try:
                with self._open():
                    return self._waits.run(begin())
            except TransportError as error:
                if not self._is_survived(error, gives_up=gives_up):
                    raise
                self._go_on_alone(error)
        self._check_open()
        return alone()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Refuse what the block does if the session is over; end it if that happens inside."""
        self._check_open()
        try:
            yield
        except GradwireError as error:
            self._check_open()  # a signal handler may have closed it meanwhile
            if self._membership.closed and not self._is_survived(error, gives_up=True):
                self._tell_kept(error)
            raise
        finally:
            if self._membership.closed and self._over is None:
                self._network.stop()
                self._end()

    def _check_open(self) -> None:
        if self.is_inherited:
            raise UsageError(
                "this session belongs to the process that joined, not to its fork: join() in here "
                "to take part as another worker"
            )
        if self._over is not None:
            raise UsageError(f"this session is over ({self._over}); join again")

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

    # Private: without the master.

    def _is_survived(self, error: GradwireError, *, gives_up: bool) -> bool:
        """Return whether a script goes on after this error: its master is lost, as it may be."""
        participant = self._participant
        if participant.settings.on_lost != "finish" or participant.observes:
            return False
        is_given_up = gives_up and self._membership.lost is not None
        return isinstance(error, ConnectionLostError) or (
            is_given_up and isinstance(error, DeadlineError)
        )

    def _go_on_alone(self, error: TransportError) -> None:
        participant = self._participant
        self._alone_since = participant.tally.steps
        self._network.call(self._network.worker.abort, "lost for good")
        self._network.stop()
        participant.keep_trained()
        self._end()
        logger.warning(
            "the master is lost for good, and training goes on alone after %d steps "
            "(on_lost='finish'): %s", participant.tally.steps, error,
        )  # fmt: skip

    def _end_alone(self, reason: str) -> None:
        """End a session whose master is lost: the model keeps what this worker has trained."""
        self._over, self._gone = reason, True
        self._participant.keep_trained()
        steps = self._participant.tally.steps
        logger.warning(
            "%s without the master: the model has what this worker has trained, in %d steps, the "
            "last %d of them alone; the models of other workers differ",
            printable(reason), steps, steps - (self._alone_since or 0),
        )  # fmt: skip

    # Private: the end.

    def _run_end(
        self,
        method: str,
        reason: str,
        end: Callable[[float], Procedure[None]],
        timeout: float | None,
    ) -> None:
        """Run an end of the participant's training half, in so many seconds, and leave."""
        participant = self._participant
        self._check_open()
        if participant.is_paused:
            raise UsageError(f"{method}() inside of paused(): leave that block first")
        seconds = participant.settings.finish_timeout_seconds if timeout is None else timeout
        self._run(partial(end, seconds), alone=partial(self._end_alone, reason), gives_up=True)
        if not self._is_alone:
            self._leave(reason)

    def _leave(self, reason: str) -> None:
        self._membership.post(self._participant.worker.leave, printable(reason))
        self._over = reason
        self._wait_until_gone(reason)

    def _wait_until_gone(self, reason: str) -> None:
        """Wait until the master has confirmed that we left, `LEAVE_SECONDS` at most."""
        network, membership = self._network, self._membership
        with self._replica_lent(applies=True):  # to a master that has restarted
            closed = self._waits.run(
                self._participant.until(
                    lambda: membership.closed,
                    LEAVE_SECONDS,
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
        features, self._participant.features = self._participant.features, ()
        for feature in features:
            feature.on_leave()

    # Private: what is said at the end.

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

    def _warn_if_unused(self) -> None:
        unused = self._unused()
        if unused is not None:
            self._is_used = True  # it is said once
            logger.warning("%s", unused)

    def _unused(self) -> str | None:
        """Return a warning for a script that has joined, and shares nothing; None if it does."""
        is_over = self.is_inherited or self._over is not None
        if self._is_used or self._participant.observes or is_over:
            return None
        return (
            f"{self._name} has made no step: nothing was shared while its script trained. Call "
            "session.step() after each optimizer.step()"
        )

    def _loss_warning(self) -> str | None:
        """Return a warning about what is lost if the script ends now; None if nothing is."""
        steps = self._participant.tally.steps
        if not self._is_used:
            has_failed = hasattr(sys, "last_value")  # the script, by an error that ended it
            return None if has_failed else self._unused()
        if self.is_inherited or self._over is not None or not steps:
            return None
        return (
            f"{self._name} ended after {steps} steps without finish(): what it had not sent is "
            "lost, and its model differs from that of the others. Call session.finish() after the "
            "loop, or train inside of 'with gradwire.join(...) as session:'; session.close() "
            "leaves without this warning"
        )

    @property
    def _name(self) -> str:
        welcome = self._participant.welcome
        return f"rank {welcome.rank} of run {welcome.run!r}"
