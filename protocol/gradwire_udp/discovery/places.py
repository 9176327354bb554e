"""Where a master can be found by a name, as users write it.

====================================  ========================================================
``zk://host:2181,host:2181/path``     a node of a ZooKeeper ensemble, where a master announces
                                      itself
``dns+srv://_gradwire._udp.domain``   SRV records (RFC 2782); ``dns+srv://server:port/name``
                                      asks that DNS server
====================================  ========================================================
"""

from typing import TypeAlias

from gradwire_protocol import UsageError
from gradwire_udp.discovery.srv import SrvPlace, SrvReader
from gradwire_udp.discovery.zookeeper import ZooKeeperPlace, ZooKeeperReader
from gradwire_udp.sockets import split_address

Place: TypeAlias = ZooKeeperPlace | SrvPlace
Reader: TypeAlias = ZooKeeperReader | SrvReader


def place_of(text: str) -> Place | None:
    """Return the place that a text names; None where the text is an address, ``host:port``.

    Raises
    ------
    UsageError
        If it is neither.
    """
    scheme, separator, rest = text.partition("://")
    if separator and scheme.lower() == "zk":
        return ZooKeeperPlace.parse(rest)
    if separator and scheme.lower() == "dns+srv":
        return SrvPlace.parse(rest)
    if separator:
        raise UsageError(
            f"address {text!r}: gradwire is not {scheme.upper()}; write host:port without "
            f"'{scheme}://', with the port where the master takes workers, or "
            "zk://host:2181/path, or dns+srv://_gradwire._udp.domain"
        )
    split_address(text)
    return None
