"""Which parts a session has besides sending and applying, and in which order they do their work."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from gradwire.features.buffers import BufferSharing
from gradwire.features.feature import Feature
from gradwire.features.momentum_advice import MomentumAdvice
from gradwire.features.optimizer_state import OptimizerStateSharing
from gradwire.features.staleness_bound import StalenessBound
from gradwire.replica.sharing import Sharing
from gradwire.settings.settings import Settings
from gradwire.target.buffers import ModuleBuffers
from gradwire.threads.membership import Membership
from gradwire.threads.network import NetworkThread
from gradwire.worker.worker import Worker

if TYPE_CHECKING:
    import torch


def parts_of(
    settings: Settings,
    sharing: Sharing,
    membership: Membership,
    network: NetworkThread[Worker],
    *,
    observes: bool,
    target: object,
    optimizer: "torch.optim.Optimizer | None",
    buffers: ModuleBuffers | None,
    states: OptimizerStateSharing | None,
) -> Sequence[Feature]:
    """Return the parts of a session, in the order they do their work in.

    Parameters
    ----------
    settings, sharing, membership, network
        Of the session.
    observes : bool
        Whether it only receives, and trains nothing.
    target : object
        What is trained.
    optimizer : torch.optim.Optimizer, optional
        What `join` was given.
    buffers : ModuleBuffers, optional
        Of the target, where it has any.
    states : OptimizerStateSharing, optional
        What gives the optimizer's state to others, where that is wanted.
    """
    assert membership.welcome is not None
    rank = membership.welcome.rank
    parts: list[Feature] = []
    if buffers is not None:
        send = None if observes else partial(network.call, network.worker.share_buffers)
        parts.append(
            BufferSharing(
                buffers,
                steps=settings.buffer_steps,
                rank=rank,
                others=membership,
                send=send,
                tally=sharing.tally,
            )
        )
    if observes:
        return parts
    parts.append(_momentum_and_scale(settings, sharing, target, optimizer))
    if states is not None:
        parts.append(states)
    if settings.staleness_bound is not None:  # which may wait, after everything else
        bound, timeout = settings.staleness_bound, settings.staleness_timeout_seconds
        parts.append(StalenessBound(bound, timeout, sharing, membership, rank))
    return parts


def _momentum_and_scale(
    settings: Settings,
    sharing: Sharing,
    target: object,
    optimizer: "torch.optim.Optimizer | None",
) -> Feature:
    """Return what adapts the optimizer; without one, see to the changes themselves."""
    lag = sharing.compensation.added_lag if settings.momentum == "auto" else None
    scaled, by_rate = sharing.compensation.varies, False
    part = Feature() if lag is None else MomentumAdvice(lag)
    if optimizer is not None:
        # Who passes an optimizer of torch has imported that; nobody else has to.
        from gradwire.features.optimizer_control import OptimizerControl, scales_by_rate, trains_all

        alone, obeys = trains_all(optimizer, target), scales_by_rate(optimizer)
        by_rate = scaled and alone and obeys
        factors = [sharing.compensation.change_factor] if by_rate else []
        if lag is not None and obeys:
            factors.append(sharing.compensation.delay_factor)
        part = OptimizerControl(
            optimizer,
            lag=lag,
            factors=factors,
            tally=sharing.tally,
            trains_all=alone,
            portion=sharing.compensation.portion if by_rate else 1.0,
        )
    if scaled and not by_rate:
        sharing.scale_changes()
    return part
