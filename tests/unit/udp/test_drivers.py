"""Several drivers under one application: a relay between UDP and TCP, and its timers."""

import asyncio
import os
from random import Random

from gradwire_protocol import (
    Connected,
    Connection,
    ConnectionConfig,
    Endpoint,
    Event,
    MessageReceived,
    Priority,
)
from gradwire_protocol.limits import DATAGRAM_BYTES_MAX, MIB
from gradwire_udp import (
    Drivers,
    SocketCounters,
    TcpCounters,
    TcpDriver,
    UdpDriver,
    open_listener,
)
from support.driven_side import CODE, Alarm, Side, close_in_the_end, on_loops
from support.fickle_socket import FickleSocket
from support.tcp_side import OVER_TCP, TcpSide
from support.waiting import SOON, until

OVER_UDP = ConnectionConfig(datagram_bytes=DATAGRAM_BYTES_MAX)
"""As large as over TCP, so that both send a message from the same place."""


class Relay(Alarm):
    """An application on UDP and TCP that passes on to everyone else what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: list[Connection] = []
        self.socket = FickleSocket.on_loopback()
        self.endpoints = [
            Endpoint(config, random_bytes=os.urandom, connections_max=4)
            for config in (OVER_UDP, OVER_TCP)
        ]
        loop = asyncio.get_running_loop()
        self.drivers = Drivers(self, loop)
        close_in_the_end(self.drivers.close)
        udp, tcp = self.endpoints
        self.udp = self.drivers.add(
            lambda shared: UdpDriver(self.socket, udp, shared, loop, SocketCounters())
        )
        listener = open_listener(("127.0.0.1", 0))
        self.tcp_address = listener.getsockname()
        self.drivers.add(lambda shared: TcpDriver(tcp, shared, loop, TcpCounters(), listener))

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        match event:
            case Connected():
                self.connections.append(connection)
            case MessageReceived():
                connection.release(event.charge)
                for other in self.connections:
                    if other is not connection:
                        other.relay(event.message, Priority.UPDATE)
            case _:
                pass

    async def join(self, udp: int, tcp: int) -> tuple[list[Side], list[TcpSide]]:
        over_udp = [Side(config=OVER_UDP) for _ in range(udp)]
        over_tcp = [TcpSide() for _ in range(tcp)]
        for side in over_udp:
            side.dial(self.udp.address)
        for stream in over_tcp:
            stream.dial(self.tcp_address)
        await until(lambda: len(self.connections) == udp + tcp, "all of them")
        await until(lambda: all(s.connection for s in (*over_udp, *over_tcp)), "all connections")
        return over_udp, over_tcp


@on_loops
async def test_what_comes_over_one_goes_out_over_the_others_at_once() -> None:
    relay = Relay()
    [first, second], [third, fourth] = await relay.join(2, 2)

    first.send([(1, 0, b"over UDP")])
    third.send([(2, 0, b"over TCP")])
    everyone = (first, second, third, fourth)
    await until(lambda: sum(len(s.received) for s in everyone) == 6, "all relays")

    assert first.received == [(2, 0, b"over TCP")]
    assert third.received == [(1, 0, b"over UDP")]
    assert sorted(second.received) == sorted(fourth.received)


@on_loops
async def test_a_datagram_socket_that_takes_nothing_keeps_its_train_as_it_was() -> None:
    """Over TCP the same message is sent meanwhile, with the headers of another connection."""
    payload = Random(1).randbytes(MIB)

    relay = Relay()
    [first, second], [third] = await relay.join(2, 1)
    first.send([(1, 0, b"go")])
    await until(lambda: second.received and third.received, "a start")

    relay.socket.failures_to_send = [BlockingIOError(), *[None] * 3] * 20
    first.send([(1, 1, payload)])
    await until(lambda: len(second.received) == len(third.received) == 2, "all of it")

    assert second.received[1] == third.received[1] == (1, 1, payload)
    assert not any(second.endpoint.counters.drops.values())
    assert not any(third.endpoint.counters.drops.values())


@on_loops
async def test_the_application_s_timer_fires_once() -> None:
    relay = Relay()
    [first], [second] = await relay.join(1, 1)
    relay.deadline = relay.drivers.now() + 0.01
    relay.drivers.turn()
    await until(lambda: relay.fired_at, "the timer")
    first.send([(1, 0, b"and")])
    await until(lambda: second.received, "what comes after it")

    assert len(relay.fired_at) == 1


@on_loops
async def test_a_timer_that_an_event_on_any_of_them_sets_fires() -> None:
    class Hasty(Relay):
        def handle_event(self, connection: Connection, event: Event, now: float) -> None:
            super().handle_event(connection, event, now)
            if isinstance(event, MessageReceived):
                self.deadline = now

    relay = Hasty()
    _, [side] = await relay.join(0, 1)
    side.send([(1, 0, b"now")])

    await until(lambda: relay.fired_at, "the timer")


@on_loops
async def test_all_are_quiet_when_each_one_is() -> None:
    relay = Relay()
    [first], [second] = await relay.join(1, 1)
    for side in (first, second):
        side.send([(1, 0, b"hello")])  # so that all know how long a round trip is
    await until(lambda: first.delivered and second.delivered, "both deliveries")

    await relay.drivers.wait_quiet(0.01)
    assert [len(endpoint) for endpoint in relay.endpoints] == [1, 1]
    for connection in relay.connections:
        connection.close(CODE, "enough", relay.drivers.now())
    relay.drivers.turn()
    await relay.drivers.wait_quiet(SOON)

    assert [len(endpoint) for endpoint in relay.endpoints] == [0, 0]
    await until(lambda: first.ended and second.ended, "both to hear it")
