"""Incoming messages: delivered once, whatever comes in whatever order, and memory stays bounded."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, ViolationError
from gradwire_protocol.frames import Data
from gradwire_protocol.incoming import IncomingMessage, Reassembly
from gradwire_protocol.limits import (
    FINISHED_RANGES_MAX,
    FRAGMENT_BYTES_MIN,
    MESSAGE_OVERHEAD_BYTES,
    STREAMS_MAX,
    WINDOW_BYTES,
)

FRAGMENT_BYTES = FRAGMENT_BYTES_MIN


def fragment(
    payload: bytes,
    *,
    offset: int = 0,
    total: int | None = None,
    stream: int = 0,
    number: int = 0,
    kind: int = 1,
) -> Data:
    """Return a fragment: a whole message, unless `offset` and `total` say otherwise."""
    whole = offset + len(payload) if total is None else total
    return Data(stream, number, kind, offset, whole, memoryview(payload))


def fragments(payload: bytes, *, stream: int = 0, number: int = 0) -> list[Data]:
    """Return a message in fragments of the least size."""
    return [
        fragment(
            payload[at : at + FRAGMENT_BYTES],
            offset=at,
            total=len(payload),
            stream=stream,
            number=number,
        )
        for at in range(0, len(payload), FRAGMENT_BYTES)
    ]


def receive(reassembly: Reassembly, *datas: Data) -> list[IncomingMessage]:
    """Receive fragments; return the messages that they completed."""
    return [message for data in datas if (message := reassembly.receive(data)) is not None]


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
    shuffle=st.randoms(use_true_random=False),
)
def test_messages_are_delivered_once_whatever_the_order_and_the_duplicates(
    sizes: list[int], seed: int, shuffle: Random
) -> None:
    """Receive every fragment of some messages twice, in any order."""
    payloads = [Random(seed + i).randbytes(size) for i, size in enumerate(sizes)]
    datas = [d for i, p in enumerate(payloads) for d in fragments(p, stream=i % 2, number=i)] * 2
    shuffle.shuffle(datas)
    reassembly = Reassembly(WINDOW_BYTES)

    messages = receive(reassembly, *datas)

    assert sorted(bytes(m.buffer) for m in messages) == sorted(payloads)
    assert reassembly.declared == sum(sizes) + len(sizes) * MESSAGE_OVERHEAD_BYTES


def test_fragments_may_overlap() -> None:
    payload = Random(1).randbytes(2 * FRAGMENT_BYTES)
    reassembly = Reassembly(WINDOW_BYTES)

    messages = receive(
        reassembly,
        fragment(payload[: FRAGMENT_BYTES + 100], total=len(payload)),
        fragment(payload[FRAGMENT_BYTES - 100 :], offset=FRAGMENT_BYTES - 100),
    )

    assert [bytes(m.buffer) for m in messages] == [payload]


def test_numbers_of_one_stream_are_not_those_of_another() -> None:
    reassembly = Reassembly(WINDOW_BYTES)

    messages = receive(reassembly, *(fragment(b"x", stream=s, number=5) for s in (1, 2, 2, 1)))

    assert len(messages) == 2


# Flow control.


def test_a_message_is_charged_with_its_length_and_its_bookkeeping() -> None:
    reassembly = Reassembly(WINDOW_BYTES)

    [message] = receive(reassembly, fragment(bytes(100)))

    assert message.charge == 100 + MESSAGE_OVERHEAD_BYTES
    assert reassembly.bytes_held == message.charge


def test_the_first_fragment_declares_the_whole_message() -> None:
    reassembly = Reassembly(WINDOW_BYTES)

    receive(reassembly, fragment(bytes(FRAGMENT_BYTES), total=10_000))
    receive(reassembly, fragment(bytes(FRAGMENT_BYTES), offset=FRAGMENT_BYTES, total=10_000))

    assert reassembly.declared == 10_000 + MESSAGE_OVERHEAD_BYTES


def test_declaring_more_than_the_credit_is_a_violation() -> None:
    charge = 100 + MESSAGE_OVERHEAD_BYTES
    reassembly = Reassembly(3 * charge - 1)
    receive(reassembly, fragment(bytes(100), number=0), fragment(bytes(100), number=1))

    with pytest.raises(
        ViolationError,
        match=f"{3 * charge} message bytes declared; the credit is {3 * charge - 1}",
    ) as violation:
        reassembly.receive(fragment(bytes(100), number=2))

    assert violation.value.code == CloseCode.FLOW_CONTROL
    assert reassembly.declared == 2 * charge


def test_releasing_a_message_gives_its_credit_back() -> None:
    charge = 100 + MESSAGE_OVERHEAD_BYTES
    reassembly = Reassembly(charge)

    for number in range(10):
        [message] = receive(reassembly, fragment(bytes(100), number=number))
        assert reassembly.bytes_held == charge
        reassembly.release(message.charge)
        assert reassembly.bytes_held == 0
        assert reassembly.credit == (number + 2) * charge


def test_a_duplicate_of_a_finished_message_costs_nothing() -> None:
    reassembly = Reassembly(WINDOW_BYTES)
    receive(reassembly, fragment(b"x"))
    declared = reassembly.declared

    assert receive(reassembly, fragment(b"x"), fragment(bytes(1000))) == []
    assert reassembly.declared == declared


def test_credit_is_announced_when_the_peer_has_used_up_half_its_window() -> None:
    assert WINDOW_BYTES == 16 * 2**20
    reassembly = Reassembly(WINDOW_BYTES)

    due = []
    for number in range(9):
        [message] = receive(reassembly, fragment(bytes(2**20), number=number))
        reassembly.release(message.charge)
        due.append(reassembly.announcement_due)

    assert due == [False] * 7 + [True] * 2


def test_without_a_release_there_is_no_credit_to_announce() -> None:
    charge = 100 + MESSAGE_OVERHEAD_BYTES
    reassembly = Reassembly(2 * charge)

    receive(reassembly, fragment(bytes(100), number=0), fragment(bytes(100), number=1))

    assert not reassembly.announcement_due


# Violations.


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (
            fragment(bytes(852), offset=FRAGMENT_BYTES, total=2001),
            "message 0 of stream 0 has changed from 2000 bytes of kind 1 to 2001 of 1",
        ),
        (
            fragment(bytes(852), offset=FRAGMENT_BYTES, kind=2),
            "message 0 of stream 0 has changed from 2000 bytes of kind 1 to 2000 of 2",
        ),
        (
            fragment(bytes(FRAGMENT_BYTES - 1), offset=1, total=2000),
            f"fragment of {FRAGMENT_BYTES - 1} bytes in the middle of a message; "
            f"the least is {FRAGMENT_BYTES}",
        ),
    ],
)
def test_a_fragment_that_does_not_fit_the_others_is_a_violation(second: Data, says: str) -> None:
    reassembly = Reassembly(WINDOW_BYTES)
    receive(reassembly, fragment(bytes(FRAGMENT_BYTES), total=2000))

    with pytest.raises(ViolationError, match=says) as violation:
        reassembly.receive(second)

    assert violation.value.code == CloseCode.VIOLATION


def test_more_streams_than_the_limit_are_a_violation() -> None:
    reassembly = Reassembly(WINDOW_BYTES)
    receive(reassembly, *(fragment(b"x", stream=stream) for stream in range(STREAMS_MAX)))
    receive(reassembly, fragment(b"x", stream=0, number=1))

    with pytest.raises(ViolationError, match=f"more than {STREAMS_MAX} streams") as violation:
        reassembly.receive(fragment(b"x", stream=STREAMS_MAX))

    assert violation.value.code == CloseCode.VIOLATION


def test_more_gaps_in_a_stream_than_an_honest_sender_leaves_are_a_violation() -> None:
    reassembly = Reassembly(WINDOW_BYTES)
    receive(reassembly, *(fragment(b"x", number=2 * n) for n in range(FINISHED_RANGES_MAX)))

    with pytest.raises(
        ViolationError, match=f"more than {FINISHED_RANGES_MAX} gaps among the messages of stream 0"
    ) as violation:
        reassembly.receive(fragment(b"x", number=2 * FINISHED_RANGES_MAX))

    assert violation.value.code == CloseCode.VIOLATION
