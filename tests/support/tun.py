"""Network devices whose cable is a file: what the kernel sends is read, what is written arrives."""

import fcntl
import os
import struct
from typing import Final

# From linux/if_tun.h.
TUNSETIFF: Final = 0x400454CA
IFF_TUN: Final = 0x0001
IFF_NAPI: Final = 0x0010
"""Let GRO join what is written, if the device has a time to wait for more."""
IFF_NO_PI: Final = 0x1000
"""No header before the packets."""
REQUEST: Final = struct.Struct("16sH22x")

ECN_BITS: Final = 0b11
TOS_AT: Final = 1
CHECKSUM_AT: Final = 10
"""Where they are in the header of IPv4."""


def open_tun(name: str) -> int:
    """Make a device where the calling thread is; return the file, which does not block.

    Every read brings one IP packet, and every write is one. There is no header in which a kernel
    could ask for work that it has not done: what it sends is cut into packets, with checksums.
    The device is gone when the file is closed.
    """
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, TUNSETIFF, REQUEST.pack(name.encode(), IFF_TUN | IFF_NAPI | IFF_NO_PI))
    except OSError:
        os.close(fd)
        raise
    return fd


def marked(packet: bytes) -> bytes:
    """Return an IP packet with ECN's mark, if it is IPv4 and said to be able to carry one."""
    if packet[0] >> 4 != 4 or not packet[TOS_AT] & ECN_BITS:
        return packet
    changed = bytearray(packet)
    changed[TOS_AT] |= ECN_BITS
    # RFC 1624: the checksum is a sum, so it takes the difference.
    old, new = int.from_bytes(packet[:2], "big"), int.from_bytes(changed[:2], "big")
    checksum = int.from_bytes(packet[CHECKSUM_AT : CHECKSUM_AT + 2], "big")
    total = (~checksum & 0xFFFF) + (~old & 0xFFFF) + new
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed[CHECKSUM_AT : CHECKSUM_AT + 2] = (~total & 0xFFFF).to_bytes(2, "big")
    return bytes(changed)
