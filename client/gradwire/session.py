"""`Session`: a worker's membership of a run, the object a training loop holds.

It belongs to the training thread, as does what it shares: parameters change in `step`, `push`,
`pull`, `finish` and `load_state_dict`, and at no other time. The network lives on a thread of its
own and is never waited for, but in `wait`, `finish` and `close`; these waits have deadlines, and
say on expiry what they were waiting for.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from gradwire.errors import ConnectionLostError, DeadlineError, UsageError
from gradwire.membership import Membership
from gradwire.network import NetworkThread
from gradwire.process_end import close_at_the_end, forget, put_off
from gradwire.settings import Settings
from gradwire.sharing import PeerUpdate, Sharing
from gradwire.stats import SessionStats
from gradwire.worker import Worker
from gradwire_protocol import Role
from gradwire_protocol.messages import REASON_CHARACTERS_MAX, covers, total

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
    ) -> None:
        assert membership.welcome is not None
        self._settings = settings
        self._membership = membership
        self._network = network
        self._welcome = membership.welcome
        self._sharing = sharing
        self._observes = role is Role.OBSERVER
        self._paused = False
        self._alone = 0
        """Steps since the connection was lost."""
        self._finishing = False
        self._said_finished = False
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
        return self._sharing.quantum

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

        To be called after ``optimizer.step()``.

        Raises
        ------
        NonFiniteError
            If a parameter is NaN or infinite; nothing was changed or sent.
        OutOfRangeError
            If a parameter has outgrown the run's quantum; nothing was changed or sent.
        ConnectionLostError
            If the master stopped, or was lost and not reached again for `reconnect_seconds`.
        """
        if self._observes:
            self.pull()
            return
        self._check_may_push()
        self._sharing.push()
        if not self._paused:
            self._sharing.pull_gathered()

    def push(self, change: Any = None) -> int:
        """Hand to the network what has reached the threshold.

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
        return self._sharing.push(change)

    def pull(self) -> list[PeerUpdate]:
        """Apply what peers sent since the last time; return what that was.

        Updates that were conflated because too much waited are applied too, and not listed.
        """
        self._check_open()
        return [] if self._paused else self._sharing.pull()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Apply nothing to the parameters inside the block: for an evaluation.

        Peers' updates wait meanwhile, in bounded memory.
        """
        if self._paused:
            yield
            return
        self._paused = True
        try:
            with self._sharing.lent(applies=False):
                yield
        finally:
            self._paused = False

    # The end.

    def finish(self, *, timeout: float | None = None) -> None:
        """Send what is left, wait for all other workers to finish, and hold the same bits as they.

        Every worker sends its whole residual, applies everything that the others sent, and sets
        its parameters to the shared ones. An observer does the same, but for sending.

        Parameters
        ----------
        timeout : float, optional
            Seconds; without it, the setting `finish_timeout_seconds`.

        Raises
        ------
        DeadlineError
            If others have not finished in time. It can be called again.
        """
        self._check_open()
        deadline = monotonic() + (
            self._settings.finish_timeout_seconds if timeout is None else timeout
        )
        membership = self._membership
        if not self._finishing and not self._observes:
            self._sharing.flush()
            self._finishing = True
        while True:
            # Counted before they are taken, so that one which comes in between is news.
            known = membership.updates_received
            self._check_open()
            self._sharing.pull()
            if self._finishing and not self._said_finished and self._sharing.flush_on():
                self._network.call(self._network.worker.finish)
                self._said_finished = True
            if self._is_complete():
                break
            left = deadline - monotonic()
            if left <= 0:
                raise DeadlineError(self._what_finish_waits_for())
            membership.wait(partial(self._has_news, known), left)
        # A correction is in no version vector, but in the inbox before the run is finished.
        self._sharing.pull()
        self._sharing.settle()
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
        tally, traffic = self._sharing.tally, self._network.traffic
        staleness = tally.staleness
        return SessionStats(
            steps=tally.steps,
            steps_deferred=tally.steps_deferred,
            updates_sent=tally.updates_sent,
            updates_delivered=self._membership.updates_delivered,
            updates_stable=max(
                self._membership.stable.get(self.rank, 0) - self._welcome.sequence, 0
            ),
            updates_clipped=self._membership.updates_clipped,
            updates_applied=tally.updates_applied,
            updates_conflated=tally.updates_conflated,
            reconnections=self._membership.reconnections,
            rebases=self._membership.rebases,
            repairs=self._sharing.mending.repairs,
            blocks_repaired=self._sharing.mending.blocks_repaired,
            elements_sent=tally.elements_sent,
            bytes_encoded=tally.bytes_encoded,
            transport=self.transport,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            datagrams_sent=traffic.packets_sent,
            datagrams_received=traffic.packets_received,
            density=tally.density,
            threshold=tally.threshold,
            residual=self._sharing.thresholds.residual_statistics(),
            elements_clipped=tally.elements_clipped,
            magnitude_clipped=tally.magnitude_clipped,
            staleness=sum(staleness) / len(staleness) if staleness else 0.0,
            staleness_max=max(staleness, default=0),
            rtt_seconds=self._network.worker.rtt,
            encode_seconds=tally.encode_seconds,
            apply_seconds=tally.apply_seconds,
        )

    def digest(self) -> str:
        """Return 64 bits in hex that are the same for all workers with the same updates applied."""
        return f"{self._sharing.digest():016x}"

    def state_dict(self) -> dict[str, Any]:
        """Return what the session adds to a checkpoint: residual, threshold, versions.

        Plain tensors (arrays for a numpy target), numbers and texts, so that
        ``torch.load(weights_only=True)`` reads it.
        """
        return self._sharing.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned: the parameters get that residual.

        The shared parameters are the run's and stay as they are.

        Raises
        ------
        UsageError
            If it does not fit; nothing is then changed.
        """
        self._check_open()
        self._sharing.restore(state)

    # Private: the end.

    def _has_news(self, updates_known: int) -> bool:
        return (
            self._membership.updates_received != updates_known
            or self._membership.wanted
            or self._membership.comparison is not None
            or self._is_complete()
            or self._sharing.may_flush_on()
        )

    def _is_complete(self) -> bool:
        finished = self._membership.finished
        return (
            finished is not None
            and covers(self._sharing.versions, finished)
            and not self._membership.mending
        )

    def _what_finish_waits_for(self) -> str:
        finished = self._membership.finished
        if self._finishing and not self._said_finished:
            return (
                "finish() waited in vain for the slowest worker to take what is left: "
                f"{self._sharing.unflushed} of our elements are not sent yet. Call it again to "
                "wait on, or close() to leave without sending them"
            )
        if finished is None:
            others = [
                f"{peer.rank} ({peer.name})"
                for peer in self._membership.peers
                if not peer.finished and peer.rank != self.rank
            ]
            return (
                f"finish() waited in vain for these ranks to finish: {', '.join(others)}. "
                "Call it again to wait on, or close() to leave without them"
            )
        missing = total(finished, without=-1) - total(self._sharing.versions, without=-1)
        return f"finish() waited in vain for {missing} updates of other workers to arrive"

    def _leave(self, reason: str) -> None:
        self._network.call(self._network.worker.leave, _printable(reason))
        self._over = reason
        self._wait_until_gone(reason)

    def _wait_until_gone(self, reason: str) -> None:
        """Wait until the master has confirmed that we left, or for as long as that may take."""
        network, membership = self._network, self._membership
        timeout = self._settings.leave_timeout_seconds
        with self._sharing.lent(applies=True):  # to a master that was started anew
            closed = membership.wait(lambda: membership.closed, timeout)
        if not closed:
            logger.warning(
                "left without knowing that everything arrived: the master did not confirm within "
                "%g s",
                timeout,
            )
            network.call(network.worker.abort, _printable(reason))
        network.stop()
        self._sharing.close()
        self._gone = True
        forget(self)

    def _wait_if_too_long_alone(self) -> None:
        """Train on without the master for some steps, and then wait for it."""
        membership, settings = self._membership, self._settings
        if membership.lost is None:
            self._alone = 0
            return
        self._alone += 1
        if self._alone <= settings.alone_steps_max:
            return
        # The worker gives up after the former; the last try may take the latter.
        timeout = settings.reconnect_seconds + settings.connect_timeout_seconds
        if not membership.wait(lambda: _is_called(membership), timeout):
            self._check_open()
            raise DeadlineError(
                f"{settings.alone_steps_max} steps were trained without the master; waited "
                f"{timeout:g} s for it to come back"
            )

    def _check_may_push(self) -> None:
        self._check_open()
        if self._observes:
            raise UsageError(
                "an observer sends nothing: its key has the role observer, and it takes the key of "
                "a worker to change the parameters"
            )
        if self._finishing:
            raise UsageError(
                "finish() has told the others that no more comes: call it again, or close()"
            )
        self._wait_if_too_long_alone()

    def _check_open(self) -> None:
        if self._process != os.getpid():
            raise UsageError("this session belongs to the process that joined, not to its fork")
        if self._over is not None:
            raise UsageError(f"this session is over ({self._over}); join again")
        if self._membership.closed:
            forget(self)
            self._network.stop()
            self._sharing.close()
            if self._membership.stopping is not None and not self._paused:
                self._sharing.pull()  # the master has seen to it that everything came
            raise self._membership.error or ConnectionLostError("the connection is closed")


def _printable(reason: str) -> str:
    return "".join(c if c.isprintable() else " " for c in reason)[:REASON_CHARACTERS_MAX]


def _is_called(membership: Membership) -> bool:
    """Return whether the training thread is needed, or need not wait for the master any more."""
    called = membership.wanted or membership.comparison is not None
    return membership.lost is None or called
