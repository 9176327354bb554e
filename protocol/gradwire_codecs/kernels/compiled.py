"""`compiled`: numba's ``njit`` with the options of this package, and types for mypy.

Kernels release the GIL, so that the network thread runs while the training thread encodes, and
never use fast-math: their results are the same bits on every machine.

Machine code is cached on disk, in the first of these folders that can be written to:
``NUMBA_CACHE_DIR``, the ``__pycache__`` beside the source, the user's cache. Many processes share
such a folder, on machines of several kinds and perhaps over a network file system, where at any
time a file may vanish or be incomplete, a quota may be spent, or a folder become read-only. So no
error of the cache stops a process; it compiles the kernel instead.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.runtime.nrt import rtsys
from numba.cpython.unsafe import numbers
from numba.extending import intrinsic

P = ParamSpec("P")
R = TypeVar("R")

KERNELS: Final[list[Any]] = []
"""numba's dispatchers of all functions that `compiled` was applied to."""


trailing_zeros = cast(Callable[[np.uint64], np.uint64], numbers.trailing_zeros)
"""For kernels: the zeros below the lowest set bit, 64 for 0; one instruction of the processor."""


class _Cache(FunctionCache):
    """Separate files for each signature, processor and version of this package.

    numba keeps an index per function, and numbers the files that it lists. Two processes that add
    to an index at the same time may take the same number; one would then run the machine code of
    the other's signature, or of its processor. And numba compiles a kernel again if its own source
    file has changed, but not if that of a kernel that it calls has.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return machine code from the cache; None, which compiles it, if that cannot be read."""
        # The base class would import the whole compiler first, and its linear algebra with scipy.
        # Machine code only needs the functions that it is linked with.
        rtsys.initialize(target_context)
        self._choose_files(sig, target_context.codegen())
        try:
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # unpickling a damaged file can raise any exception
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save machine code, if it can be saved."""
        self._choose_files(sig, data.codegen)
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _choose_files(self, sig: Any, codegen: Any) -> None:
        stamp = self._impl.locator.get_source_stamp()
        key = repr((sources(), stamp, self._index_key(sig, codegen)))  # type: ignore[no-untyped-call]
        name = f"{self._impl.filename_base}-{sha256(key.encode()).hexdigest()[:16]}"
        self._cache_file = IndexDataCacheFile(self._cache_path, name, stamp)  # type: ignore[no-untyped-call]


@cache
def sources() -> str:
    """Return a digest of the source of this package, whose kernels call each other."""
    digest = sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` when it is first called, and cache the machine code on disk.

    If no folder can be written to, every process compiles for itself, which only takes longer.
    """
    dispatcher: Any = numba.njit(nogil=True)(function)
    # numba has no option for another cache.
    with suppress(RuntimeError):  # no folder can be written to
        dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
    KERNELS.append(dispatcher)
    return cast("Callable[P, R]", dispatcher)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` into the kernels that call it.

    Hot loops need it: as functions of their own they were a fifth slower when they were loaded from
    the cache than when they had just been compiled.
    """
    dispatcher: Any = numba.njit(nogil=True, forceinline=True)(function)
    return cast("Callable[P, R]", dispatcher)


def cache_folder() -> str | None:
    """Return the folder with this package's machine code, or None if there is none."""
    folder: str | None = KERNELS[0].stats.cache_path
    return folder


def instruction(typed: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Return a function for kernels to call; `typed` emits its LLVM instructions.

    As for ``numba.extending.intrinsic``, `typed` takes types and returns a signature and an
    emitter.
    """
    return cast("Callable[..., Any]", intrinsic(typed))
