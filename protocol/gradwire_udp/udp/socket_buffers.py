"""The kernel's buffers of a socket: asking for enough, and saying so where it grants less."""

import logging
import socket
import sys
from typing import Final

logger = logging.getLogger("gradwire.udp")

BUFFER_BYTES: Final = 8 * 2**20
"""Asked of the kernel for each direction. It counts its own overhead against it: of datagrams of
1,400 bytes about 5 MB fit. That is 4 ms of 10 Gbit/s, in which a busy process finds the time."""

SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
"""Linux's numbers: go beyond the system's limit, for who may."""

_warned = False


def ask_for_buffers(sock: socket.socket, size: int = BUFFER_BYTES) -> None:
    """Ask for buffers of a size in both directions; say once per process if that is not granted."""
    global _warned
    receive, send = granted_buffers(sock, size)
    if min(receive, send) < size and not _warned:
        _warned = True
        logger.warning(
            "the system grants UDP sockets buffers of %d bytes for receiving and %d for sending,"
            " not %d: at high rates datagrams will be lost. To allow it: %s",
            receive, send, size, sysctl_line(size),
        )  # fmt: skip


def granted_buffers(sock: socket.socket, size: int) -> tuple[int, int]:
    """Ask for buffers of a size; return what was granted for receiving and for sending."""
    receive = _ask(sock, size, SO_RCVBUFFORCE, socket.SO_RCVBUF)
    return receive, _ask(sock, size, SO_SNDBUFFORCE, socket.SO_SNDBUF)


def sysctl_line(size: int) -> str:
    """Return the command that allows buffers of a size."""
    return (
        f"sysctl -w net.core.rmem_max={size} net.core.wmem_max={size}"
        if sys.platform == "linux"
        else f"sysctl -w kern.ipc.maxsockbuf={2 * size}"
    )


def _ask(sock: socket.socket, size: int, force: int, option: int) -> int:
    """Return what was granted, in the unit it was asked in."""
    linux = sys.platform == "linux"
    for ask in (force, option) if linux else (option,):
        try:
            sock.setsockopt(socket.SOL_SOCKET, ask, size)
        except OSError:
            continue  # not allowed to force it, or on other systems more than there may be
        break
    granted = sock.getsockopt(socket.SOL_SOCKET, option)
    return granted // 2 if linux else granted  # Linux tells it with its overhead
