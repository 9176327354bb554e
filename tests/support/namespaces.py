"""Two machines on one: network namespaces joined by a virtual cable.

Needs root, or a system that lets users have namespaces of their own.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import getpid


@dataclass(frozen=True, slots=True)
class Machine:
    """One end of the cable."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command to run it there."""
        return ("ip", "netns", "exec", self.namespace)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Make two namespaces and a veth pair, for as long as the block lasts."""
    one = Machine(f"gw{getpid()}a", "10.213.7.1")
    two = Machine(f"gw{getpid()}b", "10.213.7.2")
    for machine in (one, two):
        _ip("netns", "add", machine.namespace)
    try:
        _ip("link", "add", "eth0", "netns", one.namespace, "type", "veth",
            "peer", "name", "eth0", "netns", two.namespace)  # fmt: skip
        for machine in (one, two):
            inside = ("-n", machine.namespace)
            _ip(*inside, "address", "add", f"{machine.address}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")
        yield one, two
    finally:
        for machine in (one, two):
            _ip("netns", "delete", machine.namespace)


def can_have_machines() -> bool:
    """Return whether this system lets us make namespaces."""
    name = f"gw{getpid()}try"
    try:
        _ip("netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    _ip("netns", "delete", name)
    return True
