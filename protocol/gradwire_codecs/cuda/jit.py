"""`kernel` and `inlined`: Triton's ``jit`` with types for mypy.

Kernels run on a GPU. With ``TRITON_INTERPRET=1`` in the environment when they are imported, Triton
interprets them on tensors of the CPU, a thousand times slower; tests do so without a GPU. Either
way the results are the same bits as those of the compiled loops for the CPU: the quantum is a power
of two, so every product with it is exact, even if a compiler fuses it with the addition that
follows.
"""

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar, cast

import triton

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Protocol):
    """A kernel: ``kernel[programs,](*arguments)`` runs it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """Return a function that runs the kernel with this many programs."""


def kernel(*names: str) -> Callable[[Callable[..., None]], Kernel]:
    """Compile a function as a `Kernel`; no variants for the values of the arguments `names`."""

    def decorated(function: Callable[..., None]) -> Kernel:
        compiled = triton.jit(
            function, do_not_specialize=list(names), do_not_specialize_on_alignment=list(names)
        )
        return cast("Kernel", compiled)

    return decorated


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that kernels call."""
    return cast("Callable[P, R]", triton.jit(function))
