"""The sender: parity where nothing else is to be sent, and where it is worth its bytes."""

import pytest

from gradwire_protocol.wire.frames import Data, parity_groups
from support.pair import frames_of
from support.sending import DATAGRAM_BYTES, FRAGMENT_BYTES, FarEnd, Rig, payload_of

LEARNED = 2000
"""Packets from which the loss of a path is learned."""


def on_a_path_that_loses(part: float) -> tuple[Rig, float]:
    """Return a rig that knows which part of its packets gets lost, and what time it is."""
    rig = Rig()
    every = round(1 / part) if part else LEARNED + 1
    far = FarEnd(rig)
    count = 0

    def get_through(_: bytes) -> bool:
        nonlocal count
        count += 1
        return count % every > 0

    far.lets_pass = get_through
    rig.push(*[100 * FRAGMENT_BYTES] * (LEARNED // 100))
    far.deliver()
    assert rig.counters.parity_sent == 0 or part
    rig.counters.parity_sent = 0
    return rig, far.now


def kinds(rig: Rig, now: float) -> str:
    """Send all that may leave; return a letter for each packet: a digit for a message, P parity."""
    letters = []
    for datagram in rig.datagrams(now):
        [frame] = frames_of(datagram)
        assert isinstance(frame, Data)
        letters.append("P" if frame.parity else str(frame.number - LEARNED // 100))
    return "".join(letters)


@pytest.mark.parametrize(("part", "groups"), [(0.0, 0), (0.01, parity_groups(100))])
def test_parity_is_sent_only_where_it_pays(part: float, groups: int) -> None:
    rig, now = on_a_path_that_loses(part)
    rig.push(100 * FRAGMENT_BYTES)

    assert kinds(rig, now) == "0" * 100 + "P" * groups
    assert rig.counters.parity_sent == groups


def test_parity_is_sent_only_behind_all_that_waits_and_for_the_last_of_it() -> None:
    rig, now = on_a_path_that_loses(0.01)
    rig.push(20 * FRAGMENT_BYTES, 30 * FRAGMENT_BYTES)

    assert kinds(rig, now) == "0" * 20 + "1" * 30 + "P" * parity_groups(30)


def test_what_comes_later_goes_before_the_parity_that_waits() -> None:
    rig, now = on_a_path_that_loses(0.01)
    rig.controller.window_bytes = 20 * DATAGRAM_BYTES
    rig.push(20 * FRAGMENT_BYTES)
    first = kinds(rig, now)

    rig.push(20 * FRAGMENT_BYTES)
    rig.controller.window_bytes = 2**30

    assert (first, kinds(rig, now)) == ("0" * 20, "1" * 20 + "PP" * 2)


def test_a_message_that_has_arrived_needs_no_parity() -> None:
    rig, now = on_a_path_that_loses(0.01)
    rig.controller.window_bytes = 20 * DATAGRAM_BYTES
    rig.push(20 * FRAGMENT_BYTES)
    assert kinds(rig, now) == "0" * 20

    rig.acknowledge_all(now + 0.1)

    assert kinds(rig, now + 0.1) == ""


def test_a_message_has_parity_once_and_what_is_sent_again_has_none() -> None:
    rig, now = on_a_path_that_loses(0.01)
    rig.push(20 * FRAGMENT_BYTES)
    before = rig.next_number
    assert kinds(rig, now) == "0" * 20 + "PP"

    rig.acknowledge((before + 5, rig.next_number - 1), now=now + 0.1)

    assert kinds(rig, now + 0.1) == "0" * 5


def test_parity_that_is_too_large_for_a_path_that_has_changed_is_not_sent() -> None:
    rig, now = on_a_path_that_loses(0.01)
    rig.controller.window_bytes = 20 * DATAGRAM_BYTES
    rig.push(20 * FRAGMENT_BYTES)
    assert kinds(rig, now) == "0" * 20
    rig.controller.window_bytes = 2**30

    rig.sender.queue.reshape(FRAGMENT_BYTES - 200)

    assert "P" not in kinds(rig, now)[:20]


def test_a_packet_lost_here_and_there_costs_no_round_trip() -> None:
    rig, now = on_a_path_that_loses(0.01)
    rig.push(48 * FRAGMENT_BYTES)
    far = FarEnd(rig, now=now)
    numbers = [10, 23, 36]
    count = 0

    def get_through(_: bytes) -> bool:
        nonlocal count
        count += 1
        return count not in numbers

    far.lets_pass = get_through
    far.run(lambda: bool(far.messages), rtt=0.1)

    number = LEARNED // 100
    assert far.messages == {number: payload_of(number, 48 * FRAGMENT_BYTES)}
    assert {at for at, _ in far.sent} == {now}
