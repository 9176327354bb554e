"""`prefetch`: have the processor load an element into its cache before it is needed.

If one element in a hundred changes, each is a cache miss that the processor cannot predict.
Prefetched some dozens of hits ahead, each arrives in time, and an update is applied in half the
time.
"""

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types

from gradwire_codecs.kernels.compiled import instruction

FOR_WRITING: Final = 1
INTO_FIRST_LEVEL: Final = 3
DATA: Final = 1


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


prefetch: Callable[[Any, Any], None] = instruction(_prefetch)
"""Load ``array[index]`` into the cache; `index` is unsigned, and may be outside of the array."""
