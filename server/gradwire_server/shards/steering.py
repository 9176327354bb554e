"""One UDP address with several sockets: the kernel chooses the socket of each packet.

Sockets that share an address form a group, and the kernel runs a small program on every packet to
choose one of them. This program reads the session id at byte 4 of every packet: its low byte,
modulo the number of sockets, is the index of the socket in the group. A shard assigns session ids
with its own index there, so the packets of a connection reach it whatever address they come from.
The first packet of a connection has a random id from its sender, so first packets spread evenly.

When a socket is closed, it leaves the group and the last one takes its index, which would misdirect
packets: so process 0 keeps all of them open as long as it lives, although it reads only its own.
"""

import ctypes
import errno
import socket
import struct
import sys
from typing import Final

from gradwire_protocol import UsageError
from gradwire_udp.sockets import SocketAddress

SO_ATTACH_REUSEPORT_CBPF: Final = 51
"""Linux's number, which Python's `socket` does not name."""

SESSION_ID_OFFSET: Final = 4

# Classic BPF: code, two jump offsets, operand.
_LOAD_BYTE: Final = 0x30
_MODULO: Final = 0x94
_RETURN_IT: Final = 0x16
_INSTRUCTION: Final = struct.Struct("=HBBI")
_PROGRAM: Final = struct.Struct("@HP")
"""`struct sock_fprog`: number and address of the instructions."""


def open_others(first: socket.socket, count: int) -> list[socket.socket]:
    """Open the other sockets of a group, and have the kernel steer packets among all of them.

    The first socket was bound without SO_REUSEPORT. So no other program has the address, not even
    another master with several processes, whose group this one would join otherwise.

    Parameters
    ----------
    first : socket.socket
        The bound UDP socket of process 0. The caller keeps it open as long as any other.
    count : int
        Sockets of the group, `first` included.

    Returns
    -------
    list of socket.socket
        Non-blocking sockets at the same address, for shard 1, 2 and so on.

    Raises
    ------
    UsageError
        If this system cannot do it.
    """
    others: list[socket.socket] = []
    try:
        _share(first)
        address = first.getsockname()
        while len(others) < count - 1:
            others.append(_bind(address, first.family))
        _steer(first, count)
    except (OSError, UsageError) as error:
        for sock in others:
            sock.close()
        raise UsageError(
            f"processes={count}: this system cannot spread the packets of one port over several"
            f" processes ({error}); run the master with --processes 1"
        ) from None
    return others


def _bind(address: SocketAddress, family: socket.AddressFamily) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6 and address[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        _share(sock)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _share(sock: socket.socket) -> None:
    """Let other sockets of the same user bind to the address of a socket."""
    if sys.platform != "linux":  # other systems have the option, but distribute by address
        raise OSError(errno.ENOPROTOOPT, "only Linux can steer by the content of a packet")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _steer(sock: socket.socket, count: int) -> None:
    """Attach the program to the group of a socket."""
    code = b"".join(
        (
            # For a packet that is too short, the program returns 0, and process 0 drops the packet.
            _INSTRUCTION.pack(_LOAD_BYTE, 0, 0, SESSION_ID_OFFSET),
            _INSTRUCTION.pack(_MODULO, 0, 0, count),
            _INSTRUCTION.pack(_RETURN_IT, 0, 0, 0),
        )
    )
    instructions = ctypes.create_string_buffer(code, len(code))
    program = _PROGRAM.pack(len(code) // _INSTRUCTION.size, ctypes.addressof(instructions))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
