"""`Session`: a worker's membership of a run, the object a training loop holds.

It belongs to the training thread, as does what it shares: parameters change in `step`, `push`,
`pull`, `finish` and `load_state_dict`, and at no other time. The network lives on a thread of its
own and is never waited for, but in `wait`, `finish` and `close`; these waits have deadlines, and
say on expiry what they were waiting for.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from gradwire.errors import ConnectionLostError, DeadlineError, UsageError
from gradwire.features.feature import Feature
from gradwire.replica.pull import PeerUpdate
from gradwire.replica.sharing import Sharing
from gradwire.replica.stats import SessionStats
from gradwire.session.finishing import Finishing
from gradwire.session.offline_limit import OfflineLimit
from gradwire.session.stats import stats_of
from gradwire.settings.settings import Settings
from gradwire.threads.membership import Membership
from gradwire.threads.network import NetworkThread
from gradwire.threads.signals import close_at_the_end, forget, put_off
from gradwire.worker.worker import Worker
from gradwire_protocol import Role
from gradwire_protocol.messages.fields import REASON_CHARACTERS_MAX

logger = logging.getLogger("gradwire.session")


class Session:
    """A worker's membership of a run. Made by `gradwire.join`.

    As a context manager it finishes when the block ends normally, and leaves at once when the
    block ends with an exception, so that the other workers go on without it.

    With the key of an observer it only receives: `step` applies what workers sent and sends
    nothing, `push` is an error, and `finish` waits for the workers to finish, but none of them
    waits for it. It does not count in `world_size`, and its rank is none of a worker's.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        sharing: Sharing,
        membership: Membership,
        network: NetworkThread[Worker],
        role: Role = Role.WORKER,
        parts: Sequence[Feature] = (),
    ) -> None:
        assert membership.welcome is not None
        self._settings = settings
        self._membership = membership
        self._network = network
        self._welcome = membership.welcome
        self._sharing = sharing
        self._sending = sharing.sending
        self._applying = sharing.applying
        self._finishing = Finishing(sharing, membership, network)
        self._observes = role is Role.OBSERVER
        self._parts = parts
        self._paused = False
        self._has_pushed = False
        """Whether there was a push that no pull has ended yet."""
        self._alone = OfflineLimit(settings, membership)
        self._over: str | None = None
        self._gone = False
        self._process = os.getpid()
        close_at_the_end(self)

    # Who takes part.

    @property
    def rank(self) -> int:
        """The rank of this worker, 0 or more; free again when it leaves."""
        return self._welcome.rank

    @property
    def world_size(self) -> int:
        """How many workers take part now."""
        return len(self._membership.peers)

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._welcome.run

    @property
    def transport(self) -> str:
        """What carries the packets to the master: ``"udp"`` or ``"tcp"``."""
        return self._network.worker.transport

    @property
    def finished(self) -> bool:
        """Whether all workers have finished: the loop of an observer ends then."""
        return self._membership.finished is not None

    @property
    def quantum(self) -> float:
        """Resolution of the shared parameters."""
        return self._sharing.shared.quantum

    def wait(self, n_workers: int | None = None, *, timeout: float = 60.0) -> None:
        """Wait until at least so many workers take part.

        Parameters
        ----------
        n_workers : int, optional
            Without it, what the setting `workers` or torchrun's ``WORLD_SIZE`` says.
        timeout : float
            Seconds.

        Raises
        ------
        DeadlineError
            If they do not come in time.
        """
        self._check_open()
        wanted = n_workers if n_workers is not None else self._settings.workers
        if wanted is None:
            raise UsageError("wait() for how many workers? Pass n_workers, or set WORLD_SIZE")
        if not self._membership.wait(lambda: self.world_size >= wanted, timeout):
            self._check_open()
            raise DeadlineError(
                f"waited {timeout:g} s for {wanted} workers; {self.world_size} take part"
            )

    # Training.

    def step(self) -> None:
        """Push what this step changed, and apply what peers sent; an observer only applies.

        To be called after ``optimizer.step()``. Where `join` was given the optimizer, and it made
        no step since the last call, nothing is pushed.

        Raises
        ------
        NonFiniteError
            If a parameter, or a buffer that is due to be averaged, is NaN or infinite; nothing was
            changed or sent.
        OutOfRangeError
            If a parameter has outgrown the run's quantum; nothing was changed or sent.
        ConnectionLostError
            If the master stopped, or was lost and not reached again for `reconnect_seconds`.
        """
        if self._observes:
            self.pull()
            return
        self._check_may_push()
        if self._has_trained():
            self._sending.push()
            if not self._paused:
                self._applying.pull_gathered()
        else:
            self._sending.skip()
            self._check_open()
            if not self._paused:
                self._applying.pull()
        self._end_step()

    def push(self, change: Any = None) -> int:
        """Hand to the network what has reached the threshold; the next `pull` ends this step.

        For loops that do not call `step`. Buffers that are due are sent, as `step` does; and where
        no change is given, and the optimizer that `join` was given made no step since the last
        call, nothing is pushed.

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
        NonFiniteError, OutOfRangeError, ConnectionLostError
            As `step`.
        UsageError
            If this is an observer.
        """
        self._check_may_push()
        if self._has_trained() or change is not None:
            elements = self._sending.push(change)
        else:
            self._sending.skip()
            elements = 0
        self._has_pushed = True
        return elements

    def pull(self) -> list[PeerUpdate]:
        """Apply what peers sent since the last time; return what that was.

        The first one after a `push`, or after several, ends their step, as the end of `step` does:
        buffers that are due are averaged, and with a `staleness_bound` it waits for workers that
        are too far behind. Any other one only applies; an observer's always ends a step.

        Updates that were conflated because too much waited, or that came while it waited for other
        workers, are applied too, and not listed.
        """
        self._check_open()
        if self._paused:
            return []
        applied = self._applying.pull()
        if self._has_pushed or self._observes:
            self._end_step()
        return applied

    @contextmanager
    def paused(self, *, shared: bool = False) -> Iterator[None]:
        """Apply nothing to the parameters inside the block: for an evaluation.

        Peers' updates wait meanwhile, in bounded memory.

        Parameters
        ----------
        shared : bool
            Whether the parameters are the shared ones inside, as an observer has them: without
            what this worker has not sent yet, which is put back afterwards. That takes 4 bytes for
            each parameter meanwhile, and 4 more for a moment at the end. It says how good the run
            is, and not this one worker.
        """
        with ExitStack() as blocks:
            if not self._paused:
                blocks.enter_context(self._applying_nothing())
            if shared and self._over is None:
                blocks.enter_context(self._sharing.shared.without_residual())
            yield

    @contextmanager
    def _applying_nothing(self) -> Iterator[None]:
        self._paused = True
        try:
            with self._applying.lent(applies=False):
                yield
        finally:
            self._paused = False

    # The end.

    def finish(self, *, timeout: float | None = None) -> None:
        """Send what is left, wait for all other workers to finish, and hold the same bits as they.

        Every worker sends its whole residual, or drops it if the setting `finish_residual` says
        so, applies everything that the others sent, and sets its parameters to the shared ones and
        its buffers to the mean of all workers'. An observer does the same, but for sending.

        Parameters
        ----------
        timeout : float, optional
            Seconds; without it, the setting `finish_timeout_seconds`.

        Raises
        ------
        DeadlineError
            If others have not finished in time. It can be called again.
        UsageError
            Inside of `paused`.
        """
        self._check_open()
        if self._paused:
            raise UsageError("finish() inside of paused(): leave that block first")
        deadline = monotonic() + (
            self._settings.finish_timeout_seconds if timeout is None else timeout
        )
        membership = self._membership
        finishing = self._finishing
        if not finishing.has_begun and not self._observes:
            for part in self._parts:
                part.finishing()
            finishing.begin()
        while True:
            # Counted before they are taken, so that one which comes in between is news.
            known = membership.updates_received
            self._check_open()
            finishing.go_on()
            if finishing.is_complete():
                break
            left = deadline - monotonic()
            if left <= 0:
                raise DeadlineError(finishing.what_it_waits_for())
            membership.wait(partial(finishing.has_news, known), left)
        # A correction is in no version vector, but in the inbox before the run is finished.
        self._applying.pull()
        self._sharing.shared.settle()
        for part in self._parts:
            part.finished()
        self._leave("finished")

    def close(self, reason: str = "closed") -> None:
        """Leave the run. What was pushed arrives; what was not stays unsent. Can be repeated.

        Called by a signal handler in the middle of a `step`, it leaves when that is over.
        """
        if self._process != os.getpid() or put_off(partial(self.close, reason)):
            return
        if self._over is None:
            self._leave(reason)
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
        """Finish, or leave at once where the block failed."""
        if error is not None:
            self.close(f"{type(error).__name__}: {error}")
        elif self._over is None:
            try:
                self.finish()
            finally:
                self.close()

    # What there is to know and to keep.

    @property
    def stats(self) -> SessionStats:
        """What the session has done so far."""
        return stats_of(self._sharing, self._membership, self._network)

    def digest(self) -> str:
        """Return 64 bits in hex that are the same for all workers with the same updates applied."""
        return f"{self._sharing.shared.digest():016x}"

    def state_dict(self) -> dict[str, Any]:
        """Return what the session adds to a checkpoint: residual, threshold, versions.

        It belongs to the parameters of this worker at this moment: save both together. Plain
        tensors (arrays for a numpy target), numbers and texts, so that
        ``torch.load(weights_only=True)`` reads it.
        """
        return self._sharing.state.save()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned: the parameters get that residual.

        The shared parameters are the run's and stay as they are. With local feedback the
        parameters of a checkpoint contain the residual. Where they have become the run's, as those
        of the worker that founds it do, everyone has it, and before the first step it is not added
        again.

        Raises
        ------
        UsageError
            If it does not fit; nothing is then changed.
        """
        self._check_open()
        self._sharing.state.restore(state)

    # Private: a step.

    def _has_trained(self) -> bool:
        """Let the parts do what comes before a push; return whether there is anything to push."""
        for part in self._parts:
            part.before_push()
        return all(part.trained() for part in self._parts)

    def _end_step(self) -> None:
        """Let the parts do what is due after a step, unless the session is paused."""
        if self._paused:
            return
        self._has_pushed = False
        for part in self._parts:
            part.stepped()

    # Private: the end.

    def _leave(self, reason: str) -> None:
        self._network.call(self._network.worker.leave, _printable(reason))
        self._over = reason
        self._wait_until_gone(reason)

    def _wait_until_gone(self, reason: str) -> None:
        """Wait until the master has confirmed that we left, or for as long as that may take."""
        network, membership = self._network, self._membership
        timeout = self._settings.leave_timeout_seconds
        with self._applying.lent(applies=True):  # to a master that was started anew
            closed = membership.wait(lambda: membership.closed, timeout)
        if not closed:
            logger.warning(
                "left without knowing that everything arrived: the master did not confirm within "
                "%g s",
                timeout,
            )
            network.call(network.worker.abort, _printable(reason))
        network.stop()
        self._end()
        self._gone = True

    def _end(self) -> None:
        """Give back what the session holds in this process. Can be repeated."""
        forget(self)
        self._sharing.shared.close()
        parts, self._parts = self._parts, ()
        for part in parts:
            part.left()

    def _check_may_push(self) -> None:
        self._check_open()
        if self._observes:
            raise UsageError(
                "an observer sends nothing: its key has the role observer, and it takes the key of "
                "a worker to change the parameters"
            )
        if self._finishing.has_begun:
            raise UsageError(
                "finish() has told the others that no more comes: call it again, or close()"
            )
        if not self._alone.may_train():
            self._check_open()
            raise DeadlineError(self._alone.what_it_waited_for())

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise UsageError("this session belongs to the process that joined, not to its fork")
        if self._over is not None:
            raise UsageError(f"this session is over ({self._over}); join again")
        if self._membership.closed:
            self._network.stop()
            self._end()
            if self._membership.stopping is not None and not self._paused:
                self._applying.pull()  # the master has seen to it that everything came
            raise self._membership.error or ConnectionLostError("the connection is closed")


def _printable(reason: str) -> str:
    return "".join(c if c.isprintable() else " " for c in reason)[:REASON_CHARACTERS_MAX]
