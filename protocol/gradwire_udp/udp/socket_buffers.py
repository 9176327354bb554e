"""The kernel's buffers of a socket: asking for enough, and warning if the system grants less."""

import logging
import socket
import sys
from typing import Final

logger = logging.getLogger("gradwire.udp")

BUFFER_BYTES: Final = 8 * 2**20
"""Buffer to ask for in each direction. The kernel counts its own overhead, too: datagrams of 1,400
bytes fit up to about 5 MB. That is 4 ms at 10 Gbit/s, within which a busy process comes to read."""

SO_SNDBUFFORCE: Final = 32
SO_RCVBUFFORCE: Final = 33
"""Linux's numbers: go beyond the system's limit, if the process may."""

_warned = False


def ask_for_buffers(sock: socket.socket, size: int = BUFFER_BYTES) -> None:
    """Ask for buffers in both directions; warn once per process if less than `size` is granted."""
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
    """Ask for buffers of a size; return the bytes granted for receiving and for sending."""
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
    """Ask for a buffer; return the bytes that were granted, in the unit of `size`."""
    linux = sys.platform == "linux"
    for ask in (force, option) if linux else (option,):
        try:
            sock.setsockopt(socket.SOL_SOCKET, ask, size)
        except OSError:
            continue  # the process may not force it, or the system has a lower limit
        break
    granted = sock.getsockopt(socket.SOL_SOCKET, option)
    return granted // 2 if linux else granted  # Linux includes its overhead
