"""`task`: a function of ours as Spark's Python workers call it, before they have imported anything.

A worker's first task imports torch and a compiler. Python's garbage collector would search all of
that several times, which is a quarter of the seconds it takes.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

if TYPE_CHECKING:
    import pyarrow as pa

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def task(function: Callable[..., Any], *arguments: object) -> "Task":
    """Return a function of record batches as `mapInArrow` takes it.

    When Spark unpickles it, that imports this module alone, which imports the rest.

    Parameters
    ----------
    function : callable
        From `arguments` and an iterator of record batches to another one.
    """
    return _Task(partial(function, *arguments))


class _Task:
    """A function that is unpickled while no garbage is collected, before Arrow reads a batch."""

    def __init__(self, function: "Task") -> None:
        self._function = function

    def __call__(self, parts: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        return self._function(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (cloudpickle.dumps(self._function),)


def _unpickled(content: bytes) -> "Task":
    if getrlimit(RLIMIT_AS)[0] != RLIM_INFINITY:
        # spark.executor.pyspark.memory. Arrow's own allocator reserves a GiB of addresses with the
        # first batch, where so many are left: then there are none for torch.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with collector_paused():
        return cloudpickle.loads(content)  # type: ignore[no-any-return]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Collect no garbage inside the block, nor ever look again at what it has imported."""
    gc.collect()  # what is garbage now would stay: it is not looked at again either
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
