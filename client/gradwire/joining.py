"""`join`: from a model to a session that takes part in a run."""

import logging
import os
import platform
from collections.abc import Callable
from functools import partial
from os import PathLike
from random import SystemRandom
from threading import Timer
from time import monotonic

import numpy as np

from gradwire.credentials import CipherName, credentials_of
from gradwire.dialing import Transport
from gradwire.errors import (
    DeadlineError,
    NonFiniteError,
    OutOfRangeError,
    UnreachableError,
    UsageError,
)
from gradwire.membership import Membership
from gradwire.network import NetworkThread
from gradwire.parameters import Parameters, parameters_of
from gradwire.session import Session
from gradwire.settings import Congestion, Loop, Settings, resolve_settings
from gradwire.settings import Feedback as FeedbackName
from gradwire.sharing import Sharing
from gradwire.worker import Worker
from gradwire_codecs import (
    Feedback,
    Replica,
    ThresholdPolicy,
    check_headroom,
    largest_magnitude,
    quantum_exponent_for,
    warm_up,
)
from gradwire_codecs import NonFiniteError as NotFinite
from gradwire_codecs import OutOfRangeError as OutOfRange
from gradwire_codecs.compiled import cache_folder
from gradwire_codecs.replica import HEADROOM
from gradwire_codecs.sections import MULTIPLE_MAX
from gradwire_protocol.keys import Role, RunKey, WorkerKey
from gradwire_protocol.layout import LAYOUT_BYTES_MAX
from gradwire_protocol.messages import (
    CODEC_VERSION,
    WORKER_ID_BYTES,
    WORKER_NAME_CHARACTERS_MAX,
    Join,
    name_in_roster,
)
from gradwire_udp import resolve, show_address

logger = logging.getLogger("gradwire.join")

WARM_UP_SHOWN_SECONDS = 1.0
"""Compiling the kernels is mentioned when it takes longer than this."""


def join(
    target: object,
    *,
    master: str | None = None,
    run: str | None = None,
    rank: int | None = None,
    workers: int | None = None,
    threshold: float | ThresholdPolicy | None = None,
    initial_threshold: float | None = None,
    target_density: float | None = None,
    density_band: tuple[float, float] | None = None,
    update_bytes: float | None = None,
    bytes_per_second: float | None = None,
    tensor_thresholds: bool | None = None,
    shake_up_steps: int | None = None,
    shake_up_divisor: float | None = None,
    residual_clip: float | None = None,
    clip_steps: int | None = None,
    feedback: FeedbackName | None = None,
    quantum: float | None = None,
    connect_timeout_seconds: float | None = None,
    join_timeout_seconds: float | None = None,
    finish_timeout_seconds: float | None = None,
    leave_timeout_seconds: float | None = None,
    idle_timeout_seconds: float | None = None,
    reconnect_seconds: float | None = None,
    alone_steps_max: int | None = None,
    digest_seconds: float | None = None,
    codec_threads: int | None = None,
    datagram_bytes: int | None = None,
    datagram_bytes_max: int | None = None,
    congestion: Congestion | None = None,
    transport: Transport | None = None,
    key_file: str | PathLike[str] | None = None,
    key: WorkerKey | RunKey | str | None = None,
    cipher: CipherName | None = None,
    loop: Loop | None = None,
    config: str | PathLike[str] | None = None,
) -> Session:
    """Take part in a run.

    The parameters of the first worker to join start the run; every later worker's parameters
    become those that the run has by then. Returns when that is done. With the key of an observer,
    the session only receives: see `Session`.

    Parameters
    ----------
    target : torch.nn.Module, list of torch.Tensor, or ndarray of dtype float32
        What is trained, in place. Tensors of dtype float32 are moved into one block of memory;
        they stay the same objects. Where all are on one GPU, so is the codec, if Triton is there.
    config : path, optional
        TOML file; its table ``[session]`` may hold every setting below.
    master, run, rank, workers, threshold, initial_threshold, target_density, density_band, \
update_bytes, bytes_per_second, tensor_thresholds, shake_up_steps, shake_up_divisor, \
residual_clip, clip_steps, feedback, quantum, \
connect_timeout_seconds, join_timeout_seconds, finish_timeout_seconds, leave_timeout_seconds, \
idle_timeout_seconds, reconnect_seconds, alone_steps_max, digest_seconds, codec_threads, \
datagram_bytes, datagram_bytes_max, congestion, transport, \
key_file, key, cipher, loop
        See `Settings`, which also says where they can come from besides.

    Returns
    -------
    Session

    Raises
    ------
    UsageError
        If target, settings or key cannot work. `NonFiniteError` and `OutOfRangeError` are cases of
        it.
    UnreachableError
        If the master's host is not known, or nobody answers there.
    RefusedError
        If the master does not let us in: another model, another run, too many workers; an
        observer, while there is no run; anybody, while it is drained.
    VersionMismatchError
        If the master speaks another version of the protocol.
    DeadlineError
        If joining takes longer than `join_timeout_seconds`.

    Examples
    --------
    ::

        with gradwire.join(model, master="10.0.2.4:40123") as session:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss_function(model(inputs), targets).backward()
                optimizer.step()
                session.step()
    """
    settings = resolve_settings(
        {
            "master": master,
            "run": run,
            "rank": rank,
            "workers": workers,
            "threshold": threshold,
            "initial_threshold": initial_threshold,
            "target_density": target_density,
            "density_band": density_band,
            "update_bytes": update_bytes,
            "bytes_per_second": bytes_per_second,
            "tensor_thresholds": tensor_thresholds,
            "shake_up_steps": shake_up_steps,
            "shake_up_divisor": shake_up_divisor,
            "residual_clip": residual_clip,
            "clip_steps": clip_steps,
            "feedback": feedback,
            "quantum": quantum,
            "connect_timeout_seconds": connect_timeout_seconds,
            "join_timeout_seconds": join_timeout_seconds,
            "finish_timeout_seconds": finish_timeout_seconds,
            "leave_timeout_seconds": leave_timeout_seconds,
            "idle_timeout_seconds": idle_timeout_seconds,
            "reconnect_seconds": reconnect_seconds,
            "alone_steps_max": alone_steps_max,
            "digest_seconds": digest_seconds,
            "codec_threads": codec_threads,
            "datagram_bytes": datagram_bytes,
            "datagram_bytes_max": datagram_bytes_max,
            "congestion": congestion,
            "transport": transport,
            "key_file": key_file,
            "key": key,
            "cipher": cipher,
            "loop": loop,
        },
        os.environ,
        config,
    )
    parameters = parameters_of(target)
    _compile_kernels()
    return _Joining(settings, parameters).session()


def _compile_kernels() -> None:
    """Compile, or load from the cache, what a training step would have to wait for."""
    folder = cache_folder()
    kept = f"kept in {folder}" if folder else "not kept, for want of a folder to write to"
    notice = Timer(
        WARM_UP_SHOWN_SECONDS,
        logger.info,
        ("compiling the codec for this processor; the result is %s", kept),
    )
    notice.daemon = True
    began = monotonic()
    notice.start()
    try:
        warm_up()
    finally:
        notice.cancel()
    if monotonic() - began > WARM_UP_SHOWN_SECONDS:
        logger.info("compiled the codec in %.1f s", monotonic() - began)


class _Joining:
    """One attempt to join, up to the session."""

    def __init__(self, settings: Settings, parameters: Parameters) -> None:
        self._settings = settings
        self._parameters = parameters
        self._deadline = monotonic() + settings.join_timeout_seconds
        self._family, self._address = resolve(settings.master)
        self._master = show_address(self._address)
        credentials = credentials_of(settings.key, settings.key_file, settings.cipher)
        key = None if credentials is None else credentials.key
        self._role = Role.WORKER if key is None else key.role
        own_name = f"{platform.node()}/{os.getpid()}"[-WORKER_NAME_CHARACTERS_MAX:]
        self._name = name_in_roster(None if key is None else key.name, own_name)
        request = Join(
            run=settings.run,
            worker_id=os.urandom(WORKER_ID_BYTES),
            name=own_name,
            rank=settings.rank,
            codec=CODEC_VERSION,
            quantum_exponent=self._quantum_exponent(),
            layout=parameters.layout,
        )
        size = len(request.layout.pack())
        if size > LAYOUT_BYTES_MAX:
            raise UsageError(
                f"the names and shapes of {len(request.layout.tensors)} parameters take {size} "
                f"bytes; the limit is {LAYOUT_BYTES_MAX}"
            )
        self._membership = Membership(parameters.layout.elements)
        self._worker = Worker(
            request,
            self._membership,
            self._master,
            random=SystemRandom().random,
            reconnect_seconds=settings.reconnect_seconds,
        )
        self._network = NetworkThread(settings, self._worker, self._membership, credentials)
        self._membership.leave = partial(self._network.call, self._worker.comply)

    def session(self) -> Session:
        """Return the session, or raise why there is none."""
        try:
            self._network.start(self._family, self._address)
        except OSError as error:
            raise UnreachableError(f"no socket to reach {self._master} with: {error}") from None
        try:
            replica = self._replica()
            self._warn(replica)
            sharing = Sharing(
                settings=self._settings,
                parameters=self._parameters,
                feedback=self._feedback(replica),
                membership=self._membership,
                network=self._network,
            )
            return Session(
                settings=self._settings,
                sharing=sharing,
                membership=self._membership,
                network=self._network,
                role=self._role,
            )
        except BaseException:
            self._network.call(self._worker.abort, "joining failed")
            self._network.stop()
            raise

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
        feedback = self._parameters.feedback(
            replica,
            shared=self._settings.feedback == "shared",
            threads=self._settings.codec_threads,
        )
        feedback.settle()
        self._parameters.scatter()
        return feedback

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
