"""The compiled steps of optimizers, for a range of elements, with the formulas of torch.

All change their state in place, and write the step, which is to be added to the parameters. Arrays
have shape (n,), dtype float32. Operations are those of IEEE in a fixed order, so the results are
the same bits on every machine.
"""

import numpy as np

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.kernels.compiled import dividing


@dividing
def step_sgd(
    gradient: Float32Array,
    parameters: Float32Array,
    velocity: Float32Array,
    step: Float32Array,
    rate: np.float32,
    momentum: np.float32,
    nesterov: bool,  # numba has no keywords
    decay: np.float32,
) -> None:
    """Make a step of SGD; `velocity` is empty where there is no momentum."""
    for i in range(gradient.size):
        g = gradient[i] + decay * parameters[i]
        if velocity.size:
            velocity[i] = momentum * velocity[i] + g
            g = g + momentum * velocity[i] if nesterov else velocity[i]
        step[i] = -rate * g


@dividing
def step_adagrad(
    gradient: Float32Array,
    parameters: Float32Array,
    squares: Float32Array,
    step: Float32Array,
    rate: np.float32,
    eps: np.float32,
    decay: np.float32,
) -> None:
    """Make a step of Adagrad; `squares` are the sums of squared gradients."""
    for i in range(gradient.size):
        g = gradient[i] + decay * parameters[i]
        squares[i] += g * g
        step[i] = -rate * g / (np.sqrt(squares[i]) + eps)


@dividing
def step_rmsprop(
    gradient: Float32Array,
    parameters: Float32Array,
    squares: Float32Array,
    velocity: Float32Array,
    step: Float32Array,
    rate: np.float32,
    beta: np.float32,
    eps: np.float32,
    momentum: np.float32,
    decay: np.float32,
) -> None:
    """Make a step of RMSprop; `squares` are means that forget by `beta`, torch's ``alpha``."""
    for i in range(gradient.size):
        g = gradient[i] + decay * parameters[i]
        squares[i] = beta * squares[i] + (np.float32(1) - beta) * (g * g)
        g = g / (np.sqrt(squares[i]) + eps)
        if velocity.size:
            velocity[i] = momentum * velocity[i] + g
            g = velocity[i]
        step[i] = -rate * g


@dividing
def step_adam(
    gradient: Float32Array,
    parameters: Float32Array,
    means: Float32Array,
    squares: Float32Array,
    step: Float32Array,
    rate: np.float32,
    root: np.float32,
    beta1: np.float32,
    beta2: np.float32,
    eps: np.float32,
    decay: np.float32,
    shrinking: np.float32,
) -> None:
    """Make a step of Adam or AdamW.

    `rate` is divided by the first bias correction, `root` the root of the second one. `decay` is
    part of the gradient, as in Adam; by `shrinking` the parameters shrink, as in AdamW.
    """
    for i in range(gradient.size):
        g = gradient[i] + decay * parameters[i]
        means[i] = means[i] + (np.float32(1) - beta1) * (g - means[i])
        squares[i] = beta2 * squares[i] + (np.float32(1) - beta2) * (g * g)
        step[i] = -shrinking * parameters[i] - rate * means[i] / (np.sqrt(squares[i]) / root + eps)
