"""Compile the device's kernels for a GPU that need not be there; print the assembly of each.

A program of its own: in a process where kernels are interpreted none can be compiled.
"""

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

MODULES = ("coding", "decoding", "digests", "lattice", "threshold")

HOPPER = GPUTarget("cuda", 90, 32)

TYPES = {
    "quantum": "fp32",
    **dict.fromkeys(["parameters", "waiting"], "*fp32"),
    **dict.fromkeys(["fault", "sums", "ends"], "*i64"),
    **dict.fromkeys(["start", "stop", "multiple", "capacity", "magnitude_max"], "i32"),
    **dict.fromkeys(
        ["hits", "elements", "values_count", "blocks", "base", "digits", "places"], "i32"
    ),
}
"""Of arguments; what is not here is a pointer to int32."""

BY_MODULE = {"coding": {"parameters": "*i32"}, "decoding": {"words": "*i64"}}
"""What is another type there: parameters are those of Rice codes, and words are read whole."""

CONSTANTS = {"TILE": 1024, "ROWS": 4}
"""What is not here is on."""


def kernels() -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Yield each kernel with its name and the types of its arguments."""
    for module in MODULES:
        types = TYPES | BY_MODULE.get(module, {})
        for name, kernel in vars(import_module(f"gradwire_codecs.cuda.{module}")).items():
            # What kernels call has nothing that changes from call to call.
            if isinstance(kernel, triton.JITFunction) and kernel.do_not_specialize:
                names = {each: types.get(each, "*i32") for each in kernel.arg_names}
                yield f"{module}.{name}", kernel, names


def main() -> None:
    """Print a JSON object: the PTX by the name of the kernel."""
    compiled = {}
    for name, kernel, types in kernels():
        constants = {each: CONSTANTS.get(each, True) for each in types if each.isupper()}
        signature = types | dict.fromkeys(constants, "constexpr")
        compiled[name] = triton.compile(ASTSource(kernel, signature, constants), target=HOPPER).asm[
            "ptx"
        ]
    json.dump(compiled, sys.stdout)


if __name__ == "__main__":
    main()
