"""Messages that have begun and do not go on: the receiver waits for so long, and then says why."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from gradwire_protocol import State
from gradwire_protocol.limits import MESSAGE_BYTES_MAX, UNFINISHED_IDLE_TIMEOUTS
from gradwire_protocol.wire.frames import Close, pack_ping
from support.endpoints import PLAIN
from support.pair import FRAGMENT_BYTES, data_frame
from support.puppet import Puppet
from support.wording import naming

IDLE_SECONDS: Final = 6.0
PATIENCE: Final = UNFINISHED_IDLE_TIMEOUTS * IDLE_SECONDS
TOTAL: Final = 40 * FRAGMENT_BYTES


def fragment(index: int = 0, *, number: int = 0) -> bytes:
    """Return a fragment of a message that has forty."""
    return data_frame(bytes(FRAGMENT_BYTES), number=number, index=index, total=TOTAL)


def play(
    seconds: float, frames: Callable[[int], bytes] = lambda _: pack_ping()
) -> tuple[Puppet, float]:
    """Let a peer begin a message, and say something every second; return when it began it."""
    puppet = Puppet(replace(PLAIN, idle_timeout_seconds=IDLE_SECONDS)).opened()
    begun = puppet.now
    puppet.send(fragment())
    for second in range(1, int(seconds) + 1):
        puppet.send(frames(second))
        puppet.wait(begun + second)
    return puppet, begun


def wait_for_close(puppet: Puppet) -> Close:
    """Say something every second until the connection is closed; return what the peer is told."""
    packets = []
    while puppet.connection.state is State.OPEN:
        puppet.send(pack_ping())
        packets += puppet.wait(puppet.now + 1.0)
    [close] = [frame for frames in packets for frame in frames if isinstance(frame, Close)]
    return close


@pytest.mark.parametrize(
    "frames",
    [
        lambda _: fragment(),
        lambda second: data_frame(b"whole", number=second),
        lambda second: data_frame(bytes(FRAGMENT_BYTES), stream=second, total=TOTAL),
    ],
    ids=["the same fragment", "whole messages", "beginnings of others"],
)
def test_nothing_else_makes_up_for_it(frames: Callable[[int], bytes]) -> None:
    puppet, _ = play(PATIENCE - 1, frames)
    assert puppet.endpoint.counters.stalls == 0

    puppet, _ = play(PATIENCE + 2 * IDLE_SECONDS, frames)

    assert puppet.endpoint.counters.stalls == 1


def test_the_reason_fits_into_a_close_whatever_the_numbers_are() -> None:
    puppet = Puppet(replace(PLAIN, idle_timeout_seconds=IDLE_SECONDS)).opened()
    frame = data_frame(
        bytes(1_148),
        stream=2**16 - 1,
        number=2**32 - 1,
        total=MESSAGE_BYTES_MAX,
        fragment_bytes=1_148,
    )
    puppet.send(frame)

    close = wait_for_close(puppet)

    assert close.reason == naming(2**32 - 1, 2**16 - 1, "its end")


def test_a_peer_with_a_tiny_idle_timeout_does_not_make_the_checks_frequent() -> None:
    puppet = Puppet(idle_timeout_seconds=0.02).opened()
    begun = puppet.now
    puppet.send(fragment())

    woken = 0
    while puppet.connection.state is State.OPEN:
        puppet.send(pack_ping())
        puppet.wait(puppet.now + 0.01)
        woken += 1
        assert woken < 3_000

    assert UNFINISHED_IDLE_TIMEOUTS <= puppet.now - begun <= UNFINISHED_IDLE_TIMEOUTS + 2
