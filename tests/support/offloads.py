"""What a network card does itself: `ethtool --features` and `ethtool --show-features`."""

import array
import fcntl
import socket
import struct
from collections.abc import Mapping
from typing import Final

UDP_SEGMENTATION: Final = ("tx-udp-segmentation",)
TCP_SEGMENTATION: Final = (
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
)
GRO: Final = "rx-gro"

# From linux/sockios.h and linux/ethtool.h.
SIOCETHTOOL: Final = 0x8946
ETHTOOL_GSTRINGS: Final = 0x1B
ETHTOOL_GSSET_INFO: Final = 0x37
ETHTOOL_GFEATURES: Final = 0x3A
ETHTOOL_SFEATURES: Final = 0x3B
ETH_SS_FEATURES: Final = 4
ETH_GSTRING_LEN: Final = 32

REQUEST: Final = struct.Struct("16sP16x")
"""`ifreq`: the device's name, and where the command is."""
SET_INFO: Final = struct.Struct("=IIQI")
STRINGS: Final = struct.Struct("=III")
FEATURES: Final = struct.Struct("=II")
FEATURE_BLOCK: Final = struct.Struct("=IIII")
"""Of 32 features each, as bits: available, requested, active, never changed."""
CHANGE_BLOCK: Final = struct.Struct("=II")
"""Valid, requested."""


def offloads(device: str) -> dict[str, bool]:
    """Return which features of a device are on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        names = _names(sock, device)
        blocks = -(-len(names) // 32)
        command = FEATURES.pack(ETHTOOL_GFEATURES, blocks) + bytes(FEATURE_BLOCK.size * blocks)
        answer = _call(sock, device, command)
    active = [FEATURE_BLOCK.unpack_from(answer, 8 + 16 * i)[2] for i in range(blocks)]
    return {name: bool(active[i // 32] >> i % 32 & 1) for i, name in enumerate(names)}


def set_offloads(device: str, wanted: Mapping[str, bool]) -> None:
    """Switch features of a device on or off.

    Raises
    ------
    OSError
        If the device does not have one, or does not let it be changed.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        names = _names(sock, device)
        changes = [[0, 0] for _ in range(-(-len(names) // 32))]
        for name, on in wanted.items():
            if name not in names:
                raise OSError(f"{device} knows no {name}")
            block, bit = divmod(names.index(name), 32)
            changes[block][0] |= 1 << bit
            changes[block][1] |= on << bit
        command = FEATURES.pack(ETHTOOL_SFEATURES, len(changes))
        _call(sock, device, command + b"".join(CHANGE_BLOCK.pack(*c) for c in changes))
    are = offloads(device)
    if refused := [name for name, on in wanted.items() if are[name] != on]:
        raise OSError(f"{device} does not let {', '.join(refused)} be changed")


def _names(sock: socket.socket, device: str) -> list[str]:
    """Return the names of all features, in the order of their bits."""
    command = SET_INFO.pack(ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0)
    n = SET_INFO.unpack(_call(sock, device, command))[3]
    command = STRINGS.pack(ETHTOOL_GSTRINGS, ETH_SS_FEATURES, n) + bytes(ETH_GSTRING_LEN * n)
    strings = _call(sock, device, command)[STRINGS.size :]
    cut = range(0, len(strings), ETH_GSTRING_LEN)
    return [strings[i : i + ETH_GSTRING_LEN].rstrip(b"\0").decode() for i in cut]


def _call(sock: socket.socket, device: str, command: bytes) -> bytes:
    """Let the kernel carry out a command, and return what it made of it."""
    memory = array.array("B", command)
    fcntl.ioctl(sock, SIOCETHTOOL, REQUEST.pack(device.encode(), memory.buffer_info()[0]))
    return memory.tobytes()
