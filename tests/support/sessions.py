"""Sessions as tests use them: small targets, a fixed threshold, deadlines that fit a test."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import torch
from torch import nn

import gradwire
from gradwire import PeerUpdate, Session
from gradwire.participant.participant import Participant
from gradwire.worker.membership import Membership
from gradwire_codecs.arrays import Float32Array, Int32Array
from gradwire_protocol import RunKey
from gradwire_protocol.crypto.keys import SECRET_BYTES
from support.local_master import LocalMaster
from support.waiting import PROCESS, wait_until

HALF = 0.5
"""Threshold of most tests: changes of whole halves are sent whole and leave no residual."""

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))


def join(master: LocalMaster, target: object = None, **options: Any) -> Session:
    """Join with a target of four zeros, a fixed threshold, and deadlines that fit a test.

    At the end the whole residual is sent, so that nothing is lost. Nobody waits for workers that
    the test makes join later. The master closes the session before it ends.
    """
    usual = {
        "threshold": HALF,
        "start_timeout_seconds": 0.0,
        "finish_timeout_seconds": PROCESS,
        "finish_residual": "send",
        "staleness_bound": "off",
    }
    options = {**usual, **options}
    joined = zeros() if target is None else target
    session = gradwire.join(joined, master=master.address, **options)
    master.sessions.append(session)
    return session


def participant_of(session: Session) -> Participant:
    """Return what a session runs on its thread, to look at, to damage, or to hold up."""
    return session._participant


def membership_of(session: Session) -> Membership:
    """Return what the two threads of a session share."""
    return participant_of(session).membership


def replica_of(session: Session) -> Int32Array:
    """Return the replica of a session itself, no copy."""
    return participant_of(session).shared.feedback.replica.values


def zeros() -> Float32Array:
    return np.zeros(4, np.float32)


def double_zeros() -> torch.Tensor:
    return torch.zeros(4, dtype=torch.float64)


def norm_of(variance: float, batches: int = 0) -> nn.BatchNorm1d:
    """Return a module with buffers: a running variance of two features, and a count of batches."""
    norm = nn.BatchNorm1d(2)
    set_buffers(norm, variance, batches)
    return norm


def set_buffers(norm: nn.Module, variance: float, batches: int = 0) -> None:
    """Set what `norm_of` sets."""
    state_of(norm)["running_var"].fill_(variance)
    state_of(norm)["num_batches_tracked"].fill_(batches)


def state_of(norm: nn.Module) -> dict[str, torch.Tensor]:
    return cast("dict[str, torch.Tensor]", norm.state_dict())


def variance_of(norm: nn.Module) -> list[float]:
    return cast("list[float]", state_of(norm)["running_var"].tolist())


def values_of(module: nn.Module) -> torch.Tensor:
    """Return all parameters of a module."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def change(*values: float) -> Float32Array:
    return np.array(values, np.float32)


def pull(session: Session, n: int) -> list[PeerUpdate]:
    """Pull until so many updates of peers have been applied; return those that came alone."""
    pulled: list[PeerUpdate] = []
    before = session.stats.updates_applied

    def enough() -> bool:
        pulled.extend(session.pull())
        return session.stats.updates_applied >= before + n

    wait_until(enough, f"{n} updates of peers")
    return pulled


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Call all at once, each on a thread of its own; return what they return."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def finish(*sessions: Session) -> None:
    """Let all finish at once."""
    at_once(*(session.finish for session in sessions))


def delivered(session: Session, n: int) -> None:
    """Wait until the master has so many updates of a session."""
    wait_until(lambda: session.stats.updates_delivered == n, f"{n} deliveries")


def stepping_changes(session: Session, target: Float32Array, i: int) -> bool:
    """Step; return whether an element has changed by then."""
    session.step()
    return bool(target[i])


def loss_of(session: Session) -> gradwire.ConnectionLostError:
    """Step until the session notices that the master is gone."""
    errors: list[gradwire.ConnectionLostError] = []

    def step() -> bool:
        try:
            session.step()
        except gradwire.ConnectionLostError as error:
            errors.append(error)
        return bool(errors)

    wait_until(step, "the session to notice")
    return errors[0]
