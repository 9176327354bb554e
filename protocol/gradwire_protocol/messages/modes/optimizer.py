"""`Optimizer`: the optimizer of a run whose parameters the master changes, and its learning rate.

The settings and their defaults are those of torch's optimizers of the same names.
"""

from dataclasses import dataclass
from math import ceil, cos, log2, pi
from typing import Annotated, Final

from gradwire_protocol.messages.schema import Record, choice, integer, number

SGD: Final = "sgd"
ADAGRAD: Final = "adagrad"
RMSPROP: Final = "rmsprop"
ADAM: Final = "adam"
ADAMW: Final = "adamw"

CONSTANT: Final = "constant"
COSINE: Final = "cosine"
LINEAR: Final = "linear"

BETA_MAX: Final = 0.999999

STEPS_MAX: Final = 2**30
"""Of the master's steps: their number is an element of a replica."""


@dataclass(frozen=True, slots=True)
class Optimizer(Record):
    """An optimizer, its settings, and how its learning rate changes."""

    name: Annotated[str, choice(SGD, ADAGRAD, RMSPROP, ADAM, ADAMW)] = SGD
    lr: Annotated[float, number(0.0, 1e6)] = 1e-3
    """The highest learning rate."""
    momentum: Annotated[float, number(0.0, BETA_MAX)] = 0.0
    nesterov: bool = False
    beta1: Annotated[float, number(0.0, BETA_MAX)] = 0.9
    beta2: Annotated[float, number(0.0, BETA_MAX)] = 0.999
    """RMSprop's ``alpha``."""
    eps: Annotated[float, number(1e-30, 1.0)] = 1e-8
    weight_decay: Annotated[float, number(0.0, 1e3)] = 0.0
    schedule: Annotated[str, choice(CONSTANT, COSINE, LINEAR)] = CONSTANT
    """How the rate falls after the warm-up, to 0 at step `steps`."""
    steps: Annotated[int, integer(0, STEPS_MAX)] = 0
    """The master's steps, warm-up included; 0 where the rate stays."""
    warm_up: Annotated[int, integer(0, STEPS_MAX)] = 0
    """Steps over which the rate rises from 0."""
    gradient_max: Annotated[float, number(2.0**-9, 2.0**24)] = 32.0
    """Above the magnitudes of gradients. They are sent as multiples of its 2^-30th part."""

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, by its number from 1 on."""
        if step < self.warm_up:
            return self.lr * step / self.warm_up
        if self.schedule == CONSTANT:
            return self.lr
        done = min((step - self.warm_up) / max(self.steps - self.warm_up, 1), 1.0)
        return self.lr * (1 - done if self.schedule == LINEAR else (1 + cos(pi * done)) / 2)

    @property
    def gradient_exponent(self) -> int:
        """Gradients are sent as multiples of two to this power.

        An int32 has room for twice the largest gradient: what was left of others comes on top.
        """
        return ceil(log2(self.gradient_max)) - 30

    def parts(self) -> list[str]:
        """Return what differs from the defaults of a mode, as texts such as ``lr=0.1``."""
        usual = OPTIMIZERS[self.name]
        named = [] if self.name == SGD else [f"optimizer={self.name}"]
        return named + [
            f"{name}={getattr(self, name)}"
            for name in _VALUES[self.name]
            if getattr(self, name) != getattr(usual, name)
        ]


OPTIMIZERS: Final = {
    SGD: Optimizer(),
    ADAGRAD: Optimizer(ADAGRAD, lr=0.01, eps=1e-10),
    RMSPROP: Optimizer(RMSPROP, lr=0.01, beta2=0.99),
    ADAM: Optimizer(ADAM),
    ADAMW: Optimizer(ADAMW, weight_decay=0.01),
}
"""Each optimizer with its defaults."""

_COMMON: Final = ("weight_decay", "schedule", "steps", "warm_up", "gradient_max")
_VALUES: Final = {
    SGD: ("lr", "momentum", "nesterov", *_COMMON),
    ADAGRAD: ("lr", "eps", *_COMMON),
    RMSPROP: ("lr", "beta2", "eps", "momentum", *_COMMON),
    ADAM: ("lr", "beta1", "beta2", "eps", *_COMMON),
    ADAMW: ("lr", "beta1", "beta2", "eps", *_COMMON),
}
"""By name: what can be said of an optimizer."""


def usual_optimizer(name: object) -> Optimizer:
    """Return an optimizer with its defaults; `ValueError` if there is none of this name."""
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r}; the master has {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def values_of(optimizer: Optimizer) -> tuple[str, ...]:
    """Return what can be said of an optimizer."""
    return _VALUES[optimizer.name]


def changed(optimizer: Optimizer, **values: object) -> Optimizer:
    """Return an optimizer with these values; `ValueError` if one is none, or they do not fit."""
    found = Optimizer.from_plain({**optimizer.to_plain(), **values})
    if found.nesterov and not found.momentum:
        raise ValueError("nesterov needs a momentum above 0, such as momentum=0.9")
    if (found.schedule == CONSTANT) is (found.steps > 0):
        raise ValueError(
            f"schedule={found.schedule} with steps={found.steps}: {COSINE} and {LINEAR} need the "
            "number of the master's steps, and a constant rate has none"
        )
    if found.steps and found.warm_up >= found.steps:
        raise ValueError(f"warm_up={found.warm_up}; it has to be below steps={found.steps}")
    return found
