"""One end of connections over TCP: a driver, an endpoint, an application."""

import asyncio
import socket
from dataclasses import replace

from gradwire_protocol import ConnectionConfig
from gradwire_udp import TcpAddress, TcpCounters, TcpDriver, open_listener
from gradwire_udp.sockets import SocketAddress
from support.driven_side import Keeper
from support.waiting import until

OVER_TCP = ConnectionConfig().over_tcp


class TcpSide(Keeper):
    """What drives an endpoint over TCP, and what sits on top of it."""

    driver: TcpDriver

    def __init__(
        self,
        *,
        accepts: int = 0,
        config: ConnectionConfig = OVER_TCP,
        listener: socket.socket | None = None,
        connect_timeout: float = 10.0,
    ) -> None:
        super().__init__(replace(config, connect_timeout_seconds=connect_timeout), accepts)
        self.counters = TcpCounters()
        if accepts and listener is None:
            listener = open_listener(("127.0.0.1", 0))
        self.address: SocketAddress = ("", 0) if listener is None else listener.getsockname()
        self.driver = TcpDriver(
            self.endpoint, self, asyncio.get_running_loop(), self.counters, listener
        )

    def dial(self, address: SocketAddress) -> TcpAddress:
        reached = self.driver.dial(address, socket.AF_INET)
        self.endpoint.connect(reached, self.driver.now())
        self.driver.turn()
        return reached


async def connected_over_tcp(one: TcpSide, other: TcpSide) -> None:
    """Let one side dial the other, and wait until both know it."""
    one.dial(other.address)
    await until(lambda: one.connection and other.connection, "the connection")


async def connected_tcp_sides() -> tuple[TcpSide, TcpSide]:
    """Return two sides, one of which has dialled the other."""
    one, other = TcpSide(), TcpSide(accepts=1)
    await connected_over_tcp(one, other)
    return one, other
