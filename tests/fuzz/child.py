"""The process that fuzzes one target: ``python -m fuzz.child MODULE [libFuzzer's options]``.

libFuzzer ends its process, whether it found something or not, so each target has one to itself.
Our modules are instrumented as they are imported. Numba compiles bytecode, and cannot compile
what is instrumented: where a module has kernels, only the functions around them are.
"""

import inspect
import operator
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import atheris
import numpy as np
from atheris.version_dependent import CMP_OP_SHIFT_AMOUNT

from fuzz.limits import (
    ADDRESS_SPACE_GROWTH_BYTES_MAX,
    BASELINE,
    GROWTH_MIB_MAX,
    TIMEOUT_SECONDS,
)

COMPARISONS: Final = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
"""As `dis.cmp_op` counts them."""

INSTRUMENTED: Final = [
    "fuzz",
    "gradwire",
    "gradwire_codecs",
    "gradwire_protocol",
    "gradwire_server",
    "gradwire_udp",
]


def main(arguments: Sequence[str]) -> None:
    """Fuzz until libFuzzer's options, or what it finds, end the process."""
    module_name, *options = arguments
    compiled = modules_with_kernels("gradwire_codecs")
    with atheris.instrument_imports(include=INSTRUMENTED, exclude=compiled):
        target = import_module(module_name)
    for name in compiled:
        if name in sys.modules:
            instrument_functions(sys.modules[name])
    for data in target.seeds():  # what is compiled, imported or filled when it is first used
        target.check(data)
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(BASELINE, baseline, file=sys.stderr, flush=True)  # for `campaign`
    limit_address_space()
    limits = [
        f"-rss_limit_mb={baseline + GROWTH_MIB_MAX}",
        f"-timeout={TIMEOUT_SECONDS}",
        f"-max_len={target.BYTES_MAX}",
    ]
    # The name of the program is the first; `corpus.merge` says which one libFuzzer may start.
    atheris.Setup([options[0], *limits, *options[1:]], releasing_arrays(target.check))
    atheris.Fuzz()


def releasing_arrays(check: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return a target that compares arrays without losing memory.

    What a comparison returns is never freed by atheris 3.0, which is nothing where it is true or
    false, and an array otherwise. So arrays are compared without it. It puts its own function in
    place when it begins, after everything else; hence the change comes with the first execution.
    """
    traced: Callable[..., object] | None = None

    def trace(left: Any, right: Any, code: int, counter: int, constant: bool) -> object:
        if type(left) is np.ndarray or type(right) is np.ndarray:
            return COMPARISONS[code >> CMP_OP_SHIFT_AMOUNT](left, right)
        assert traced is not None
        return traced(left, right, code, counter, constant)

    def checked(data: bytes) -> None:
        nonlocal traced
        if traced is None:
            traced, atheris._trace_cmp = atheris._trace_cmp, trace
        check(data)

    return checked


def modules_with_kernels(package: str) -> list[str]:
    """Return the modules of a package that numba compiles something of."""
    spec = find_spec(package)
    assert spec is not None
    return [
        ".".join((package, *file.relative_to(folder).with_suffix("").parts))
        for folder in spec.submodule_search_locations or ()
        for file in sorted(Path(folder).rglob("*.py"))
        if "\n@compiled" in file.read_text(encoding="utf-8")
    ]


def instrument_functions(module: ModuleType) -> None:
    """Instrument what is no kernel."""
    for function in vars(module).values():
        if inspect.isfunction(function) and function.__module__ == module.__name__:
            atheris.instrument_func(function)


def limit_address_space() -> None:
    """Let what asks for far too much fail with a `MemoryError`, which no target allows."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + ADDRESS_SPACE_GROWTH_BYTES_MAX
    # Only the soft limit: a merge starts processes, which set their own.
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def in_a_process_that_begins_small(arguments: Sequence[str]) -> int:
    """Fuzz in a fork of this process and return its exit status.

    The peak of a process's memory survives `exec`: one that pytest started begins with pytest's,
    and libFuzzer would see no growth below it. A fork begins with what it has.
    """
    process_id = os.fork()
    if not process_id:
        main(arguments)
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it goes to the group, and ends the fork
    _, status = os.waitpid(process_id, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(in_a_process_that_begins_small(sys.argv[1:]))
