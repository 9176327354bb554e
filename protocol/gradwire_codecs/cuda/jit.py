"""`kernel` and `inlined`: Triton's ``jit`` in a form that mypy understands.

Kernels run on a GPU; with ``TRITON_INTERPRET=1`` in the environment when they are imported, Triton
interprets them on tensors of the CPU, a thousand times slower, which is how they are tested where
there is no GPU. Either way they give the bits that the compiled loops for the CPU give: every
product with the quantum is one with a power of two, exact, so that it does not matter whether a
compiler fuses it with the addition that follows.
"""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, cast

import triton

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Protocol):
    """A kernel: ``kernel[programs,](*arguments)`` runs it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """Return what runs so many programs."""


def kernel(*names: str) -> Callable[[Callable[..., None]], Kernel]:
    """Compile a function that is run by `Kernel`.

    Parameters
    ----------
    names : str
        Arguments that change from call to call; no variant is compiled for their values.
    """

    def decorated(function: Callable[..., None]) -> Kernel:
        compiled = triton.jit(
            function, do_not_specialize=list(names), do_not_specialize_on_alignment=list(names)
        )
        return cast("Kernel", compiled)

    return decorated


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that kernels call."""
    return cast("Callable[P, R]", triton.jit(function))
