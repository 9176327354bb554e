"""`Waits`: a thread waits for what another one notes, and plays procedures that wait."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from time import monotonic

import pytest

from gradwire.replica.waits import Procedure, Wait, until
from gradwire.threads.waits import Waits
from gradwire.worker.membership import Membership
from support.waiting import BRIEF, SOON, wait_until

ELEMENTS = 6
FOREVER = 3_600.0


def nothing() -> str:
    return "nothing"


@pytest.fixture
def membership() -> Membership:
    return Membership(ELEMENTS)


@pytest.fixture
def waits(membership: Membership) -> Waits:
    return Waits(membership)


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
    thread.join(SOON)


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
    thread.join(SOON)

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
    assert not waits.run(until(membership, lambda: False, monotonic() + BRIEF, monotonic, nothing))
    membership.on_closed(None)
    assert not waits.run(
        until(membership, lambda: False, monotonic() + FOREVER, monotonic, nothing)
    )
