"""Starting the process of a shard, and describing how it ended."""

import signal
import socket
import subprocess
import sys
from typing import Final

from gradwire_server.shards.startup import Setup

PROGRAM: Final = "gradwire_server.shards.shard"

NOT_FOR_SHARDS: Final = (signal.SIGINT, signal.SIGTERM)
"""Terminals and service managers send these to every process; only process 0 acts on them."""


def spawn(setup: Setup, ours: socket.socket, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a shard.

    Parameters
    ----------
    setup : Setup
        With descriptors of this process; the shard inherits them with the same numbers.
    ours, theirs : socket.socket
        The two ends of its channel. `theirs` is closed in this process; on an error, both are.
    """
    # These must not end the shard before it ignores them.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_SHARDS)
    try:
        # No shell, and nothing from outside: this interpreter, our module, our own packed setup.
        return subprocess.Popen(  # nosec B603
            # Without -P the folder that the master runs in could hold modules of any name.
            [sys.executable, "-P", "-m", PROGRAM, setup.pack()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=setup.descriptors,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        theirs.close()


def describe_exit(popen: subprocess.Popen[bytes]) -> str:
    """Return how a process has ended, as the end of a sentence."""
    status = popen.returncode
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
