"""Two machines on one: network namespaces joined by a virtual cable.

Needs root, or a system that lets users have namespaces of their own.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from string import ascii_lowercase
from typing import Final, TypeVar

from support.offloads import GRO, TCP_SEGMENTATION, UDP_SEGMENTATION, set_offloads

T = TypeVar("T")

CLONE_NEWNET: Final = 0x40000000
"""Linux's number for: a network namespace."""
DEVICE: Final = "eth0"
"""What the end of the cable is called on each machine."""

_libc = ctypes.CDLL(None, use_errno=True)
_serial = count()


@dataclass(frozen=True, slots=True)
class Machine:
    """One end of the cable."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command to run it there."""
        return ("ip", "netns", "exec", self.namespace)

    def inside(self, action: Callable[[], T]) -> T:
        """Do something there: a socket that is opened there stays there, whoever uses it."""
        with ThreadPoolExecutor(1) as executor:  # namespaces are a matter of threads
            return executor.submit(self._enter_and_do, action).result()

    def enter(self) -> None:
        """Move the calling thread there, and what it starts from now on."""
        fd = os.open(Path("/run/netns", self.namespace), os.O_RDONLY)
        try:
            if _libc.setns(fd, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns", self.namespace)
        finally:
            os.close(fd)

    def _enter_and_do(self, action: Callable[[], T]) -> T:
        self.enter()
        return action()


def ip(*arguments: str) -> str:
    """Run the command of that name."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@contextmanager
def unconnected_machines() -> Iterator[tuple[Machine, Machine]]:
    """Make two namespaces, for as long as the block lasts, with nothing between them."""
    with machines_apart(2) as (one, two):
        yield one, two


@contextmanager
def machines_apart(count: int) -> Iterator[tuple[Machine, ...]]:
    """Make so many namespaces, for as long as the block lasts, with nothing between them."""
    name = f"gw{os.getpid()}n{next(_serial)}"
    machines = tuple(
        Machine(f"{name}{letter}", f"10.213.7.{number}")
        for number, letter in enumerate(ascii_lowercase[:count], 1)
    )
    made: list[Machine] = []
    try:
        for machine in machines:
            ip("netns", "add", machine.namespace)
            made.append(machine)
        yield machines
    finally:
        for machine in made:
            ip("netns", "delete", machine.namespace)


def plug_in(machine: Machine, *, mtu: int = 1500) -> None:
    """Give the device at the end of the cable its address, and switch it on."""
    inside = ("-n", machine.namespace)
    # Without addresses of IPv6 nobody says anything but who is told to.
    ip(*inside, "link", "set", DEVICE, "mtu", str(mtu), "addrgenmode", "none")
    ip(*inside, "address", "add", f"{machine.address}/24", "dev", DEVICE)
    ip(*inside, "link", "set", DEVICE, "up")
    ip(*inside, "link", "set", "lo", "up")


@contextmanager
def two_machines(*, mtu: int = 1500) -> Iterator[tuple[Machine, Machine]]:
    """Make two namespaces and a veth pair, for as long as the block lasts."""
    with unconnected_machines() as (one, two):
        ip("link", "add", DEVICE, "netns", one.namespace, "type", "veth",
           "peer", "name", DEVICE, "netns", two.namespace)  # fmt: skip
        for machine in (one, two):
            plug_in(machine, mtu=mtu)
        yield one, two


@contextmanager
def veth_pair(
    *, uso: bool = False, gro: bool = True, mtu: int = 1500
) -> Iterator[tuple[Machine, Machine]]:
    """Make two machines with network cards that can, or cannot, do a part of the work.

    Parameters
    ----------
    uso : bool
        Whether the cards cut what is sent into datagrams, or segments. A veth then passes it on
        as it is; else the sender's kernel cuts it, as before a card that cannot.
    gro : bool
        Whether the receiver's kernel joins again what was cut.
    mtu : int
    """
    with two_machines(mtu=mtu) as (one, two):
        # A veth looks at what it received, to join it, only where the other end cuts neither
        # UDP nor TCP: else it takes for granted that all of it comes as it was sent.
        wanted = dict.fromkeys((*UDP_SEGMENTATION, *TCP_SEGMENTATION), uso) | {GRO: gro}
        for machine in (one, two):
            machine.inside(lambda: set_offloads(DEVICE, wanted))
        yield one, two


def can_have_machines() -> bool:
    """Return whether this system lets us make namespaces."""
    try:
        with unconnected_machines():
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
