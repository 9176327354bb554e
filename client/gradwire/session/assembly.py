"""Which features a worker has, and in which order their hooks are called."""

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from gradwire.features.buffers import BufferSharing
from gradwire.features.layer_histograms import LayerHistograms
from gradwire.features.own_figures import OwnFigures
from gradwire.features.roster_log import RosterLog
from gradwire.features.staleness_bound import AutomaticBound, StalenessBound
from gradwire.participant.feature import Feature
from gradwire.participant.participant import Participant
from gradwire.replica.scaled_change import ScaledChange
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
    figures = OwnFigures(participant)
    features += [RosterLog(membership), figures]
    if (module := module_of(target)) is not None:
        # Imported here: only a script that trains a module has imported torch.
        from gradwire.features.loaded_parameters import LoadedParameters

        features.insert(0, LoadedParameters(module, participant.shared.quantum))
    features.append(_momentum_and_scale(participant, target, optimizer))
    # Nothing that changes parameters comes after the bound, because it may wait.
    if isinstance(settings.staleness_bound, int):
        bound, seconds = settings.staleness_bound, STALENESS_TIMEOUT_SECONDS
        features.append(StalenessBound(participant, bound, seconds, figures.report))
        participant.outbox.announce_clock()  # others wait for us from now on
    elif settings.staleness_bound == "auto":
        # It announces nothing: an update before the first step would say that the run has begun.
        features.append(AutomaticBound(participant, STALENESS_TIMEOUT_SECONDS, figures.report))
    if settings.log_histograms_every is not None:
        features.append(LayerHistograms(participant, settings.log_histograms_every))
    return features


def _momentum_and_scale(
    participant: Participant, target: object, optimizer: "torch.optim.Optimizer | None"
) -> Feature:
    """Return what adapts the optimizer; if no learning rate can, scale the changes."""
    compensation = participant.compensation
    lag = compensation.added_lag if participant.settings.momentum == "auto" else None
    by_rate = False
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
        from gradwire.optimizer.torch_scale import optimizer_scale

        name = type(optimizer).__name__
        if compensation.scale == "auto":
            compensation.scale = optimizer_scale(optimizer)
            logger.info(
                "scale=%r: with it, all workers with %s together make the step that DDP would make",
                compensation.scale,
                name,
            )
        participant.divergence.learning_rates = partial(learning_rates, optimizer)
        if has_hooks(optimizer):
            alone, obeys = trains_all(optimizer, target), scales_by_rate(optimizer)
            by_rate = compensation.varies and alone and obeys
            factors = [compensation.change_factor] if by_rate else []
            if lag is not None and obeys:
                factors.append(compensation.delay_factor)
            feature = OptimizerControl(
                optimizer, lag=lag, factors=factors, tally=participant.tally, trains_all=alone
            )
        else:
            logger.warning(
                "%s has none of the hooks of torch's optimizers: its momentum stays as it is, and "
                "scale multiplies all that a step changes",
                name,
            )
    if compensation.varies and not by_rate:
        shared = participant.shared
        shared.scaled_change = ScaledChange(shared.feedback, compensation.change_factor)
    return feature
