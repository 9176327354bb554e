"""Where a master can be announced, as users write it.

=====================================  =======================================================
``zk://host:2181,host:2181/path``      a node of a ZooKeeper ensemble
``file:///shared/folder/run.json``     a file in a folder that all machines share
``dns+srv://_gradwire._udp.domain``    SRV records (RFC 2782); ``dns+srv://server:port/name``
                                       asks that DNS server
=====================================  =======================================================

A `Place` is opened for reading, and read until it has an announcement. Reading blocks.
"""

from collections.abc import Callable
from typing import Final, Protocol

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.file import FilePlace
from gradwire_udp.discovery.reading import Reader
from gradwire_udp.discovery.srv import SrvPlace
from gradwire_udp.discovery.zookeeper import ZooKeeperPlace
from gradwire_udp.sockets import LOOKED_UP, split_address

__all__ = ["Announcement", "Place", "UnreachableError", "place_of"]

PARSERS: Final[dict[str, Callable[[str], "Place"]]] = {
    "zk": ZooKeeperPlace.parse,
    "file": FilePlace.parse,
    "dns+srv": SrvPlace.parse,
}
assert PARSERS.keys() == LOOKED_UP.keys()


class Place(Protocol):
    """Where a master is announced."""

    @property
    def text(self) -> str:
        """How users write it."""

    @property
    def question(self) -> str:
        """What to look at where nothing is found there."""

    def open(self) -> Reader:
        """Return what reads there; `UsageError` where a package is missing."""


def place_of(text: str) -> Place | None:
    """Return the place that a text names; None where the text is an address, ``host:port``.

    Raises
    ------
    UsageError
        If it has a scheme, and is not written as a place.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return None
    parse = PARSERS.get(scheme.lower())
    if parse is None:
        split_address(text)  # which says that gradwire is not HTTP
        raise UsageError(f"master={text!r}")
    return parse(rest)
