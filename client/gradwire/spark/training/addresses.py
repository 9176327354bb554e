"""Where the master of a driver listens, and by which address executors reach it.

Spark's own settings say it for the driver's services: ``spark.driver.bindAddress`` and
``spark.driver.host``. On Spark Connect, the script is a client; executors reach it by the address
from which it reaches the server.
"""

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from gradwire.errors import UsageError
from gradwire_udp import local_address_in

PORT_OF_NOTHING = 9
"""Of a socket that is connected and sends nothing (RFC 863): the system then names the address."""


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Of the machine on which the driver runs."""

    listen: str
    advertised: str


def driver_address(spark: SparkSession, network_mask: str | None) -> DriverAddress:
    """Return where to listen.

    Parameters
    ----------
    network_mask : str, optional
        Such as ``"10.0.0.0/16"``: the network that executors reach the driver by. None takes what
        Spark's settings say.

    Raises
    ------
    UsageError
        If this machine has no address in that network.
    """
    if network_mask is not None:
        try:
            address = local_address_in(network_mask)
        except UsageError as error:
            raise UsageError(f"networkMask={network_mask!r}: {error}") from None
        return DriverAddress(address, address)
    if is_connect(spark):
        server = urlsplit(f"//{spark.client.host}").hostname
        address = _address_towards(server or "127.0.0.1")
        return DriverAddress(address, address)
    host = spark.conf.get("spark.driver.host") or "127.0.0.1"
    bound = spark.conf.get("spark.driver.bindAddress", host) or host
    return DriverAddress(bound, host)


def is_connect(spark: SparkSession) -> bool:
    """Return whether this is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _address_towards(host: str) -> str:
    """Return the address that this machine sends from to a host."""
    family, _, _, _, address = socket.getaddrinfo(host, PORT_OF_NOTHING, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
