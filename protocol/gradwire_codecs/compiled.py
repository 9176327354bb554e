"""`compiled`: numba's ``njit`` as this package uses it, in a form that mypy understands.

Kernels release the GIL, so that the network thread runs while the training thread encodes, and
never use fast-math: their results are the same bits on every machine.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` when it is first called, and keep the machine code on disk.

    Where neither the package's own folder nor the user's cache folder can be written, numba
    refuses to cache at all; then every process compiles for itself, which is slower, not wrong.
    """
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        dispatcher = numba.njit(nogil=True)(function)
    return cast("Callable[P, R]", dispatcher)
