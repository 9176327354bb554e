"""`compiled`: numba's ``njit`` with the options of this package, and types for mypy.

Kernels release the GIL, so that the network thread runs while the training thread encodes, and
never use fast-math: their results are the same bits on every machine.

Machine code is cached on disk, in the first of these folders that can be written to:
``NUMBA_CACHE_DIR``, the ``__pycache__`` beside the source, the user's cache. Many processes share
such a folder, on machines of several kinds and perhaps over a network file system, where at any
time a file may vanish or be incomplete, a quota may be spent, or a folder become read-only. So no
error of the cache stops a process; it compiles the kernel instead.

What is not there is looked for in a folder for all users of this Python, `prepared_folder`, which
an image or a package can bring along: also as code for less than this processor can do.

`prefetch` has the processor load an element into its cache before it is needed. If one element in a
hundred changes, each is a cache miss that the processor cannot predict. Prefetched some dozens of
hits ahead, each arrives in time, and an update is applied in half the time.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
)
from numba.core.runtime.nrt import rtsys
from numba.cpython.unsafe import numbers
from numba.extending import intrinsic

P = ParamSpec("P")
R = TypeVar("R")

KERNELS: Final[list[Any]] = []
"""numba's dispatchers of all functions that `compiled` was applied to."""

PORTABLE: Final = {
    "x86-64-v3": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
    "generic": (),
}
"""Kinds of processors that machine code is prepared for, the quickest first, and what each needs.
x86-64-v3 is what x86 processors can do since about 2015."""

OPTIONS: Final[dict[str, Any]] = {"nogil": True, "no_cfunc_wrapper": True}
"""Of all kernels: nothing calls them by a pointer of C, and a wrapper for that takes time to
compile."""

INTERNAL: Final[dict[str, Any]] = {**OPTIONS, "no_cpython_wrapper": True}

FOR_WRITING: Final = 1
INTO_FIRST_LEVEL: Final = 3
DATA: Final = 1


def prepared_folder() -> str:
    """Return the folder with machine code for all users of this Python; it need not exist."""
    return str(Path(sys.prefix, "share", "gradwire", "kernels"))


def portable_name() -> str:
    """Return the quickest kind of `PORTABLE` of this machine's architecture."""
    is_x86 = llvm.get_process_triple().startswith("x86_64")
    return next(name for name in PORTABLE if is_x86 or not name.startswith("x86"))


def portable_processors() -> list[str]:
    """Return those of `PORTABLE` whose machine code this processor can run."""
    features = llvm.get_host_cpu_features()
    return [name for name, needs in PORTABLE.items() if all(map(features.get, needs))]


trailing_zeros = cast(Callable[[np.uint64], np.uint64], numbers.trailing_zeros)
"""For kernels: the zeros below the lowest set bit, 64 for 0; one instruction of the processor."""


class _PreparedLocator(InTreeCacheLocator):
    """Where no folder can be written to, only what is prepared can be found."""

    def get_cache_path(self) -> str:
        """Return the folder."""
        return prepared_folder()

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> "_PreparedLocator":
        """Return a locator, which need not be able to write."""
        return cls(py_func, py_file)


class _CacheImpl(CompileResultCacheImpl):
    _locator_classes = [*CompileResultCacheImpl._locator_classes, _PreparedLocator]  # noqa: RUF012


class _Cache(FunctionCache):
    """Separate files for each signature, processor and version of this package.

    numba keeps an index per function, and numbers the files that it lists. Two processes that add
    to an index at the same time may take the same number; one would then run the machine code of
    the other's signature, or of its processor. And numba compiles a kernel again if its own source
    file has changed, but not if that of a kernel that it calls has.
    """

    _impl_class = _CacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return machine code from the cache; None, which compiles it, if that cannot be read."""
        # The base class would import the whole compiler first, and its linear algebra with scipy.
        # Machine code only needs the functions that it is linked with.
        rtsys.initialize(target_context)
        key = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        own = self._cache_file = self._file_for(key, self._cache_path)
        found = _read(own, key)
        if found is None:
            found = self._prepared(key)
        try:
            return found and self._impl.rebuild(target_context, found)
        except Exception:  # the content of a damaged file can raise any exception
            _empty(own)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save machine code, if it can be saved; `gradwire warm-up` alone prepares any."""
        if self._cache_path == prepared_folder():
            return
        key = self._index_key(sig, data.codegen)  # type: ignore[no-untyped-call]
        self._cache_file = self._file_for(key, self._cache_path)
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _prepared(self, key: Any) -> Any:
        """Return machine code for all users: for this processor, or one that can do less."""
        sig, (triple, cpu, features), code = key
        kinds = [(cpu, features), *((name, "") for name in portable_processors())]
        folder = prepared_folder()
        if not Path(folder).is_dir():
            return None
        for kind in kinds:
            its_key = sig, (triple, *kind), code
            found = _read(self._file_for(its_key, folder), its_key)
            if found is not None:
                return found
        return None

    def _file_for(self, key: Any, folder: str) -> IndexDataCacheFile:
        stamp = self._impl.locator.get_source_stamp()
        name = sha256(repr((sources(), stamp, key)).encode()).hexdigest()[:16]
        base = f"{self._impl.filename_base}-{name}"
        return IndexDataCacheFile(folder, base, stamp)  # type: ignore[no-untyped-call]


def _read(file: IndexDataCacheFile, key: Any) -> Any:
    """Return what a file has for a key, or None; a damaged one is emptied."""
    try:
        return file.load(key)  # type: ignore[no-untyped-call]
    except Exception:  # unpickling a damaged file can raise any exception
        _empty(file)
        return None


def _empty(file: IndexDataCacheFile) -> None:
    with suppress(OSError):
        file.flush()  # type: ignore[no-untyped-call]


@cache
def sources() -> str:
    """Return a digest of the source of this package, whose kernels call each other."""
    digest = sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` when it is first called, and cache the machine code on disk.

    If no folder can be written to, and nothing is prepared, every process compiles for itself,
    which only takes longer.
    """
    return _cached(function, numba.njit(**OPTIONS))


def internal(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` for kernels alone: Python cannot call it, which saves time compiling."""
    return _cached(function, numba.njit(**INTERNAL))


def dividing(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function`, in which x / 0 is infinite and 0 / 0 is NaN, as in numpy.

    A check of each divisor would keep loops from being vectorised.
    """
    return _cached(function, numba.njit(**OPTIONS, error_model="numpy"))


def _cached(function: Callable[P, R], compiling: Any) -> Callable[P, R]:
    dispatcher = compiling(function)
    dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]  # numba has no option
    KERNELS.append(dispatcher)
    return cast("Callable[P, R]", dispatcher)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile `function` into the kernels that call it.

    Hot loops need it: as functions of their own they were a fifth slower when they were loaded from
    the cache than when they had just been compiled.
    """
    dispatcher: Any = numba.njit(**INTERNAL, forceinline=True)(function)
    return cast("Callable[P, R]", dispatcher)


def cache_folder() -> str | None:
    """Return the folder that this package's machine code is kept in, or None if there is none."""
    folder: str = KERNELS[0].stats.cache_path
    return None if folder == prepared_folder() else folder


def instruction(typed: Callable[..., tuple[Any, Callable[..., Any]]]) -> Callable[..., Any]:
    """Return a function for kernels to call; `typed` emits its LLVM instructions.

    As for ``numba.extending.intrinsic``, `typed` takes types and returns a signature and an
    emitter.
    """
    return cast("Callable[..., Any]", intrinsic(typed))


def _prefetch(_: Any, array: Any, index: Any) -> Any:
    """Return the type of `prefetch`, and the function that emits its code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        integer = ir.IntType(32)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(ir.VoidType(), [address.type, integer, integer, integer]),
            "llvm.prefetch.p0i8",
        )
        how = [ir.Constant(integer, each) for each in (FOR_WRITING, INTO_FIRST_LEVEL, DATA)]
        builder.call(function, [address, *how])
        return context.get_dummy_value()

    return types.void(array, index), generate


def _bits(_: Any, number: Any) -> Any:
    """Return the type of `bits_of`, and the function that emits its code."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(number), generate


bits_of: Callable[[np.float32], np.int32] = instruction(_bits)
"""The bits of a float32."""

prefetch: Callable[[Any, Any], None] = instruction(_prefetch)
"""Load ``array[index]`` into the cache; `index` is unsigned, and may be outside of the array."""
