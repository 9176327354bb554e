"""`Rule`: an optimizer that steps by summed gradients, and its state as elements of a replica.

A replica is a vector of 32-bit integers. So that state is where the parameters are, at all
workers, at a standby and in checkpoints, it is written as such: squares by their logarithm, Adam's
mean in parts of the root of its squares, with which it is compared, and velocities as they are.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwire_codecs.arrays import Float32Array, Int32Array
from gradwire_codecs.kernels.optimizers import step_adagrad, step_adam, step_rmsprop, step_sgd

SGD: Final = "sgd"
ADAGRAD: Final = "adagrad"
RMSPROP: Final = "rmsprop"
ADAM: Final = "adam"
ADAMW: Final = "adamw"

VELOCITY_UNIT: Final = 2.0**-21
"""Of a velocity: magnitudes below 512 are expressed, to 4.8e-7."""

RATIO_UNIT: Final = 2.0**-23
"""Of a mean in parts of the root of a mean of squares: below 128, to 1.2e-7."""

SQUARE_UNIT: Final = 2.0**-23
"""Of the binary logarithm of a square: relative to the square, 8e-8."""

SQUARE_MIN: Final = -100.0
"""The binary logarithm of what counts as 0."""

STATE_MAX: Final = 2**30 - 1
"""Largest magnitude of an element with state, so that no float32 of it is beyond the range."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimizer with its settings, which are those of torch, but for the learning rate."""

    name: str
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    """RMSprop's ``alpha``."""
    eps: float = 1e-8
    weight_decay: float = 0.0

    def step(
        self,
        number: int,
        rate: float,
        gradient: Float32Array,
        parameters: Float32Array,
        state: list[Float32Array],
    ) -> Float32Array:
        """Return what a step adds to the parameters.

        Parameters
        ----------
        number : int
            Of the step, from 1 on.
        rate : float
            The learning rate.
        gradient, parameters : ndarray of shape (n,), dtype float32
        state : list of ndarray of shape (n,), dtype float32
            One array for each of the optimizer's slots; changed in place.
        """
        step = np.empty_like(gradient)
        f = np.float32
        decay, momentum, eps = f(self.weight_decay), f(self.momentum), f(self.eps)
        if self.name == SGD:
            velocity = state[0] if state else np.empty(0, f)
            step_sgd(gradient, parameters, velocity, step, f(rate), momentum, self.nesterov, decay)
        elif self.name == ADAGRAD:
            step_adagrad(gradient, parameters, state[0], step, f(rate), eps, decay)
        elif self.name == RMSPROP:
            velocity = state[1] if len(state) > 1 else np.empty(0, f)
            step_rmsprop(
                gradient, parameters, state[0], velocity, step,
                f(rate), f(self.beta2), eps, momentum, decay,
            )  # fmt: skip
        else:
            decoupled = self.name == ADAMW
            corrected = rate / (1 - self.beta1**number)
            root = (1 - self.beta2**number) ** 0.5
            means, squares = state
            step_adam(
                gradient, parameters, means, squares, step,
                f(corrected), f(root), f(self.beta1), f(self.beta2), eps,
                f(0) if decoupled else decay, f(rate * self.weight_decay if decoupled else 0),
            )  # fmt: skip
        return step

    def to_integers(self, slot: int, state: list[Float32Array]) -> Int32Array:
        """Return the state of a slot as elements of a replica.

        Parameters
        ----------
        slot : int
        state : list of ndarray of shape (n,), dtype float32
            Of all slots.
        """
        values = state[slot].astype(np.float64)
        if slot == self._squares:
            with np.errstate(divide="ignore"):
                units = (np.log2(values) - SQUARE_MIN) / SQUARE_UNIT
        elif not self._has_ratio:
            units = values / VELOCITY_UNIT
        else:
            root = np.sqrt(state[1], dtype=np.float64)
            units = np.divide(values, root, out=np.zeros_like(values), where=root > 0) / RATIO_UNIT
        least = 0 if slot == self._squares else -STATE_MAX
        return np.rint(np.clip(units, least, STATE_MAX)).astype(np.int32)

    def to_state(self, elements: list[Int32Array]) -> list[Float32Array]:
        """Return what `to_integers` made elements of: shape (n,), float32, for each slot."""
        squares = None
        if self._squares is not None:
            logs = np.minimum(elements[self._squares], STATE_MAX).astype(np.float64)
            squares = np.where(logs > 0, np.exp2(logs * SQUARE_UNIT + SQUARE_MIN), 0.0)
        state = []
        for slot, coded in enumerate(elements):
            if squares is not None and slot == self._squares:
                state.append(squares.astype(np.float32))
            elif squares is None or not self._has_ratio:
                state.append((coded * VELOCITY_UNIT).astype(np.float32))
            else:
                state.append((coded * RATIO_UNIT * np.sqrt(squares)).astype(np.float32))
        return state

    @property
    def slots(self) -> tuple[str, ...]:
        """Torch's names of what is kept for each element."""
        velocity = ("momentum_buffer",) if self.momentum else ()
        return {
            SGD: velocity,
            ADAGRAD: ("sum",),
            RMSPROP: ("square_avg", *velocity),
            ADAM: ("exp_avg", "exp_avg_sq"),
            ADAMW: ("exp_avg", "exp_avg_sq"),
        }[self.name]

    @property
    def _has_ratio(self) -> bool:
        """Whether the slot beside the squares is compared with their root."""
        return self.name in (ADAM, ADAMW)

    @property
    def _squares(self) -> int | None:
        """The slot with squares of gradients, if there is one."""
        return {SGD: None, ADAGRAD: 0, RMSPROP: 0, ADAM: 1, ADAMW: 1}[self.name]
