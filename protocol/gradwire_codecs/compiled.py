"""`compiled`: numba's ``njit`` as this package uses it, in a form that mypy understands.

Kernels release the GIL, so that the network thread runs while the training thread encodes, and
never use fast-math: their results are the same bits on every machine.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
from numba.core.caching import FunctionCache
from numba.extending import intrinsic

P = ParamSpec("P")
R = TypeVar("R")

KERNELS: Final[list[Any]] = []
"""numba's dispatchers of everything that is compiled here."""


class _Cache(FunctionCache):
    """Machine code on disk that is of use where it can be had, and never an obstacle.

    Many processes share it, perhaps by a network's file system, where a file may vanish or come
    in half, a quota be spent or a folder become read-only at any time.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what the cache has, or None where that cannot be read: it is compiled anew."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # what unpickles a damaged file raises whatever it likes
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, where it can be kept."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except Exception:  # it reads the damaged index first
            self.disable()  # type: ignore[no-untyped-call]


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` when it is first called, and keep the machine code on disk.

    Where neither the package's own folder nor the user's cache folder can be written, every
    process compiles for itself, which is slower, not wrong.
    """
    dispatcher: Any = numba.njit(nogil=True)(function)
    # Numba has no option for a cache of another kind.
    with suppress(RuntimeError):  # where there is no folder that can be written
        dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
    KERNELS.append(dispatcher)
    return cast("Callable[P, R]", dispatcher)


def instruction(typed: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Return a function for kernels to call, made of the LLVM instructions that it emits.

    Parameters
    ----------
    typed : callable
        What ``numba.extending.intrinsic`` takes: types in, signature and emitter out. It belongs
        into the file of the kernels that call it, because a change of another file would not make
        numba compile them anew.
    """
    return cast("Callable[..., Any]", intrinsic(typed))
