"""How much memory something takes."""

import tracemalloc
from collections.abc import Callable


def peak_of(action: Callable[[], object]) -> int:
    """Return how many bytes more than before are allocated at most while something is done."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        action()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
