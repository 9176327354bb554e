"""`Entry`: one attempt of a worker to enter a run, up to its first step, without threads."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gradwire.errors import DeadlineError, UsageError
from gradwire.participant.participant import Participant
from gradwire.replica.checkpoint_state import brought_digest
from gradwire.replica.waits import Procedure, until
from gradwire.session.assembly import features_of
from gradwire.session.start import Meeting, WarmStart
from gradwire.settings.settings import Settings
from gradwire.target.buffers import ModuleBuffers, first_buffers
from gradwire.target.parameters import Parameters
from gradwire.target.with_state import Averaged, Averages, WithState
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_codecs import Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.format.header import MULTIPLE_MAX
from gradwire_protocol.messages.admission import Join, Welcome, name_in_roster
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.mode import model_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("gradwire.join")

NAMED_MAX: Final = 3
"""Parameters that a warning names."""


@dataclass(eq=False, kw_only=True)
class Entry:
    """A worker that does not take part yet."""

    settings: Settings
    parameters: Parameters
    request: Join
    membership: Membership
    master: str
    random: Callable[[], float]
    """Returns numbers from 0 to 1, evenly distributed."""
    clock: Callable[[], float]
    """Returns seconds since any fixed moment."""
    target: object = None
    """What is trained, if `join` was given that."""
    optimizer: "torch.optim.Optimizer | None" = None
    """What changes it."""
    averages: Averages | None = None
    """Has the state of the optimizer averaged, where the mode of the run is to."""
    buffers: ModuleBuffers | None = None
    """Those of the target that are shared, if it has any."""
    key_name: str | None = None
    """The name in the key that it dials with."""
    observes: bool = False
    """Whether it only receives, and trains nothing."""

    def __post_init__(self) -> None:
        self._deadline = 0.0
        self._averaged: Averaged | None = None
        self.worker = Worker(
            self.request,
            self.membership,
            self.master,
            random=self.random,
            reconnect_seconds=self.settings.reconnect_seconds,
            buffers=None if self.buffers is None else self.buffers.layout,
        )

    def enter(self) -> Procedure[Participant]:
        """Wait until this worker takes part and may make its first step.

        Raises the `GradwireError` that says why it cannot.
        """
        yield from self._connect()
        self._deadline = self.clock() + self.settings.join_timeout_seconds
        replica = yield from self._replica()
        self._log_rank()
        self._warn_of_settings(replica)
        assert self.membership.welcome is not None
        settings, parameters = self._settings_here(), self.parameters
        kind = settings.feedback
        if self.membership.welcome.mode.optimizer is not None:
            kind = "local"  # gradients have a feedback of their own, so nothing is left here
        feedback = parameters.feedback(replica, kind=kind)
        brought = brought_digest(feedback)
        feedback.drop_residual()
        parameters.scatter()
        if self._averaged is not None:
            self._averaged.write()
        participant = Participant(
            settings=settings,
            parameters=parameters,
            feedback=feedback,
            membership=self.membership,
            worker=self.worker,
            clock=self.clock,
            brought_digest=brought,
            averaged=self._averaged,
            observes=self.observes,
        )
        if not self.observes:
            yield from Meeting(participant).wait()
            self._deadline = self.clock() + settings.join_timeout_seconds
        if settings.warm_up_workers is not None and not self.observes:
            yield from WarmStart(participant).wait()
        if self.buffers is not None:
            yield from self._others_buffers()
        participant.features = features_of(
            participant,
            target=self.target,
            optimizer=self.optimizer,
            buffers=self.buffers,
        )
        return participant

    # Private.

    def _connect(self) -> Procedure[None]:
        """Wait until a master answers; `Dialing` knows best how long, and says why none does."""
        settings, membership = self.settings, self.membership
        self._deadline = self.clock() + (
            settings.connect_timeout_seconds
            + settings.start_timeout_seconds
            + settings.join_timeout_seconds
        )
        yield from self._wait(lambda: membership.connected)

    def _replica(self) -> Procedure[Replica]:
        """Talk with the master until both have the same replica."""
        membership = self.membership
        yield from self._wait(lambda: membership.welcome is not None)
        self._log_connection()
        yield from self._wait(lambda: membership.live or self._is_founder())
        welcome = membership.welcome
        assert welcome is not None
        if welcome.mode.has_state:
            self._add_state(welcome)
        if not welcome.founder:
            assert membership.snapshot is not None
            received = np.frombuffer(membership.snapshot, "<i4").astype(np.int32, copy=False)
            membership.snapshot = None
            return Replica(received, welcome.quantum_exponent)
        replica = Replica.from_parameters(self.parameters.vector, welcome.quantum_exponent)
        _warn_of_small(self.parameters.layout, self.parameters.vector, replica)
        first = None if self.buffers is None else first_buffers(self.buffers, welcome.rank)
        membership.post(self.worker.found, replica.values.astype("<i4").tobytes(), first)
        yield from self._wait(lambda: membership.live)
        return replica

    def _add_state(self, welcome: Welcome) -> None:
        """Have the state of an optimizer behind the parameters, as the replica has it.

        Raises `UsageError` if there is no optimizer, or ours keeps something else.
        """
        target, kept = self.parameters, welcome.mode.optimizer_state
        self.parameters = beside = WithState(target, welcome.layout)
        if kept is None or self.observes:
            return
        if self.averages is None:
            raise UsageError(
                f"this run averages the state of its optimizers (mode {welcome.mode}): "
                "join(model, optimizer=optimizer, ...)"
            )
        quantum = 2.0**welcome.quantum_exponent
        self._averaged = self.averages(kept, target.layout, beside.state, quantum)
        self._averaged.read()

    def _settings_here(self) -> Settings:
        """Return the settings as they hold in the mode of the run.

        Raises `UsageError` if it has no use for what `join` was given.
        """
        assert self.membership.welcome is not None
        mode = self.membership.welcome.mode
        if mode.optimizer is not None and self.optimizer is not None:
            raise UsageError(
                f"optimizer={type(self.optimizer).__name__}: in this run the master steps, with "
                f"{mode.optimizer.name} (mode {mode}). Join without an optimizer, and leave out "
                "its step() and its schedule: session.step() sends the gradient"
            )
        return self.settings.in_mode(mode)

    def _others_buffers(self) -> Procedure[None]:
        """Wait for what the buffers of others hold, which this worker begins with."""
        membership = self.membership
        if not (
            yield from until(
                membership,
                lambda: not membership.buffers_due,
                self._deadline,
                self.clock,
                lambda: f"the buffers of {membership.buffers_due} workers",
            )
        ):
            if membership.error is not None:
                raise membership.error
            logger.warning(
                "the buffers of %d workers did not come in %g s: this worker begins without them",
                membership.buffers_due,
                self.settings.join_timeout_seconds,
            )

    def _is_founder(self) -> bool:
        """Return whether our parameters start the run."""
        welcome = self.membership.welcome
        return welcome is not None and welcome.founder

    def _wait(self, condition: Callable[[], bool]) -> Procedure[None]:
        membership = self.membership
        if (
            yield from until(
                membership, condition, self._deadline, self.clock, self._what_is_missing
            )
        ):
            return
        if membership.error is not None:
            raise membership.error
        raise DeadlineError(
            f"joining took longer than {self.settings.join_timeout_seconds:g} s; it was waiting "
            f"for {self._what_is_missing()}"
        )

    def _what_is_missing(self) -> str:
        membership = self.membership
        elements = self.parameters.layout.elements
        if not membership.connected:
            return self.worker.dialling_for
        if membership.welcome is not None:
            if membership.welcome.founder:
                return f"the master at {self.master} to take our {elements} parameters"
            return (
                f"the run's parameters: {membership.snapshot_elements} of {elements} have come "
                f"from {self.master}"
            )
        name = name_in_roster(self.key_name, self.request.name)
        others = [peer for peer in membership.peers if peer.name != name]
        if not others:
            return f"the master at {self.master} to let us in"
        # The WELCOME of a worker in the roster comes with the first parameters.
        return "the run's first worker to send its parameters: " + ", ".join(
            f"rank {peer.rank} ({peer.name})" for peer in others
        )

    def _log_connection(self) -> None:
        """Log what leads to the master, and why it is not the transport that was tried first."""
        transport, detour = self.worker.transport.upper(), self.worker.detour
        reason = f" ({detour})" if detour else ""
        rtt = self.worker.rtt
        logger.info(
            "connected to the master at %s over %s%s, %s%s",
            self.master,
            transport,
            reason,
            "without a key" if self.key_name is None else "sealed",
            "" if rtt is None else f", {1e3 * rtt:.2g} ms there and back",
        )

    def _log_rank(self) -> None:
        """Log the place in the run, and whose parameters it has."""
        welcome = self.membership.welcome
        assert welcome is not None
        logger.info(
            "%s %d of run %r, which %s: %s in all",
            "observer" if self.observes else "rank",
            welcome.rank,
            welcome.run,
            "begins with this worker's parameters"
            if welcome.founder
            else "has given this worker its parameters",
            f"{model_of(self.parameters.layout).elements:,}",
        )

    def _warn_of_settings(self, replica: Replica) -> None:
        """Warn of settings that this run cannot follow."""
        asked, quantum = self.settings.quantum, float(replica.quantum)
        if asked is not None and asked != quantum:
            logger.warning("quantum=%g was asked for; this run has %g", asked, quantum)
        threshold = self.settings.make_policy().threshold
        if threshold is not None and threshold > MULTIPLE_MAX * quantum:
            logger.warning(
                "threshold=%g was asked for; with the quantum of this run it is %g at most",
                threshold,
                MULTIPLE_MAX * quantum,
            )


def _warn_of_small(layout: Layout, parameters: Float32Array, replica: Replica) -> None:
    """Warn of tensors of which most that is not 0 is 0 in the run, for all workers.

    The shared parameters are whole numbers of quanta, of 2^-24 unless parameters are large, and
    travel as such.

    Parameters
    ----------
    layout : Layout
    parameters : ndarray of shape (N,), dtype float32
        Those of the worker that begins the run.
    replica : Replica
        What it begins with.
    """
    lost = list[str]()
    start = 0
    for tensor in layout.tensors:
        span = slice(start, start + tensor.elements)
        start = span.stop
        values = parameters[span]
        there = np.count_nonzero(values)
        if 2 * np.count_nonzero(replica.values[span]) < there:
            lost.append(f"{tensor.name!r} (up to {float(np.abs(values).max()):.2g})")
    if not lost:
        return
    more = f" and {len(lost) - NAMED_MAX} more" if len(lost) > NAMED_MAX else ""
    logger.warning(
        "most of parameter %s%s is 0 from now on: it is smaller than half a quantum, %.2g, and "
        "what workers share is whole quanta. Train it in another unit, such as its logarithm, or "
        "keep a constant as a buffer",
        ", ".join(lost[:NAMED_MAX]),
        more,
        float(replica.quantum) / 2,
    )
