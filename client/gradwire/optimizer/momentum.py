"""How much momentum an optimizer should have where its changes arrive late: the rule, and why.

A change that a worker makes reaches the others late: it waits in the residual until it reaches the
threshold, and then on the network. Delay acts like momentum, so momentum that was tuned without any
delay is then too much.

**Why.** Take plain gradient descent, ``w += -rate * g``. If the gradient of step t is applied k
steps later, with k drawn anew for each change, then on average step t applies ``sum_k p(k) *
g(t - k)``. With a geometric k of mean D, ``p(k) = (1 - m) * m**k`` where ``m = D / (1 + D)``: an
exponential moving average of the gradients, which is what a momentum of m computes (I. Mitliagkas,
C. Zhang, S. Hadjis and C. Re, "Asynchrony begets Momentum, with an Application to Deep Learning",
Allerton 2016: M workers that queue, of mean delay M - 1, have an implicit momentum of ``1 - 1/M``,
and the best explicit one falls as M grows). An optimizer's own momentum b is such an average, too:
of mean lag ``b / (1 - b)``.

**The rule.** An average of averages is a filter behind a filter, and their mean lags add, whatever
their shapes: the mean lag is the derivative of a filter's logarithm at frequency zero, and filters
in a row multiply. So a worker whose optimizer was tuned to a lag of ``L0 = b / (1 - b)``, and
whose changes arrive D steps late, has that lag again with

    L = max(0, L0 - D),        b' = L / (1 + L).

Below 0 nothing can be done with momentum: what is then left is the learning rate (`scale`).

**What is late.** With the residual in the parameters (feedback "local") a worker's own changes are
in them at once; of the change that a step of all W workers makes together, a part ``f = (W - 1)/W``
is late. So ``D = f * (age of the residual + excess network delay)``. With feedback "shared", own
changes wait in the residual, too, and only the network delay is others' alone. With a portion a of
it in the parameters, ``1 - a/W`` of what a step changes waits.

**Nesterov.** Torch's step is ``g + m * buffer`` with ``buffer = sum_k m**k * g(t - k)``: weight
1 + m for lag 0 and m**(k+1) for lag k, 1 / (1 - m) in all. Its mean lag is ``m**2 / (1 - m)``,
and ``m**2 + L*m - L = 0`` is solved for m.

**Gain.** The momentum of Adam and its kin is an average of total weight 1. That of SGD and RMSprop
is a sum, of total weight ``(1 - dampening) / (1 - m)``: to lower it lowers the steps as well. So
the learning rate is raised by ``(1 - m') / (1 - m)``, and only the lag changes.

**Momentum that is a sum.** With a gain that stays, lower momentum makes steep directions unstable:
descent on a curvature h with momentum m is stable while ``rate * h < 2 * (1 + m)``, so what is
stable falls by ``(1 + m') * (1 - m) / ((1 + m) * (1 - m'))``, which is 1/19 from 0.9 to 0. What is
steep changes by much, and that hardly waits in the residual. So of the residual's delay only
`SUM_RESIDUAL_WEIGHT` counts for such momentum; with all of it, rates that are right without delay
diverged, and with a tenth to a fifth they were right again (docs/convergence.md has the sweep).
On a network that is late, what is steep is late as well, and momentum makes up for nothing: the
part grows with the network's delay, as ``1 + f * D`` does. Adam divides by the size of its
gradients, and has no such limit: there, all of it counts.

**What momentum cannot undo.** The residual's delay is spread over all ages, and large changes
hardly wait. The network's is the same for all, and what is steep suffers most: descent on a
curvature h with a delay of D steps is stable while ``rate * h < 2 * sin(pi / (4 * D + 2))``, in
proportion to 1/D. So the learning rate comes down with the network's delay as well, by
``1 / sqrt(1 + f * D)``. Dividing by ``1 + f * D``, as W. Zhang, S. Gupta, X. Lian and J. Liu do by
the staleness ("Staleness-aware Async-SGD for Distributed Deep Learning", IJCAI 2016), keeps stable
what was at three quarters of the limit, whatever the delay. In first trials, at delays of 3 to 11
steps, it learned more slowly than the root at the rate that is best for DDP, and better at twice
that and the longest delay; without either, training diverged at some of them.
"""

import math
from typing import Final, NamedTuple

APPROACH_STEPS: Final = 20.0
"""Steps in which the delay that is reckoned with comes 63 % nearer to the one that is measured: a
worker that joins or leaves must not be a jolt."""

APPROACH_TOLERANCE: Final = 0.02
"""A delay that is off by less than this part of itself plus one is left alone: measured delays
always move a little, and state has to be rescaled whenever momentum moves."""


SUM_RESIDUAL_WEIGHT: Final = 0.15
"""How much of the residual's delay counts for momentum that is a sum, where the network has none:
see above."""


class Lag(NamedTuple):
    """How many steps late changes are on average, beyond synchronous training, and by what."""

    residual: float = 0.0
    network: float = 0.0

    @property
    def total(self) -> float:
        """Both."""
        return self.residual + self.network

    def of_momentum(self, *, sums: bool) -> float:
        """Return how much of it momentum is lowered by.

        Parameters
        ----------
        sums : bool
            Whether that is a sum of gradients, as SGD's, and not a mean, as Adam's.
        """
        weight = min(SUM_RESIDUAL_WEIGHT * (1.0 + self.network), 1.0) if sums else 1.0
        return weight * self.residual + self.network


def mean_lag(momentum: float, *, nesterov: bool = False) -> float:
    """Return how many steps late gradients act on average because of an optimizer's momentum.

    Parameters
    ----------
    momentum : float
        From 0 to below 1; for Adam and its kin, the first of `betas`.
    nesterov : bool
    """
    lag = momentum / (1.0 - momentum)
    return momentum * lag if nesterov else lag


def momentum_for(lag: float, *, nesterov: bool = False) -> float:
    """Return the momentum that has this mean lag; the inverse of `mean_lag`."""
    if nesterov:
        # The usual formula for the root subtracts two numbers that are nearly the same.
        return 2.0 * lag / (lag + math.sqrt(lag * (lag + 4.0))) if lag > 0.0 else 0.0
    return lag / (1.0 + lag)


def added_lag(
    *, residual_age: float, network_delay: float, world_size: int, own: float = 1.0
) -> Lag:
    """Return how many steps late changes are on average, beyond synchronous training.

    Parameters
    ----------
    residual_age : float
        Mean age of the residual in steps.
    network_delay : float
        Steps beyond synchronous training that updates of peers come late.
    world_size : int
        How many workers take part.
    own : float
        How much of its own residual a worker computes with, 0 to 1; that is not late.
    """
    workers = max(world_size, 1)
    of_peers = (workers - 1) / workers
    residual = (workers - own) / workers * residual_age
    return Lag(max(residual, 0.0), max(of_peers * network_delay, 0.0))


def compensated(momentum: float, lag: float, *, nesterov: bool = False) -> float:
    """Return the momentum that, with this lag added, acts like `momentum` without it.

    Without a lag it is `momentum` itself, to the last bit. A momentum of 1 or more, which averages
    nothing, stays, and so does one of 0 or less.
    """
    if lag <= 0.0 or not 0.0 < momentum < 1.0:
        return momentum
    left = max(mean_lag(momentum, nesterov=nesterov) - lag, 0.0)
    return min(momentum_for(left, nesterov=nesterov), momentum)


def gain(momentum: float) -> float:
    """Return the total weight of momentum that is a sum, such as SGD's."""
    return 1.0 / (1.0 - momentum)


def rate_factor(momentum: float, present: float) -> float:
    """Return what the learning rate is multiplied by where momentum is a sum, to keep its gain.

    Parameters
    ----------
    momentum : float
        What the optimizer was tuned with.
    present : float
        What it has instead.
    """
    if present == momentum or momentum >= 1.0:
        return 1.0
    return gain(momentum) / gain(present)


def network_factor(network_delay: float, world_size: int) -> float:
    """Return what the learning rate is multiplied by because updates of peers come late.

    Parameters
    ----------
    network_delay : float
        Steps beyond synchronous training.
    world_size : int
    """
    late = (world_size - 1) / max(world_size, 1) * network_delay
    return 1.0 / math.sqrt(1.0 + max(late, 0.0))


def approach(present: Lag, target: Lag) -> Lag:
    """Return the delay to reckon with in the next step, from that of this one and a measured one.

    Parameters
    ----------
    present, target : Lag
        Of 0 or more.
    """
    return Lag(*map(_approach, present, target))


def _approach(present: float, target: float) -> float:
    if abs(target - present) <= APPROACH_TOLERANCE * (1.0 + present):
        return present
    return present + (target - present) / APPROACH_STEPS
