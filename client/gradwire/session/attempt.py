"""`Attempt`: one attempt to join a run, from parameters and settings to a session."""

import logging
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from gradwire.errors import (
    DeadlineError,
    NonFiniteError,
    OutOfRangeError,
    UnreachableError,
    UsageError,
)
from gradwire.features.assembly import parts_of
from gradwire.features.optimizer_state import OptimizerStateSharing, shared_optimizer
from gradwire.features.stats_file import StatsFile
from gradwire.replica.prior_residual import PriorResidual
from gradwire.replica.sharing import Sharing
from gradwire.session.session import Session
from gradwire.session.warm_start import WarmStart
from gradwire.settings.credentials import credentials_of
from gradwire.settings.settings import Settings
from gradwire.settings.training import portion_of
from gradwire.target.adapters import buffers_of
from gradwire.target.parameters import Parameters
from gradwire.threads.membership import Membership
from gradwire.threads.network import NetworkThread
from gradwire.worker.worker import Worker
from gradwire_codecs import (
    Feedback,
    Replica,
    check_headroom,
    largest_magnitude,
    quantum_exponent_for,
)
from gradwire_codecs import NonFiniteError as NotFinite
from gradwire_codecs import OutOfRangeError as OutOfRange
from gradwire_codecs.format.sections import MULTIPLE_MAX
from gradwire_codecs.replica.replica import HEADROOM
from gradwire_protocol.crypto.keys import Role
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, name_in_roster
from gradwire_protocol.messages.fields import WORKER_ID_BYTES, WORKER_NAME_CHARACTERS_MAX
from gradwire_protocol.messages.layout import LAYOUT_BYTES_MAX
from gradwire_udp import resolve, show_address

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("gradwire.join")


class Attempt:
    """One attempt to join, up to the session.

    Parameters
    ----------
    settings : Settings
    parameters : Parameters
    target : object
        What is trained, of which these are the parameters.
    optimizer : object
        What changes it, if `join` was given that.
    """

    def __init__(
        self, settings: Settings, parameters: Parameters, target: object, optimizer: object
    ) -> None:
        self._target = target
        self._optimizer = None if optimizer is None else _optimizer_of(optimizer, target)
        self._settings = settings
        self._parameters = parameters
        self._deadline = monotonic() + settings.join_timeout_seconds
        self._family, self._address = resolve(settings.master)
        self._master = show_address(self._address)
        credentials = credentials_of(settings.key, settings.key_file, settings.cipher)
        key = None if credentials is None else credentials.key
        self._role = Role.WORKER if key is None else key.role
        own_name = f"{platform.node()}/{os.getpid()}"[-WORKER_NAME_CHARACTERS_MAX:]
        shared = None
        if settings.share_optimizer_state and self._role is Role.WORKER:
            shared = shared_optimizer(self._optimizer, parameters)
        self._name = name_in_roster(None if key is None else key.name, own_name)
        request = Join(
            run=settings.run,
            worker_id=os.urandom(WORKER_ID_BYTES),
            name=own_name,
            rank=settings.rank,
            codec=CODEC_VERSION,
            quantum_exponent=self._quantum_exponent(),
            layout=parameters.layout,
            gives_state=shared is not None,
        )
        size = len(request.layout.pack())
        if size > LAYOUT_BYTES_MAX:
            raise UsageError(
                f"the names and shapes of {len(request.layout.tensors)} parameters take {size} "
                f"bytes; the limit is {LAYOUT_BYTES_MAX}"
            )
        self._buffers = buffers_of(target) if settings.share_buffers else None
        self._membership = Membership(parameters.layout.elements)
        self._worker = Worker(
            request,
            self._membership,
            self._master,
            random=SystemRandom().random,
            reconnect_seconds=settings.reconnect_seconds,
            buffers=None if self._buffers is None else self._buffers.layout,
        )
        self._network = NetworkThread(settings, self._worker, self._membership, credentials)
        self._membership.leave = partial(self._network.call, self._worker.comply)
        self._states = None
        if shared is not None:
            layout = parameters.layout
            self._states = OptimizerStateSharing(shared, layout, self._membership, self._network)

    def session(self) -> Session:
        """Return the session, or raise why there is none."""
        try:
            self._network.start(self._family, self._address)
        except OSError as error:
            raise UnreachableError(f"no socket to reach {self._master} with: {error}") from None
        try:
            replica = self._replica()
            self._warn(replica)
            feedback = self._feedback(replica)
            prior_residual = PriorResidual.of(
                feedback, self._settings.feedback, is_founder=self._is_founder()
            )
            feedback.settle()
            self._parameters.scatter()
            sharing = Sharing(
                settings=self._settings,
                parameters=self._parameters,
                feedback=feedback,
                membership=self._membership,
                network=self._network,
                prior_residual=prior_residual,
            )
            self._warm_start(sharing)
            if self._states is not None:
                self._states.take_over(sharing.applying, self._deadline)
            return self._session_of(sharing)
        except BaseException:
            self._network.call(self._worker.abort, "joining failed")
            self._network.stop()
            raise

    def _warm_start(self, sharing: Sharing) -> None:
        """Wait while it is for others to make the first steps of the run."""
        settings = self._settings
        if settings.warm_up_workers is not None and self._role is not Role.OBSERVER:
            WarmStart(
                settings.warm_up_workers,
                settings.warm_up_steps,
                sharing,
                self._membership,
                timeout_seconds=settings.join_timeout_seconds,
            ).wait()

    def _session_of(self, sharing: Sharing) -> Session:
        """Return the session, with its parts and, where the environment asks for it, its file."""
        membership = self._membership
        assert membership.welcome is not None
        parts = parts_of(
            self._settings,
            sharing,
            membership,
            self._network,
            observes=self._role is Role.OBSERVER,
            target=self._target,
            optimizer=self._optimizer,
            buffers=self._buffers,
            states=self._states,
        )
        file = StatsFile.wanted(
            os.environ, membership.welcome.rank, self._parameters.layout.elements
        )
        session = Session(
            settings=self._settings,
            sharing=sharing,
            membership=membership,
            network=self._network,
            role=self._role,
            parts=parts if file is None else [file.beginning, *parts, file],
        )
        if file is not None:
            file.watch(lambda: session.stats)
        return session

    def _tell_the_way(self) -> None:
        """Say what carries the packets, and why it is not what was tried first."""
        transport, detour = self._worker.transport.upper(), self._worker.detour
        reason = f" ({detour})" if detour else ""
        logger.info("connected to the master at %s over %s%s", self._master, transport, reason)

    def _warn(self, replica: Replica) -> None:
        """Say what was asked for and will not be."""
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

    def _quantum_exponent(self) -> int:
        """Return the quantum that suits our parameters; refuse one that does not."""
        vector = self._parameters.vector
        layout = self._parameters.layout
        try:
            fitting = quantum_exponent_for([largest_magnitude(vector)])
            exponent = self._settings.quantum_exponent
            if exponent is None:
                exponent = fitting
            check_headroom(vector, exponent)
        except NotFinite as error:
            raise NonFiniteError(
                f"parameter {layout.locate(error.index)} is {error.value}"
            ) from None
        except OutOfRange as error:
            where = f"parameter {layout.locate(error.index)} is {error.value:g}; "
            most = 2.0**31 / HEADROOM
            if abs(error.value) >= most:
                raise OutOfRangeError(
                    f"{where}with the largest quantum, 1, magnitudes have to stay below {most:g} "
                    "to leave room to grow"
                ) from None
            raise OutOfRangeError(
                f"{where}to leave it room to grow, quantum={self._settings.quantum} allows "
                f"magnitudes below {error.limit:g}. quantum={2.0**fitting!r} would do"
            ) from None
        return exponent

    def _replica(self) -> Replica:
        """Talk with the master until there is a replica that both have."""
        membership = self._membership
        self._wait(lambda: membership.welcome is not None)
        self._tell_the_way()
        self._wait(lambda: membership.live or self._is_founder())
        welcome = membership.welcome
        assert welcome is not None
        if not welcome.founder:
            assert membership.snapshot is not None
            received = np.frombuffer(membership.snapshot, "<i4").astype(np.int32, copy=False)
            membership.snapshot = None
            return Replica(received, welcome.quantum_exponent)
        replica = Replica.from_parameters(self._parameters.vector, welcome.quantum_exponent)
        self._network.call(self._worker.found, replica.values.astype("<i4").tobytes())
        self._wait(lambda: membership.live)
        return replica

    def _is_founder(self) -> bool:
        """Return whether our parameters start the run."""
        welcome = self._membership.welcome
        return welcome is not None and welcome.founder

    def _feedback(self, replica: Replica) -> Feedback:
        return self._parameters.feedback(
            replica,
            portion=portion_of(self._settings.feedback),
            threads=self._settings.codec_threads,
        )

    def _wait(self, condition: Callable[[], bool]) -> None:
        membership = self._membership
        if membership.wait(condition, self._deadline - monotonic()):
            return
        if membership.error is not None:
            raise membership.error
        raise DeadlineError(
            f"joining took longer than {self._settings.join_timeout_seconds:g} s; it was waiting "
            f"for {self._what_is_missing()}"
        )

    def _what_is_missing(self) -> str:
        membership = self._membership
        elements = self._parameters.layout.elements
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
        # We are in the roster and were not welcomed: that comes with the first parameters.
        return "the run's first worker to send its parameters: " + ", ".join(
            f"rank {peer.rank} ({peer.name})" for peer in others
        )


def _optimizer_of(optimizer: object, target: object) -> "torch.optim.Optimizer":
    """Return the torch optimizer that changes a target, or raise `UsageError`."""
    if "torch" not in sys.modules:
        raise UsageError(f"optimizer={type(optimizer).__name__}; it has to be one of torch's")
    # Whoever has an optimizer of torch has imported it; nobody else has to pay for that.
    from gradwire.features.optimizer_control import torch_optimizer

    return torch_optimizer(optimizer, target)
