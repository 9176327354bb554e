"""Which features a worker has, and in which order their hooks are called."""

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from gradwire.features.buffers import BufferSharing
from gradwire.features.roster_log import RosterLog
from gradwire.features.staleness_bound import AutomaticBound, StalenessBound
from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire.target.adapters import module_of
from gradwire.target.buffers import ModuleBuffers

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("gradwire.session")

STALENESS_TIMEOUT_SECONDS: Final = 10.0
"""How long a step waits for a worker that makes none: longer than a checkpoint or an evaluation of
most takes, and each dead worker costs it once."""


def features_of(
    participant: Participant,
    *,
    target: object,
    optimizer: "torch.optim.Optimizer | None",
    buffers: ModuleBuffers | None,
) -> list[Feature]:
    """Return the features of a worker, in the order in which their hooks are called."""
    settings, membership, worker = participant.settings, participant.membership, participant.worker
    features: list[Feature] = []
    if buffers is not None:
        send = None if participant.observes else partial(membership.post, worker.share_buffers)
        sharing = BufferSharing(
            buffers,
            steps=settings.buffer_steps,
            rank=participant.welcome.rank,
            others=membership,
            send=send,
            tally=participant.tally,
        )
        welcome = participant.welcome
        sharing.begin(founds=welcome.founder, run_is_new=not any(welcome.versions.values()))
        features.append(sharing)
    if participant.observes:
        return features
    features.append(RosterLog(membership))
    if (loads := _loads_of(participant, target)) is not None:
        features.insert(0, loads)
    features.append(_momentum_and_scale(participant, target, optimizer))
    if settings.staleness_bound != "off":  # the last one, because it may wait
        features.append(_staleness_bound(participant))
    return features


def _loads_of(participant: Participant, target: object) -> Feature | None:
    """Return what finds checkpoints that are loaded into the target; None where it is no module."""
    module = module_of(target)
    if module is None:
        return None
    from gradwire.features.loaded_parameters import LoadedParameters

    return LoadedParameters(module, participant.shared.quantum)


def _staleness_bound(participant: Participant) -> Feature:
    """Return what makes this worker wait for others."""
    bound = participant.settings.staleness_bound
    if not isinstance(bound, int):
        # It announces nothing: an update before the first step would say that the run has begun.
        return AutomaticBound(participant, STALENESS_TIMEOUT_SECONDS)
    feature = StalenessBound(participant, bound, STALENESS_TIMEOUT_SECONDS)
    participant.outbox.announce_clock()  # others wait for us from now on
    return feature


def _momentum_and_scale(
    participant: Participant, target: object, optimizer: "torch.optim.Optimizer | None"
) -> Feature:
    """Return what adapts the optimizer; if no learning rate can, scale the changes."""
    compensation = participant.compensation
    if compensation.scale == "auto" and optimizer is not None:
        from gradwire.optimizer.torch_scale import optimizer_scale

        compensation.scale = optimizer_scale(optimizer)
        logger.info(
            "scale=%r: with it, all workers with %s together make the step that DDP would make",
            compensation.scale,
            type(optimizer).__name__,
        )
    lag = compensation.added_lag if participant.settings.momentum == "auto" else None
    scaled, by_rate = compensation.varies, False
    feature = Feature()
    if optimizer is None and lag is not None:
        logger.info(
            "join was given no optimizer, so none has its momentum lowered by what late changes "
            "add to it: pass optimizer=optimizer, or set a low momentum and pass momentum='keep'"
        )
    if optimizer is not None:
        # Imported here: only a script that passes an optimizer has imported torch.
        from gradwire.features.optimizer_control import (
            OptimizerControl,
            has_hooks,
            learning_rates,
            scales_by_rate,
            trains_all,
        )

        participant.divergence.learning_rates = partial(learning_rates, optimizer)
        if not has_hooks(optimizer):
            logger.warning(
                "%s has none of the hooks of torch's optimizers: its momentum stays as it is, and "
                "scale multiplies all that a step changes",
                type(optimizer).__name__,
            )
            if scaled:
                participant.scale_changes()
            return feature
        alone, obeys = trains_all(optimizer, target), scales_by_rate(optimizer)
        by_rate = scaled and alone and obeys
        factors = [compensation.change_factor] if by_rate else []
        if lag is not None and obeys:
            factors.append(compensation.delay_factor)
        feature = OptimizerControl(
            optimizer,
            lag=lag,
            factors=factors,
            tally=participant.tally,
            trains_all=alone,
        )
    if scaled and not by_rate:
        participant.scale_changes()
    return feature
