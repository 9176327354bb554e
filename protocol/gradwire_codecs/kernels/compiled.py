"""`compiled`: numba's ``njit`` as this package uses it, in a form that mypy understands.

Kernels release the GIL, so that the network thread runs while the training thread encodes, and
never use fast-math: their results are the same bits on every machine.

Machine code is kept on disk, in the first of these folders that can be written to:
``NUMBA_CACHE_DIR``, the ``__pycache__`` beside the source, the user's cache. Many processes share
such a folder, on machines of several kinds and perhaps by a network's file system, where a file may
vanish or come in half, a quota be spent or a folder become read-only at any time. So the cache is
of use where it can be had, and never an obstacle.
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
"""numba's dispatchers of everything that is compiled here."""


trailing_zeros = cast(Callable[[np.uint64], np.uint64], numbers.trailing_zeros)
"""For kernels: how many zeros are below the lowest bit that is set, by one instruction; 64 of 0."""


class _Cache(FunctionCache):
    """Files of their own for each signature, processor and version of this package.

    numba keeps an index per function, and numbers the files that it lists. Two processes that add
    to one at the same time may take the same number; one would then run the machine code of the
    other's signature, or of its processor. And it compiles anew when the file of a kernel has
    changed, not when that of a kernel which this one calls has.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what the cache has, or None where that cannot be read: it is compiled anew."""
        # The base class would import the whole compiler first, and its linear algebra with scipy.
        # Machine code needs the functions that it is linked with, and no more.
        rtsys.initialize(target_context)
        self._choose_files(sig, target_context.codegen())
        try:
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # what unpickles a damaged file raises whatever it likes
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, where it can be kept."""
        self._choose_files(sig, data.codegen)
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _choose_files(self, sig: Any, codegen: Any) -> None:
        stamp = self._impl.locator.get_source_stamp()
        key = repr((_sources(), stamp, self._index_key(sig, codegen)))  # type: ignore[no-untyped-call]
        name = f"{self._impl.filename_base}-{sha256(key.encode()).hexdigest()[:16]}"
        self._cache_file = IndexDataCacheFile(self._cache_path, name, stamp)  # type: ignore[no-untyped-call]


@cache
def _sources() -> str:
    """Return a digest of this package, whose kernels call each other."""
    digest = sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` when it is first called, and keep the machine code on disk.

    Where no folder can be written to, every process compiles for itself, which is slower, not
    wrong.
    """
    dispatcher: Any = numba.njit(nogil=True)(function)
    # numba has no option for a cache of another kind.
    with suppress(RuntimeError):  # where there is no folder for it
        dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
    KERNELS.append(dispatcher)
    return cast("Callable[P, R]", dispatcher)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` into the kernels that call it.

    Hot loops are, because a copy of them that stands by itself is not the same when it is compiled
    and when it comes from the disk: it was a fifth slower there.
    """
    dispatcher: Any = numba.njit(nogil=True, forceinline=True)(function)
    return cast("Callable[P, R]", dispatcher)


def cache_folder() -> str | None:
    """Return the folder that this package's machine code is kept in, or None if there is none."""
    folder: str | None = KERNELS[0].stats.cache_path
    return folder


def instruction(typed: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Return a function for kernels to call, made of the LLVM instructions that it emits.

    Parameters
    ----------
    typed : callable
        What ``numba.extending.intrinsic`` takes: types in, signature and emitter out.
    """
    return cast("Callable[..., Any]", intrinsic(typed))
