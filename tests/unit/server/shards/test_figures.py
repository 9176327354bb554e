"""What is counted in several processes adds up to what one would have counted."""

from dataclasses import fields

import msgpack

from gradwire_protocol import Counters, Drop
from gradwire_server.shards.figures import ConnectionFigures, Figures, pack_figures, parse_figures
from gradwire_udp import SocketCounters
from support.pair import Pair


def counted(factor: int) -> Figures:
    """Return figures of which no two are the same."""
    figures = Figures()
    names = [*figures.counters.flat(), *(f.name for f in fields(SocketCounters))]
    for value, name in enumerate(names, 1):
        holder = figures.counters if hasattr(figures.counters, name) else figures.sockets
        setattr(holder, name, factor * value)
    for value, reason in enumerate(Drop, 100):
        figures.counters.drops[reason] = factor * value
    return figures


def test_every_counter_is_added() -> None:
    total = counted(1)

    total.add(counted(10))

    assert total == counted(11)


def test_a_sum_is_made_in_place_and_from_nothing() -> None:
    total = counted(7)
    counters, sockets = total.counters, total.sockets

    total.set_to_sum([counted(1), counted(2)])

    assert total == counted(3)
    assert counters is total.counters
    assert sockets is total.sockets


def test_the_sum_of_nobody_is_nothing() -> None:
    total = counted(1)

    total.set_to_sum([])

    assert total == Figures(Counters(), SocketCounters())


def test_they_travel_as_records_do() -> None:
    pair = Pair()
    pair.connect()
    connection = pair.responder.connection

    packed = msgpack.packb(pack_figures(counted(3), {5: connection}))
    figures, connections = parse_figures(msgpack.unpackb(packed, use_list=False))

    assert figures == counted(3)
    assert connections == {5: ConnectionFigures(connection.rtt, connection.bytes_held)}
