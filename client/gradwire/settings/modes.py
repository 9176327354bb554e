"""The run modes as users write them: ``gradwire.join(model, mode=gradwire.Averaging(every=16))``.

Each returns a `Mode`, which can also be written as text, as in ``averaging(every=16)``.
"""

from typing import Final

from gradwire_protocol.messages.modes.mode import (
    AVERAGING,
    CENTRAL,
    DILOCO,
    SHARING,
    SYNCHRONOUS,
    Mode,
    new_mode,
)

__all__ = ["Averaging", "Central", "DiLoCo", "Mode", "Sharing", "Synchronous"]

ROUND_TIMEOUT_SECONDS: Final = 120


def Sharing() -> Mode:  # noqa: N802  # reads like a type
    """Return the mode in which each update goes to all workers at once; the default."""
    return new_mode(SHARING)


def Synchronous(  # noqa: N802
    *, bits: int = 8, round_timeout_seconds: int = ROUND_TIMEOUT_SECONDS
) -> Mode:
    """Return the mode in which all workers make each step together.

    What each has changed in a step goes into a mean, which all apply. With plain SGD and equal
    batches that is one process with all batches.

    Parameters
    ----------
    bits : 0, 4 or 8
        Of each element that is sent. With 0, only elements that have reached the threshold are. The
        rest is kept, and sent later.
    round_timeout_seconds : int
        How long the others wait for a worker that does not contribute.
    """
    return new_mode(SYNCHRONOUS, bits=bits, round_timeout_seconds=round_timeout_seconds)


def Averaging(  # noqa: N802
    every: int | None = None,
    *,
    optimizer_state: bool = False,
    bits: int | None = None,
    sparse: float = 0.0,
    waits: bool = False,
    round_timeout_seconds: int = ROUND_TIMEOUT_SECONDS,
) -> Mode:
    """Return the mode in which parameters are averaged every so many steps.

    In between, each worker trains by itself. Deeplearning4j's parameter averaging, and FedAvg
    (McMahan et al., 2017) with equal weights.

    Parameters
    ----------
    every : int, optional
        Steps between two averages: 16, and 8 where they are sparse.
    optimizer_state : bool
        Whether what the optimizer keeps is averaged along with the parameters: Adam's moments, sums
        of squares, momentum. Logarithms of squares are averaged, means of gradients in parts of
        their roots, and of numbers of steps it is the largest. Each value takes 8 bits of a
        contribution; `join` needs the optimizer.
    bits : 0, 4 or 8, optional
        Of each element that is sent, 8 by default. With 0, only elements that have reached the
        threshold are. The rest is kept, and sent later.
    sparse : float
        Part of the elements that is sent, such as 1/64: the largest ones. The rest is kept, loses
        5 % with each round, and is sent later; in a mean counts who has sent an element. SparseLoCo
        (Sarfi et al., 2025, arXiv 2508.15706).
    waits : bool
        Whether a round waits for all workers. Without, it closes when half of them have contributed
        and those that should follow soon, as their earlier rounds say: within a quarter of the
        time of a round, or 0.1 s. What comes later counts in the next round, and nobody waits for a
        worker that is slow all the time, or was killed.
    round_timeout_seconds : int
        How long the others wait for a worker that does not contribute, at most.
    """
    return _new_mode(
        AVERAGING,
        every=every,
        bits=bits,
        sparse=sparse,
        waits=waits,
        round_timeout_seconds=round_timeout_seconds,
        optimizer_state=optimizer_state,
    )


def DiLoCo(  # noqa: N802
    every: int | None = None,
    *,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    streams: int = 1,
    bits: int | None = None,
    sparse: float = 0.0,
    waits: bool = False,
    round_timeout_seconds: int = ROUND_TIMEOUT_SECONDS,
) -> Mode:
    """Return the mode in which an outer optimizer steps by the mean of what workers have changed.

    Douillard et al., "DiLoCo", 2023 (arXiv 2311.08105): Nesterov's momentum over means of many
    steps. The usual rate and momentum are the paper's. With `streams`, "Streaming DiLoCo", 2025
    (arXiv 2501.18512).

    Parameters
    ----------
    every : int, optional
        Steps between two outer ones: 64, and 8 where contributions are sparse.
    outer_lr, outer_momentum : float, optional
        Of the outer optimizer: 0.7 and 0.9, and 1 and 0 where contributions are sparse, which go
        without a momentum.
    streams : int
        Into how many parts the parameters are cut, of which one is contributed each ``every /
        streams`` steps, in turn, while training goes on: so a link never carries more than a part
        at once. It has to divide `every`.
    bits : 0, 4 or 8, optional
        Of each element that is sent, 8 by default. With 0, only elements that have reached the
        threshold are. The rest is kept, and sent later.
    sparse : float
        Part of the elements that is sent, such as 1/64: the largest ones. The rest is kept, loses
        5 % with each round, and is sent later; in a mean counts who has sent an element. SparseLoCo
        (Sarfi et al., 2025, arXiv 2508.15706).
    waits : bool
        Whether a round waits for all workers. Without, it closes when half of them have contributed
        and those that should follow soon, as their earlier rounds say: within a quarter of the
        time of a round, or 0.1 s. What comes later counts in the next round, and nobody waits for a
        worker that is slow all the time, or was killed.
    round_timeout_seconds : int
        How long the others wait for a worker that does not contribute, at most.
    """
    return _new_mode(
        DILOCO,
        every=every,
        outer_lr=outer_lr,
        outer_momentum=outer_momentum,
        streams=streams,
        bits=bits,
        sparse=sparse,
        waits=waits,
        round_timeout_seconds=round_timeout_seconds,
    )


def Central(  # noqa: N802
    optimizer: str = "sgd",
    *,
    gradients_per_update: int = 1,
    staleness: str = "none",
    bits: int = 8,
    round_timeout_seconds: int = ROUND_TIMEOUT_SECONDS,
    **settings: float | str,
) -> Mode:
    """Return the mode in which workers send gradients, and the master's optimizer steps by them.

    Workers have no optimizer: `step` sends the gradient and clears it, and ends with the parameters
    after the master's step. With one gradient per update that is asynchronous SGD with a parameter
    server (Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012), with more it is
    softsync (Zhang et al., IJCAI 2016, arXiv 1511.05950).

    Parameters
    ----------
    optimizer : str
        ``"sgd"``, ``"adagrad"``, ``"rmsprop"``, ``"adam"`` or ``"adamw"``, with the formulas and
        defaults of torch.
    gradients_per_update : int
        How many gradients make a step; that of all workers, if there are fewer.
    staleness : str
        With ``"inverse"``, a gradient is divided by how many steps the master has made since the
        parameters that it is of.
    bits : 0, 4 or 8
        Of each element that is sent. With 0, only elements that have reached the threshold are. The
        rest is kept, and sent later.
    round_timeout_seconds : int
        How long a gradient waits for others.
    **settings
        Of the optimizer: `lr`, `weight_decay`, and what it has of `momentum`, `nesterov`, `beta1`,
        `beta2` (RMSprop's alpha) and `eps`. Of the learning rate: `warm_up`, in the master's
        steps, `schedule`, ``"constant"``, ``"cosine"`` or ``"linear"``, and `steps`, at which it
        ends. `gradient_max`, 32 unless told otherwise, is above all magnitudes of gradients.
    """
    return new_mode(
        CENTRAL,
        optimizer=optimizer,
        gradients_per_update=gradients_per_update,
        staleness=staleness,
        bits=bits,
        round_timeout_seconds=round_timeout_seconds,
        **settings,
    )


def _new_mode(name: str, **values: object) -> Mode:
    """Return a mode; what is None is left to its defaults."""
    return new_mode(name, **{key: value for key, value in values.items() if value is not None})
