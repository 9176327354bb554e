"""The driver: two endpoints on real sockets, their timers, and their end."""

import socket
from dataclasses import asdict

from gradwire_protocol import (
    Connection,
    Event,
    MessageReceived,
)
from gradwire_udp import SocketCounters
from support.driven_side import Side, connected, connected_sides, on_loops
from support.waiting import until

# Two sides.


@on_loops
async def test_datagrams_that_mean_nothing_are_all_counted() -> None:
    """More of them than are read at a time."""
    side = Side(accepts=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for i in range(150):
            stranger.sendto(bytes([255, i]), side.driver.address)

        await until(lambda: side.counters.datagrams_received == 150, "all datagrams")

    assert asdict(side.counters) == asdict(
        SocketCounters(reads=150, datagrams_received=150, bytes_received=300)
    )
    assert sum(side.endpoint.counters.drops.values()) == 150


# The end.


@on_loops
async def test_waiting_for_quiet_has_a_deadline() -> None:
    one, _ = await connected_sides()

    await one.driver.wait_quiet(0.01)

    assert len(one.endpoint) == 1


@on_loops
async def test_where_it_is_quiet_nobody_waits() -> None:
    await Side().driver.wait_quiet(3_600.0)


@on_loops
async def test_an_application_may_close_the_driver_while_it_hears_of_something() -> None:
    class Leaver(Side):
        def handle_event(self, connection: Connection, event: Event, now: float) -> None:
            super().handle_event(connection, event, now)
            if isinstance(event, MessageReceived):
                self.driver.close()

    one, other = Side(), Leaver(accepts=True)
    await connected(one, other)

    one.send([(0, 0, b"go"), (0, 1, b"stay")])
    await until(lambda: other.socket.fileno() == -1, "the driver to be closed")

    assert other.received[0] == (0, 0, b"go")
