"""`join`: from a model to a session that takes part in a run."""

import logging
import os
from os import PathLike
from threading import Timer
from time import monotonic

from gradwire.session.attempt import Attempt
from gradwire.session.session import Session
from gradwire.settings.credentials import CipherName
from gradwire.settings.settings import Congestion, Loop, Transport, resolve_settings
from gradwire.settings.training import Feedback, FinishResidual, Momentum, Scale
from gradwire.target.adapters import parameters_of
from gradwire_codecs import ThresholdPolicy, warm_up
from gradwire_codecs.kernels.compiled import cache_folder
from gradwire_protocol.crypto.keys import RunKey, WorkerKey

logger = logging.getLogger("gradwire.join")

WARM_UP_SHOWN_SECONDS = 1.0
"""Compiling the kernels is mentioned when it takes longer than this."""


def join(
    target: object,
    *,
    optimizer: object = None,
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
    feedback: Feedback | None = None,
    finish_residual: FinishResidual | None = None,
    momentum: Momentum | None = None,
    scale: Scale | None = None,
    staleness_bound: int | None = None,
    staleness_timeout_seconds: float | None = None,
    warm_up_steps: int | None = None,
    warm_up_density: float | None = None,
    warm_up_workers: int | None = None,
    share_buffers: bool | None = None,
    buffer_steps: int | None = None,
    share_optimizer_state: bool | None = None,
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
    optimizer : torch.optim.Optimizer, optional
        What changes the target; its momentum and learning rate are then adapted as the settings
        `momentum` and `scale` say, in its steps alone: what its `param_groups` say stays.
    config : path, optional
        TOML file; its table ``[session]`` may hold every setting below.
    master, run, rank, workers, threshold, initial_threshold, target_density, density_band, \
update_bytes, bytes_per_second, tensor_thresholds, shake_up_steps, shake_up_divisor, \
residual_clip, clip_steps, feedback, finish_residual, momentum, scale, staleness_bound, \
staleness_timeout_seconds, warm_up_steps, warm_up_density, warm_up_workers, \
share_buffers, buffer_steps, share_optimizer_state, quantum, \
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

        with gradwire.join(model, optimizer=optimizer, master="10.0.2.4:40123") as session:
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
            "finish_residual": finish_residual,
            "momentum": momentum,
            "scale": scale,
            "staleness_bound": staleness_bound,
            "staleness_timeout_seconds": staleness_timeout_seconds,
            "warm_up_steps": warm_up_steps,
            "warm_up_density": warm_up_density,
            "warm_up_workers": warm_up_workers,
            "share_buffers": share_buffers,
            "buffer_steps": buffer_steps,
            "share_optimizer_state": share_optimizer_state,
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
    return Attempt(settings, parameters, target, optimizer).session()


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
