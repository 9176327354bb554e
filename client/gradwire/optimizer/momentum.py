"""How much momentum an optimizer should have where its changes arrive late: the rules.

docs/decisions/delays.md and docs/decisions/momentum-sums.md have the decisions and measurements.

**Delay acts like momentum** (I. Mitliagkas, C. Zhang, S. Hadjis and C. Re, "Asynchrony begets
Momentum, with an Application to Deep Learning", Allerton 2016). Both are filters, and the mean lags
of filters in a row add. A momentum of b has the mean lag ``L0 = b / (1 - b)``. Where changes arrive
D steps late, an optimizer has that lag again with

    L = max(0, L0 - D),        b' = L / (1 + L).

Where ``L0 - D`` is below 0, momentum can make up for no more; only the learning rate can (`scale`).

**What is late.** With the residual in the parameters (feedback "local"), they have a worker's own
changes at once; of the change that all W workers make in a step, the part ``f = (W - 1)/W`` is
late. So ``D = f * (age of the residual + excess network delay)``. With feedback "shared", a
worker's own changes wait in the residual as well, and only the network delay has the f.

**Nesterov.** Torch's step is ``g + m * buffer`` with ``buffer = sum_k m**k * g(t - k)``: weight
1 + m for lag 0 and m**(k+1) for lag k, 1 / (1 - m) in all. Its mean lag is ``m**2 / (1 - m)``,
and ``m**2 + L*m - L = 0`` is solved for m.

**Gain.** The momentum of Adam and related optimizers is an average of total weight 1. That of SGD
and RMSprop is a sum, of total weight ``(1 - dampening) / (1 - m)``: lower momentum makes smaller
steps. So the learning rate is raised by ``(1 - m') / (1 - m)``, and only the lag changes.

**Momentum that is a sum.** At the same gain, lower momentum makes steep directions unstable. These
have large changes, which hardly wait in the residual. So of the residual's delay only the part
`SUM_RESIDUAL_WEIGHT` counts for such momentum; it grows with the network's delay, as ``1 + f * D``
does. Adam divides by the size of its gradients, so there all of the residual's delay counts.

**Learning rate.** The network's delay is the same for all changes: descent on a curvature h with a
delay of D steps is stable while ``rate * h < 2 * sin(pi / (4 * D + 2))``. So the learning rate
falls by ``1 / sqrt(1 + f * D)``. Dividing by ``1 + f * D``, as W. Zhang, S. Gupta, X. Lian and J.
Liu do by the staleness ("Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016),
learned more slowly at the best learning rate for DDP.
"""

import math
from typing import Final, NamedTuple

APPROACH_STEPS: Final = 20.0
"""Steps in which the delay in use comes 63 % nearer to the measured one: no jolt where a worker
joins or leaves."""

APPROACH_TOLERANCE: Final = 0.02
"""The delay in use stays while the measured one differs by less than this times (1 + itself):
measured delays always move a little, and the state has to be rescaled whenever momentum moves."""

SUM_RESIDUAL_WEIGHT: Final = 0.15
"""Part of the residual's delay that counts for momentum that is a sum, on a network without delay;
see above."""


class Lag(NamedTuple):
    """Steps that changes are late on average, beyond synchronous training, by cause."""

    residual: float = 0.0
    network: float = 0.0

    @property
    def total(self) -> float:
        """Lag of both causes."""
        return self.residual + self.network

    def of_momentum(self, *, sums: bool) -> float:
        """Return how much lag to take out of momentum.

        `sums` tells momentum that is a sum of gradients, as SGD's, from a mean, as Adam's.
        """
        weight = min(SUM_RESIDUAL_WEIGHT * (1.0 + self.network), 1.0) if sums else 1.0
        return weight * self.residual + self.network


def mean_lag(momentum: float, *, nesterov: bool = False) -> float:
    """Return how many steps late gradients act on average because of an optimizer's momentum.

    Parameters
    ----------
    momentum : float
        From 0 to below 1; for Adam and related optimizers, the first of `betas`.
    """
    lag = momentum / (1.0 - momentum)
    return momentum * lag if nesterov else lag


def momentum_for(lag: float, *, nesterov: bool = False) -> float:
    """Return the momentum that has this mean lag; the inverse of `mean_lag`."""
    if nesterov:
        # The usual formula for the root subtracts two nearly equal numbers.
        return 2.0 * lag / (lag + math.sqrt(lag * (lag + 4.0))) if lag > 0.0 else 0.0
    return lag / (1.0 + lag)


def added_lag(
    *, residual_age: float, network_delay: float, world_size: int, is_local: bool = True
) -> Lag:
    """Return how many steps late changes are on average, beyond synchronous training.

    Parameters
    ----------
    residual_age : float
        Mean age of the residual, in steps.
    network_delay : float
        Steps beyond synchronous training that updates of peers arrive late.
    world_size : int
        Number of workers.
    is_local : bool
        Whether a worker's own residual is in its parameters, where it is not late.
    """
    workers = max(world_size, 1)
    of_peers = (workers - 1) / workers
    residual = (of_peers if is_local else 1.0) * residual_age
    return Lag(max(residual, 0.0), max(of_peers * network_delay, 0.0))


def compensated(momentum: float, lag: float, *, nesterov: bool = False) -> float:
    """Return the momentum that acts with this lag added like `momentum` without it.

    Without a lag it is `momentum` itself, to the last bit. A momentum of 0 or less stays, and so
    does one of 1 or more, which averages nothing.
    """
    if lag <= 0.0 or not 0.0 < momentum < 1.0:
        return momentum
    left = max(mean_lag(momentum, nesterov=nesterov) - lag, 0.0)
    return min(momentum_for(left, nesterov=nesterov), momentum)


def gain(momentum: float) -> float:
    """Return the total weight of momentum that is a sum, such as SGD's."""
    return 1.0 / (1.0 - momentum)


def rate_factor(momentum: float, present: float) -> float:
    """Return the factor of the learning rate that keeps the gain of momentum that is a sum.

    The optimizer was tuned with `momentum`, and has `present` instead.
    """
    if present == momentum or momentum >= 1.0:
        return 1.0
    return gain(momentum) / gain(present)


def network_factor(network_delay: float, world_size: int) -> float:
    """Return the factor of the learning rate for updates of peers that arrive late.

    Parameters
    ----------
    network_delay : float
        Steps beyond synchronous training.
    """
    late = (world_size - 1) / max(world_size, 1) * network_delay
    return 1.0 / math.sqrt(1.0 + max(late, 0.0))


def approach(present: Lag, target: Lag) -> Lag:
    """Return the lag to use in the next step: the present one, moved towards the measured one."""
    return Lag(*map(_approach, present, target))


def _approach(present: float, target: float) -> float:
    if abs(target - present) <= APPROACH_TOLERANCE * (1.0 + present):
        return present
    return present + (target - present) / APPROACH_STEPS
