"""The momentum of torch's optimizers: its kind, and the state that fits another momentum.

Adam and related optimizers divide their average of the gradients, ``exp_avg``, by the sum of its
weights, ``1 - beta**t`` after t steps. So for another beta the average is rescaled to the weight
that this beta would have given it. SGD and RMSprop step by the learning rate times a sum,
``momentum_buffer``. Lower momentum comes with a higher learning rate (see
`gradwire.optimizer.momentum`), so the sum is made smaller by the same factor.

Every factor is relative to the state that the optimizer would have by itself. So nothing is
rescaled where the optimizer's own momentum changes, as schedulers may cycle it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from gradwire.optimizer.momentum import Lag, compensated, rate_factor

NEGLIGIBLE: Final = 1e-7
"""A factor this near to 1 does not change a float32 by more than rounding does."""

ADAMS: Final = (
    torch.optim.Adam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.SparseAdam,
)
"""Those of torch's optimizers whose first beta is the momentum of a mean of gradients."""

ADAMS_STATE: Final = frozenset({"exp_avg", "exp_avg_sq"})
"""What all others keep that are like Adam. Lion has betas as well, and keeps the first one of these
alone: with the usual 0.9 and 0.99 its mean lag is 90 steps, and without its first beta it would
step by the sign of a single gradient."""

SUM_MIN: Final = 1e-6
"""Least momentum of those that are sums: with 0, SGD does not update its buffer, and would use it,
out of date, when momentum rises again."""


class Present(NamedTuple):
    """The momentum of an optimizer: its own, and the one that is set in its place."""

    own: float
    put: float


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of momentum of a group of parameters."""

    key: str
    """``"betas"`` or ``"momentum"``."""
    nesterov: bool
    sums: bool
    """Whether it is a sum of gradients, and not a mean."""

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> "Kind | None":
        """Return the kind of a group's momentum; None without momentum, or of one that is unknown.

        An optimizer that is not torch's shows with its first step whether it is like Adam. NAdam
        keeps its momenta, which grow with its steps.
        """
        nesterov = bool(group.get("nesterov"))
        if isinstance(group.get("betas"), tuple | list) and group["betas"]:
            is_like_adam = isinstance(optimizer, ADAMS) or _keeps_adams_state(optimizer, group)
            if not is_like_adam or isinstance(optimizer, torch.optim.NAdam):
                return None
            return cls("betas", nesterov, sums=False)
        if group.get("momentum") is None:
            return None
        # Muon keeps a mean under the name of SGD's momentum, and makes all steps of one size.
        return cls("momentum", nesterov, sums="ns_steps" not in group)

    def own(self, group: Mapping[str, Any]) -> float:
        """Return the momentum of a group."""
        return float(group["betas"][0] if self.key == "betas" else group["momentum"])

    def lowered(self, own: float, lag: Lag) -> Present:
        """Return the momentum that acts with this lag like `own` without it."""
        put = compensated(own, lag.of_momentum(sums=self.sums), nesterov=self.nesterov)
        if self.key == "momentum" and own > SUM_MIN:
            put = max(put, SUM_MIN)
        return Present(own, put)

    def in_place_of(self, value: Any, put: float) -> Any:
        """Return `value`, an entry of a group, with another momentum and the same type."""
        if self.key == "betas":
            first = _like(value[0], put)
            return type(value)((first, *value[1:]))
        return _like(value, put)

    def rate_factor(self, present: Present) -> float:
        """Return the factor of the learning rate that goes with a momentum."""
        return rate_factor(present.own, present.put) if self.sums else 1.0

    def factor(self, present: Present, steps: float) -> float:
        """Return the state after a number of steps, over the state it would have by itself."""
        if self.sums:
            return 1.0 / self.rate_factor(present)
        if self.key == "momentum" or present.own == present.put or steps < 1:
            return 1.0
        return _weight(present.put, steps) / _weight(present.own, steps)

    def is_settled(self, before: Present, now: Present, steps: float) -> bool:
        """Return whether the state needs no rescaling after any later step."""
        largest = max(*before, *now)
        return not self.sums and largest**steps < NEGLIGIBLE / 10


def rescale(
    kind: Kind,
    states: Iterable[dict[str, Any]],
    before: Present,
    now: Present,
) -> bool:
    """Rescale state in place, so that it fits another momentum.

    Parameters
    ----------
    kind : Kind
    states : iterable of dict
        States of the parameters of one group, as the optimizer keeps them.
    before, now : Present
        The momentum that the state fits, and the one that it has to fit.

    Returns
    -------
    bool
        Whether the state fits any momentum from now on.
    """
    if before == now:
        return False
    by_factor: defaultdict[float, list[torch.Tensor]] = defaultdict(list)
    settled, some = True, False
    for state in states:
        average = average_of(kind, state)
        if average is None:
            continue
        some, steps = True, steps_of(kind, state)
        factor = kind.factor(now, steps) / kind.factor(before, steps)
        if abs(factor - 1.0) > NEGLIGIBLE:
            by_factor[factor].append(average)
        settled = settled and kind.is_settled(before, now, steps)
    with torch.no_grad():
        for factor, averages in by_factor.items():
            torch._foreach_mul_(averages, factor)
    return settled and some


def restored(kind: Kind, state: Mapping[str, Any], held: Present) -> dict[str, Any]:
    """Return a copy of one parameter's state that fits the optimizer's own momentum.

    Parameters
    ----------
    kind : Kind
    state : mapping
        Not changed.
    held : Present
        The momentum that the state fits.
    """
    copy = dict(state)
    average = average_of(kind, state)
    if average is not None:
        steps = steps_of(kind, state)
        name = next(key for key, value in state.items() if value is average)
        copy[name] = average / kind.factor(held, steps)
    return copy


def average_of(kind: Kind, state: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the average of past gradients in a parameter's state; None before the first step."""
    if kind.key == "momentum":
        average = state.get("momentum_buffer")
    else:  # without a count of steps, the optimizer corrects nothing
        average = state.get("exp_avg") if "step" in state else None
    return average if isinstance(average, torch.Tensor) else None


def steps_of(kind: Kind, state: Mapping[str, Any]) -> float:
    """Return the number of steps of a parameter's state; 0 where that does not matter."""
    return float(state["step"]) if kind.key == "betas" else 0.0


def _keeps_adams_state(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    states = (optimizer.state[each] for each in group["params"] if each in optimizer.state)
    return next(states, {}).keys() >= ADAMS_STATE


def _like(value: Any, put: float) -> Any:
    return torch.full_like(value, put) if isinstance(value, torch.Tensor) else put


def _weight(beta: float, steps: float) -> float:
    """Return ``1 - beta**steps``, also where that is near 0."""
    return -math.expm1(steps * math.log(beta)) if beta > 0.0 else 1.0
