"""What an execution may take, and how a process that fuzzes says what it had before."""

from typing import Final

GROWTH_MIB_MAX: Final = 64
"""What executions may add to the memory of the process; more is a failure."""

ADDRESS_SPACE_GROWTH_BYTES_MAX: Final = 2**30
"""An array that is asked for and never written to takes no memory, so `GROWTH_MIB_MAX` does not see
it; it takes addresses. Far above what threads and allocators take, far below 2^32 elements."""

TIMEOUT_SECONDS: Final = 1
"""An execution that takes longer is a hang. libFuzzer knows whole seconds, of the clock."""

BASELINE: Final = "memory before the first execution, MiB:"
