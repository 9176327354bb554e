"""Starting the process of a shard, and saying how one has ended."""

import signal
import socket
import subprocess
import sys
from typing import Final

from gradwire_server.shards.startup import Setup

PROGRAM: Final = "gradwire_server.shards.shard"

NOT_FOR_SHARDS: Final = (signal.SIGINT, signal.SIGTERM)
"""Terminals and service managers send them to every process; process 0 decides what follows."""


def spawn(setup: Setup, ours: socket.socket, theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a shard.

    Parameters
    ----------
    setup : Setup
        With descriptors of this process; the shard gets the same numbers.
    ours, theirs : socket.socket
        The two ends of its channel. Its end is closed here, and where that fails, both are.
    """
    # Until it knows that they are not for it, it must not be ended by them.
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


def how_it_ended(popen: subprocess.Popen[bytes]) -> str:
    """Return a word about a process that has ended."""
    status = popen.returncode
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
