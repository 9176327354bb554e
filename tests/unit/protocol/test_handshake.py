"""The initiator: repeat the INIT until there is an answer, and no longer than agreed."""

import pytest

from gradwire_protocol import InvalidDatagramError
from gradwire_protocol.handshake import Initiator
from gradwire_protocol.packets import Accept, Init, TransportLimits

LIMITS = TransportLimits(2**24, 1400, 30.0)
INIT = Init(1, bytes(32), LIMITS)


def test_an_init_is_repeated_at_growing_intervals_until_time_is_up() -> None:
    initiator = Initiator(INIT, timeout_seconds=10.0, now=100.0)

    times = []
    while (now := initiator.next_timer) < initiator.deadline:
        assert initiator.datagram_to_send(now - 0.001) is None
        assert initiator.datagram_to_send(now) == INIT.pack()
        times.append(now - 100.0)

    assert times == [0.0, 0.25, 0.75, 1.75, 3.75, 5.75, 7.75, 9.75]
    assert initiator.sent == 8
    assert initiator.next_timer == initiator.deadline == 110.0


def test_the_answer_to_this_init_is_taken() -> None:
    initiator = Initiator(INIT, timeout_seconds=10.0, now=0.0)
    accept = Accept(1, 2, bytes(32), LIMITS)

    assert initiator.receive_accept(memoryview(accept.pack(INIT.pack()))) == accept


def test_an_answer_for_another_session_is_refused() -> None:
    initiator = Initiator(INIT, timeout_seconds=10.0, now=0.0)
    accept = Accept(3, 2, bytes(32), LIMITS)

    with pytest.raises(InvalidDatagramError, match="another session"):
        initiator.receive_accept(memoryview(accept.pack(INIT.pack())))
