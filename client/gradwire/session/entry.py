"""`Entry`: one attempt of a worker to enter a run, up to its first step, without threads."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gradwire.errors import DeadlineError, UsageError
from gradwire.participant.participant import Participant
from gradwire.replica.prior_residual import PriorResidual
from gradwire.replica.waits import Procedure, until
from gradwire.session.assembly import features_of
from gradwire.session.meeting import Meeting
from gradwire.session.resolution import warn_of_small
from gradwire.session.warm_start import WarmStart
from gradwire.settings.settings import Settings
from gradwire.target.buffers import ModuleBuffers, first_buffers
from gradwire.target.parameters import Parameters
from gradwire.target.with_state import Averaged, Averages, WithState
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_codecs import Replica
from gradwire_codecs.format.header import MULTIPLE_MAX
from gradwire_protocol.messages.admission import Join, Welcome, name_in_roster
from gradwire_protocol.messages.modes.mode import model_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("gradwire.join")


class Entry:
    """A worker that does not take part yet.

    Parameters
    ----------
    random : callable
        Returns numbers from 0 to 1, evenly distributed.
    clock : callable
        Returns seconds since any fixed moment.
    target, optimizer : object
        What is trained, and what changes it, if `join` was given that.
    averages : Averages, optional
        Has the state of the optimizer averaged, where the mode of the run is to.
    buffers : ModuleBuffers, optional
        Those of the target that are shared, if it has any.
    key_name : str, optional
        The name in the key that it dials with.
    """

    def __init__(
        self,
        settings: Settings,
        parameters: Parameters,
        request: Join,
        membership: Membership,
        *,
        master: str,
        random: Callable[[], float],
        clock: Callable[[], float],
        target: object = None,
        optimizer: "torch.optim.Optimizer | None" = None,
        averages: Averages | None = None,
        buffers: ModuleBuffers | None = None,
        key_name: str | None = None,
        observes: bool = False,
    ) -> None:
        self._settings = settings
        self._parameters = parameters
        self._master = master
        self._clock = clock
        self._target = target
        self._optimizer = optimizer
        self._buffers = buffers
        self._key_name = key_name
        self._name = name_in_roster(key_name, request.name)
        self._observes = observes
        self._deadline = 0.0
        self.membership = membership
        self.worker = Worker(
            request,
            membership,
            master,
            random=random,
            reconnect_seconds=settings.reconnect_seconds,
            buffers=None if buffers is None else buffers.layout,
        )
        self._averages = averages
        self._averaged: Averaged | None = None

    def enter(self) -> Procedure[Participant]:
        """Wait until this worker takes part and may make its first step.

        Raises the `GradwireError` that says why it cannot.
        """
        yield from self._connect()
        self._deadline = self._clock() + self._settings.join_timeout_seconds
        replica = yield from self._replica()
        self._log_rank()
        self._warn_of_settings(replica)
        assert self.membership.welcome is not None
        settings, parameters = self._settings_here(), self._parameters
        kind = settings.feedback
        if self.membership.welcome.mode.optimizer is not None:
            kind = "local"  # gradients have a feedback of their own, so nothing is left here
        feedback = parameters.feedback(replica, kind=kind)
        prior_residual = PriorResidual.of(feedback, settings.feedback)
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
            clock=self._clock,
            prior_residual=prior_residual,
            averaged=self._averaged,
            observes=self._observes,
        )
        if not self._observes:
            yield from Meeting(
                settings.workers, participant, timeout_seconds=settings.start_timeout_seconds
            ).wait()
            self._deadline = self._clock() + settings.join_timeout_seconds
        if settings.warm_up_workers is not None and not self._observes:
            yield from WarmStart(
                settings.warm_up_workers,
                settings.warm_up_steps,
                participant,
                timeout_seconds=settings.join_timeout_seconds,
            ).wait()
        if self._buffers is not None:
            yield from self._others_buffers()
        participant.features = features_of(
            participant,
            target=self._target,
            optimizer=self._optimizer,
            buffers=self._buffers,
        )
        return participant

    # Private.

    def _connect(self) -> Procedure[None]:
        """Wait until a master answers; `Dialing` knows best how long, and says why none does."""
        settings, membership = self._settings, self.membership
        self._deadline = self._clock() + (
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
        replica = Replica.from_parameters(self._parameters.vector, welcome.quantum_exponent)
        warn_of_small(self._parameters.layout, self._parameters.vector, replica)
        first = None if self._buffers is None else first_buffers(self._buffers, welcome.rank)
        membership.post(self.worker.found, replica.values.astype("<i4").tobytes(), first)
        yield from self._wait(lambda: membership.live)
        return replica

    def _add_state(self, welcome: Welcome) -> None:
        """Have the state of an optimizer behind the parameters, as the replica has it.

        Raises `UsageError` if there is no optimizer, or ours keeps something else.
        """
        target, kept = self._parameters, welcome.mode.optimizer_state
        self._parameters = beside = WithState(target, welcome.layout)
        if kept is None or self._observes:
            return
        if self._averages is None:
            raise UsageError(
                f"this run averages the state of its optimizers (mode {welcome.mode}): "
                "join(model, optimizer=optimizer, ...)"
            )
        quantum = 2.0**welcome.quantum_exponent
        self._averaged = self._averages(kept, target.layout, beside.state, quantum)
        self._averaged.read()

    def _settings_here(self) -> Settings:
        """Return the settings as they hold in the mode of the run.

        Raises `UsageError` if it has no use for what `join` was given.
        """
        assert self.membership.welcome is not None
        mode = self.membership.welcome.mode
        if mode.optimizer is not None and self._optimizer is not None:
            raise UsageError(
                f"optimizer={type(self._optimizer).__name__}: in this run the master steps, with "
                f"{mode.optimizer.name} (mode {mode}). Join without an optimizer, and leave out "
                "its step() and its schedule: session.step() sends the gradient"
            )
        return self._settings.in_mode(mode)

    def _others_buffers(self) -> Procedure[None]:
        """Wait for what the buffers of others hold, which this worker begins with."""
        membership = self.membership
        if not (
            yield from until(
                membership,
                lambda: not membership.buffers_due,
                self._deadline,
                self._clock,
                lambda: f"the buffers of {membership.buffers_due} workers",
            )
        ):
            if membership.error is not None:
                raise membership.error
            logger.warning(
                "the buffers of %d workers did not come in %g s: this worker begins without them",
                membership.buffers_due,
                self._settings.join_timeout_seconds,
            )

    def _is_founder(self) -> bool:
        """Return whether our parameters start the run."""
        welcome = self.membership.welcome
        return welcome is not None and welcome.founder

    def _wait(self, condition: Callable[[], bool]) -> Procedure[None]:
        membership = self.membership
        if (
            yield from until(
                membership, condition, self._deadline, self._clock, self._what_is_missing
            )
        ):
            return
        if membership.error is not None:
            raise membership.error
        raise DeadlineError(
            f"joining took longer than {self._settings.join_timeout_seconds:g} s; it was waiting "
            f"for {self._what_is_missing()}"
        )

    def _what_is_missing(self) -> str:
        membership = self.membership
        elements = self._parameters.layout.elements
        if not membership.connected:
            return self.worker.dialling_for
        if membership.welcome is not None:
            if membership.welcome.founder:
                return f"the master at {self._master} to take our {elements} parameters"
            return (
                f"the run's parameters: {membership.snapshot_elements} of {elements} have come "
                f"from {self._master}"
            )
        others = [peer for peer in membership.peers if peer.name != self._name]
        if not others:
            return f"the master at {self._master} to let us in"
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
            self._master,
            transport,
            reason,
            "without a key" if self._key_name is None else "sealed",
            "" if rtt is None else f", {1e3 * rtt:.2g} ms there and back",
        )

    def _log_rank(self) -> None:
        """Log the place in the run, and whose parameters it has."""
        welcome = self.membership.welcome
        assert welcome is not None
        logger.info(
            "%s %d of run %r, which %s: %s in all",
            "observer" if self._observes else "rank",
            welcome.rank,
            welcome.run,
            "begins with this worker's parameters"
            if welcome.founder
            else "has given this worker its parameters",
            f"{model_of(self._parameters.layout).elements:,}",
        )

    def _warn_of_settings(self, replica: Replica) -> None:
        """Warn of settings that this run cannot follow."""
        asked, quantum = self._settings.quantum, float(replica.quantum)
        if asked is not None and asked != quantum:
            logger.warning("quantum=%g was asked for; this run has %g", asked, quantum)
        threshold = self._settings.make_policy().threshold
        if threshold is not None and threshold > MULTIPLE_MAX * quantum:
            logger.warning(
                "threshold=%g was asked for; with the quantum of this run it is %g at most",
                threshold,
                MULTIPLE_MAX * quantum,
            )
