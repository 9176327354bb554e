"""`Waits`: a thread waits for what another one notes, and plays procedures that wait."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from time import monotonic

import numpy as np
import pytest

from gradwire.replica.waits import Procedure, Wait, until
from gradwire.threads.waits import Waits
from gradwire.worker.membership import Membership
from gradwire.worker.peer_sequences import Sum
from gradwire_codecs import Replica, encode
from gradwire_protocol.messages.admission import Peer
from gradwire_protocol.messages.updates import EncodedUpdate
from support.peer import welcome
from support.waiting import wait_until

ELEMENTS = 6
FOREVER = 3_600.0


def nothing() -> str:
    return "nothing"


WELCOME = welcome(1, roster=(Peer(0, "a", False), Peer(1, "b", False)))


@pytest.fixture
def membership() -> Membership:
    return Membership(ELEMENTS)


@pytest.fixture
def waits(membership: Membership) -> Waits:
    return Waits(membership)


def update(sequence: int = 1) -> EncodedUpdate:
    [body] = encode(np.ones(ELEMENTS, np.float32), Replica.zeros(ELEMENTS), threshold=1.0)
    return EncodedUpdate(sequence, 0, body)


@contextmanager
def waiting(waits: Waits, condition: Callable[[], bool]) -> Iterator[tuple[list[bool], list[bool]]]:
    """Wait on another thread from before the block to behind it; yield looks and answers."""
    asked: list[bool] = []
    answers: list[bool] = []

    def ask() -> bool:
        asked.append(condition())
        return asked[-1]

    thread = Thread(
        target=lambda: answers.append(waits.wait(Wait(ask, monotonic() + FOREVER, nothing)))
    )
    thread.start()
    wait_until(lambda: asked, "the first look at the condition")
    yield asked, answers
    thread.join(10.0)


def test_a_condition_that_holds_is_not_waited_for(waits: Waits) -> None:
    assert waits.wait(Wait(lambda: True, monotonic(), nothing))
    assert waits.wait(Wait(lambda: True, monotonic() - 1.0, nothing))


def test_a_condition_that_does_not_hold_is_waited_for_until_the_deadline(waits: Waits) -> None:
    assert not waits.wait(Wait(lambda: False, monotonic(), nothing))
    assert not waits.wait(Wait(lambda: False, monotonic() + 0.01, nothing))


@pytest.mark.parametrize(
    ("tell", "condition"),
    [
        (lambda m: m.on_welcome(WELCOME), lambda m: m.welcome is WELCOME and len(m.peers) == 2),
        (lambda m: m.on_live(memoryview(bytearray(b"S"))), lambda m: m.live and m.snapshot == b"S"),
        (lambda m: m.on_update(0, update()), lambda m: m.updates_received == 1),
        (
            lambda m: m.on_sum(Sum((update().body,), {0: 3}, 3)),
            lambda m: m.updates_received == 3,
        ),
        (lambda m: m.on_delivered(7), lambda m: (m.updates_delivered, m.bytes_delivered) == (1, 7)),
        (lambda m: m.on_roster([Peer(0, "a", True)]), lambda m: m.peers == [Peer(0, "a", True)]),
        (lambda m: m.on_finished({0: 3}), lambda m: m.finished == {0: 3}),
        (lambda m: m.on_closed(None), lambda m: m.closed),
    ],
    ids=["welcome", "live", "update", "sum", "delivered", "roster", "finished", "closed"],
)
def test_whatever_is_told_wakes_the_one_who_waits_for_it(
    membership: Membership,
    waits: Waits,
    tell: Callable[[Membership], None],
    condition: Callable[[Membership], bool],
) -> None:
    with waiting(waits, lambda: condition(membership)) as (asked, answers):
        tell(membership)

    assert asked[0] is False
    assert answers == [True]


def test_a_membership_that_is_closed_is_not_waited_for(
    membership: Membership, waits: Waits
) -> None:
    membership.on_closed(None)

    assert not waits.wait(Wait(lambda: False, monotonic() + FOREVER, nothing))
    assert waits.wait(Wait(lambda: True, monotonic() + FOREVER, nothing))


def test_who_waits_when_it_is_closed_waits_no_longer(membership: Membership, waits: Waits) -> None:
    with waiting(waits, lambda: False) as (_, answers):
        membership.on_closed(None)

    assert answers == [False]


def test_a_procedure_is_played_to_its_end_and_waits_where_it_yields(
    membership: Membership, waits: Waits
) -> None:
    began: list[bool] = []

    def procedure() -> Procedure[str]:
        began.append(True)
        yield Wait(lambda: membership.updates_delivered >= 1, monotonic() + FOREVER, nothing)
        is_there = yield from until(
            membership,
            lambda: membership.updates_delivered >= 2,
            monotonic() + FOREVER,
            monotonic,
            nothing,
        )
        return f"delivered: {is_there}"

    answers: list[str] = []
    thread = Thread(target=lambda: answers.append(waits.run(procedure())))
    thread.start()
    wait_until(lambda: began, "the first look at the condition")
    for _ in range(2):
        membership.on_delivered(1)
    thread.join(10.0)

    assert answers == ["delivered: True"]


def test_a_procedure_that_raises_while_it_waits_in_vain_raises_to_its_caller(waits: Waits) -> None:
    def procedure() -> Procedure[None]:
        yield Wait(lambda: False, monotonic(), nothing)
        raise ValueError("in vain")

    with pytest.raises(ValueError, match="in vain"):
        waits.run(procedure())


def test_until_says_at_its_deadline_that_the_condition_does_not_hold(
    membership: Membership, waits: Waits
) -> None:
    assert not waits.run(until(membership, lambda: False, monotonic() + 0.01, monotonic, nothing))
    membership.on_closed(None)
    assert not waits.run(
        until(membership, lambda: False, monotonic() + FOREVER, monotonic, nothing)
    )
