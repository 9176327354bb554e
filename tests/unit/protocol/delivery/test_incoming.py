"""Incoming messages: delivered once, whatever comes in whatever order, and memory stays bounded."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, ViolationError
from gradwire_protocol.delivery.incoming import IncomingMessage, Reassembly
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.limits import (
    FINISHED_RANGES_MAX,
    STREAMS_MAX,
    WINDOW_BYTES,
    WINDOW_BYTES_MIN,
    charge_of,
)
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.wire.frames import Data
from support.fragments import FRAGMENT_BYTES, fragment_of, fragments_of, message_of, packets_of
from support.state import state_of
from support.wording import naming

PLENTY = 2 * STREAMS_MAX * charge_of(1)
"""Credit for as many small messages as there can be streams."""


def whole(total: int, *, stream: int = 0, number: int = 0) -> Data:
    """Return the only fragment of a message."""
    return fragment_of(message_of(total, stream=stream, number=number), 0)


def receive(reassembly: Reassembly, *datas: Data) -> list[IncomingMessage]:
    """Receive fragments; return the messages that they completed."""
    return [message for data in datas if (message := reassembly.receive(data)) is not None]


def receive_run(
    reassembly: Reassembly, message: ShapedMessage, first: int, stop: int
) -> IncomingMessage | None:
    """Receive consecutive fragments at once, none of them shorter than the others."""
    packets = b"".join(
        packets_of(message, first, stop, session_id=1, number=0, sealing=Checksum(b""))
    )
    rows = np.frombuffer(packets, np.uint8).reshape(stop - first, message.stride)
    return reassembly.receive_run(fragment_of(message, first), rows)


def payloads(*messages: IncomingMessage | None) -> list[bytes]:
    """Return what is in messages, sorted; a message that is not complete is none."""
    return sorted(bytes(message.shaped.payload) for message in messages if message is not None)


@given(
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=4),
    shuffle=st.randoms(use_true_random=False),
)
def test_messages_are_delivered_once_whatever_the_order_and_the_duplicates(
    sizes: list[int], shuffle: Random
) -> None:
    """Receive every fragment of some messages twice, in any order."""
    messages = [message_of(n, stream=i % 2, number=i, seed=i) for i, n in enumerate(sizes)]
    datas = [data for message in messages for data in fragments_of(message)] * 2
    shuffle.shuffle(datas)
    reassembly = Reassembly(WINDOW_BYTES)

    received = receive(reassembly, *datas)

    assert payloads(*received) == sorted(bytes(message.payload) for message in messages)
    assert reassembly.declared == sum(map(charge_of, sizes))


def test_numbers_of_one_stream_are_not_those_of_another() -> None:
    reassembly = Reassembly(WINDOW_BYTES)

    messages = receive(reassembly, *(whole(1, stream=s, number=5) for s in (1, 2, 2, 1)))

    assert len(messages) == 2


# Many at once.


@given(
    count=st.integers(1, 40),
    less=st.sampled_from([0, 1, FRAGMENT_BYTES - 1]),
    steps=st.lists(
        st.tuples(st.integers(0, 39), st.integers(1, 40), st.integers(0, 4)), max_size=12
    ),
)
def test_consecutive_fragments_at_once_are_what_they_are_one_by_one(
    count: int, less: int, steps: list[tuple[int, int, int]]
) -> None:
    """Receive parts of a message and of another one of its name, and newer shapes."""
    together, singly = Reassembly(WINDOW_BYTES), Reassembly(WINDOW_BYTES)
    total = count * FRAGMENT_BYTES - less
    message, lie = message_of(total), message_of(total, seed=1)

    for first, n, what in steps:
        if what == 0:
            message, lie = (m.reshape(1160, new_shape=True) for m in (message, lie))
        source = lie if what == 1 else message
        stop = min(first + n, source.total // source.fragment_bytes)
        if first >= stop:
            continue
        completed = [
            receive_run(together, source, first, stop),
            next(iter(receive(singly, *fragments_of(source, range(first, stop)))), None),
        ]

        assert payloads(completed[0]) == payloads(completed[1])
        assert state_of(together) == state_of(singly)


def test_numbers_that_are_passed_over_are_no_gaps() -> None:
    reassembly = Reassembly(PLENTY)
    receive(reassembly, *(whole(1, number=2 * n) for n in range(FINISHED_RANGES_MAX)))

    reassembly.skip_to(0, 2 * FINISHED_RANGES_MAX)
    reassembly.skip_to(1, 5)  # of which nothing has come: it begins where it begins
    later = receive(
        reassembly,
        *(whole(1, number=2 * n) for n in range(FINISHED_RANGES_MAX, 2 * FINISHED_RANGES_MAX - 1)),
    )

    assert len(payloads(*later)) == FINISHED_RANGES_MAX - 1
    assert payloads(*receive(reassembly, whole(1, number=3))) == []
    assert len(payloads(*receive(reassembly, whole(1, stream=1, number=3)))) == 1


@given(count=st.integers(1, 40), cuts=st.lists(st.integers(1, 39)))
def test_a_message_can_come_in_runs_only(count: int, cuts: list[int]) -> None:
    message = message_of(count * FRAGMENT_BYTES)
    reassembly = Reassembly(WINDOW_BYTES)
    places = sorted({0, count, *(cut for cut in cuts if cut < count)})

    received = [receive_run(reassembly, message, first, stop) for first, stop in pairwise(places)]

    assert payloads(*received) == [bytes(message.payload)]
    assert received[-1] is not None
    assert receive_run(reassembly, message, 0, count) is None


def test_a_run_is_refused_where_the_end_of_its_message_could_be_a_violation() -> None:
    streams, gaps = Reassembly(PLENTY), Reassembly(PLENTY)
    receive(streams, *(whole(1, stream=stream) for stream in range(STREAMS_MAX - 1)))
    receive(gaps, *(whole(1, number=2 * n) for n in range(FINISHED_RANGES_MAX - 1)))
    assert streams.can_receive_run(whole(1, stream=STREAMS_MAX))
    assert gaps.can_receive_run(whole(1, number=5))

    receive(streams, whole(1, stream=STREAMS_MAX - 1))
    receive(gaps, whole(1, number=2 * FINISHED_RANGES_MAX))

    assert not streams.can_receive_run(whole(1, stream=STREAMS_MAX))
    assert streams.can_receive_run(whole(1, stream=0, number=9))
    assert not gaps.can_receive_run(whole(1, number=5))
    assert gaps.can_receive_run(whole(1, stream=1, number=5))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: message_of(m.total - 1),
        lambda m: message_of(m.total, kind=2),
        lambda m: message_of(m.total, fragment_bytes=1160),
        lambda _: message_of(WINDOW_BYTES // 4, number=9),
    ],
    ids=["length", "kind", "fragments", "credit"],
)
def test_a_run_that_is_a_violation_changes_nothing(
    change: Callable[[ShapedMessage], ShapedMessage],
) -> None:
    message = message_of(9 * FRAGMENT_BYTES)
    reassembly = Reassembly(WINDOW_BYTES // 4)
    receive(reassembly, fragment_of(message, 3))
    before = state_of(reassembly)

    with pytest.raises(ViolationError):
        receive_run(reassembly, change(message), 0, 5)

    assert state_of(reassembly) == before


# Shapes.


def test_a_newer_shape_begins_the_message_anew_and_an_older_one_is_of_no_use() -> None:
    message = message_of(4 * FRAGMENT_BYTES)
    narrow = message.reshape(1160, new_shape=True)
    reassembly = Reassembly(WINDOW_BYTES)
    receive(reassembly, *fragments_of(message, [0, 1, 2]))
    declared = reassembly.declared

    assert receive(reassembly, *fragments_of(narrow, [0, 1, 2]), fragment_of(message, 3)) == []
    [received] = receive(reassembly, *fragments_of(narrow, [3, 4]))

    assert payloads(received) == [bytes(message.payload)]
    assert received.shaped.fragment_bytes == 1160
    assert reassembly.declared == declared


# Messages that do not go on.


def test_a_message_is_found_that_got_no_fragment_in_so_many_checks_in_a_row() -> None:
    lagging, other = message_of(9 * FRAGMENT_BYTES), message_of(9 * FRAGMENT_BYTES, number=1)
    reassembly = Reassembly(WINDOW_BYTES)
    receive(reassembly, *fragments_of(lagging, [0]))

    found = []
    for index in range(8):
        receive(reassembly, fragment_of(other, index), fragment_of(lagging, 0))
        if index == 2:
            receive(reassembly, fragment_of(lagging, 5))
        found.append(reassembly.check_progress(4))

    assert found[:6] == [None] * 6
    assert [each.shaped.number for each in found[6:] if each is not None] == [0, 0]


def test_a_run_of_fragments_and_a_newer_shape_are_progress() -> None:
    message = message_of(20 * FRAGMENT_BYTES)
    reassembly = Reassembly(WINDOW_BYTES)
    receive(reassembly, fragment_of(message, 0))

    found = [reassembly.check_progress(1)]
    receive_run(reassembly, message, 4, 9)
    found.append(reassembly.check_progress(1))
    receive(reassembly, fragment_of(message.reshape(1160, new_shape=True), 0))
    found.append(reassembly.check_progress(1))

    assert found == [None] * 3
    assert reassembly.check_progress(1) is not None


def test_a_message_that_is_complete_is_checked_no_more() -> None:
    message = message_of(2 * FRAGMENT_BYTES)
    reassembly = Reassembly(WINDOW_BYTES)
    has_begun = []
    for index in range(2):
        receive(reassembly, fragment_of(message, index))
        has_begun.append(reassembly.has_begun)

    assert has_begun == [True, False]
    assert [reassembly.check_progress(1) for _ in range(3)] == [None] * 3


# Flow control.


def test_releasing_a_message_gives_its_credit_back() -> None:
    charge = charge_of(100)
    reassembly = Reassembly(charge)

    for number in range(10):
        [message] = receive(reassembly, whole(100, number=number))
        assert reassembly.bytes_held == message.charge == charge
        reassembly.release(message.charge)
        assert reassembly.bytes_held == 0
        assert reassembly.credit == (number + 2) * charge


def test_credit_is_announced_when_the_peer_has_used_up_half_its_window() -> None:
    assert WINDOW_BYTES == 16 * 2**20
    reassembly = Reassembly(WINDOW_BYTES)

    due = []
    for number in range(9):
        [message] = receive(reassembly, *fragments_of(message_of(2**20, number=number)))
        reassembly.release(message.charge)
        due.append(reassembly.announcement_due)

    assert due == [False] * 7 + [True] * 2


@pytest.mark.parametrize("releases", [False, True])
def test_credit_is_announced_before_the_largest_message_does_not_fit_but_not_without_any(
    releases: bool,
) -> None:
    reassembly = Reassembly(WINDOW_BYTES_MIN)
    [message] = receive(reassembly, whole(1))

    if releases:
        reassembly.release(message.charge)

    assert reassembly.announcement_due == releases


# Violations.


SHORT = fragment_of(message_of(2000), 0)


@pytest.mark.parametrize(
    ("before", "wrong", "named"),
    [
        ([SHORT], fragment_of(message_of(2001), 1), ("message 0", "stream 0", 2000, 2001)),
        (
            [SHORT],
            fragment_of(message_of(2000, kind=2), 1),
            ("message 0", "stream 0", 2000, "kind 1", 2),
        ),
        (
            [SHORT],
            fragment_of(message_of(2000, fragment_bytes=1160), 1),
            (FRAGMENT_BYTES, 1160, "message 0", "stream 0"),
        ),
        (
            [*(whole(1, stream=stream) for stream in range(STREAMS_MAX)), whole(1, number=1)],
            whole(1, stream=STREAMS_MAX),
            ("streams", STREAMS_MAX),
        ),
        (
            [whole(1, number=2 * n) for n in range(FINISHED_RANGES_MAX)],
            whole(1, number=2 * FINISHED_RANGES_MAX),
            (FINISHED_RANGES_MAX, "gaps", "stream 0"),
        ),
    ],
    ids=["length", "kind", "fragments", "streams", "gaps"],
)
def test_what_no_honest_sender_sends_is_a_violation(
    before: list[Data], wrong: Data, named: tuple[object, ...]
) -> None:
    reassembly = Reassembly(PLENTY)
    receive(reassembly, *before)

    with pytest.raises(ViolationError, match=naming(*named)) as violation:
        reassembly.receive(wrong)

    assert violation.value.code == CloseCode.VIOLATION


def test_declaring_more_than_the_credit_is_a_violation() -> None:
    charge = charge_of(100)
    reassembly = Reassembly(3 * charge - 1)
    receive(reassembly, whole(100), whole(100, number=1))

    limit = naming(3 * charge, "credit", 3 * charge - 1)
    with pytest.raises(ViolationError, match=limit) as violation:
        reassembly.receive(whole(100, number=2))

    assert violation.value.code == CloseCode.FLOW_CONTROL
    assert reassembly.declared == 2 * charge
