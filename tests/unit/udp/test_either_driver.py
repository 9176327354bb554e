"""What holds over UDP and over TCP alike."""

from collections.abc import Awaitable, Callable

import pytest

from support.driven_side import Keeper, connected_sides, messages, on_loops
from support.tcp_side import connected_tcp_sides
from support.waiting import until

Connect = Callable[[], Awaitable[tuple[Keeper, Keeper]]]
OVER_BOTH = pytest.mark.parametrize(
    "connect", [connected_sides, connected_tcp_sides], ids=["UDP", "TCP"]
)


@on_loops
@OVER_BOTH
async def test_a_hundred_messages_each_way_arrive_exactly_once(connect: Connect) -> None:
    sizes = [1, 2, 100, 1_375, 1_376, 5_000, 8_860, 8_861, 30_000, 300_000]
    there, back = messages(1, 100, sizes), messages(2, 100, sizes)
    one, other = await connect()

    one.send(there)
    other.send(back)
    await until(lambda: len(one.delivered) == len(other.delivered) == 100, "all deliveries")

    assert sorted(other.received) == sorted(there)
    assert sorted(one.received) == sorted(back)
    assert sorted(one.delivered) == sorted((stream, number) for stream, number, _ in there)


@on_loops
@OVER_BOTH
async def test_a_peer_that_has_closed_its_connection_is_not_waited_for(connect: Connect) -> None:
    one, other = await connect()
    one.hang_up()
    await until(lambda: other.ended is not None, "the end")
    assert len(other.endpoint) == 1, "late packets would still belong to it"

    await other.driver.wait_quiet(3_600.0)
