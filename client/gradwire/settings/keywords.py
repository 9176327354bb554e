"""`SettingKeywords`: the settings as keywords of `gradwire.join`, for type checkers.

Type checkers cannot derive it from `Settings`; a test compares the two.
"""

from os import PathLike
from typing import TypedDict

from gradwire.settings.credentials import CipherName
from gradwire.settings.settings import LogLevel, OnLost, Transport
from gradwire.settings.training import (
    Feedback,
    FinishResidual,
    Momentum,
    Scale,
    StalenessBound,
)
from gradwire_codecs import ThresholdPolicy
from gradwire_protocol.crypto.keys import IssuingKey, RunKey, WorkerKey
from gradwire_protocol.messages.modes.mode import Mode


class SettingKeywords(TypedDict, total=False):
    """Every keyword is optional; None counts as not passed."""

    master: str | None
    mode: Mode | str | None
    run: str | None
    rank: int | None
    workers: int | None
    quantum: float | None
    connect_timeout_seconds: float | None
    join_timeout_seconds: float | None
    start_timeout_seconds: float | None
    finish_timeout_seconds: float | None
    idle_timeout_seconds: float | None
    reconnect_seconds: float | None
    on_lost: OnLost | None
    transport: Transport | None
    key_file: str | PathLike[str] | None
    key: WorkerKey | IssuingKey | RunKey | str | None
    cipher: CipherName | None
    log_level: LogLevel | None
    feedback: Feedback | None
    finish_residual: FinishResidual | None
    momentum: Momentum | None
    scale: Scale | None
    staleness_bound: StalenessBound | None
    warm_up_workers: int | None
    share_buffers: bool | None
    averaged_buffers: str | tuple[str, ...] | None
    buffer_steps: int | None
    threshold: float | ThresholdPolicy | None
    target_density: float | None
    density_band: tuple[float, float] | None
    shake_up_steps: int | None
    warm_up_steps: int | None
