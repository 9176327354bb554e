"""How a child process has ended, in words."""

import signal
from typing import Final

SIGNALLED: Final = 128
"""A shell adds the number of a signal to it, for a process that has died of one."""


def how(status: int) -> str:
    """Return what a process did at its end, by its exit status as a shell shows it.

    What only the system or a person sends comes with what to look at.
    """
    try:
        name = signal.Signals(status - SIGNALLED).name
    except ValueError:
        return f"ended with status {status}"
    if name == "SIGKILL":
        return f"was killed by {name} (if by nobody here, memory was short: see dmesg)"
    return f"was killed by {name}"
