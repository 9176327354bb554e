"""What a relay passes on of a child, and what waits there."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradwire_protocol import Connection, MessageReceived, Priority, ShapedMessage
from gradwire_protocol.limits import charge_of
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.relays import CLOSED, MESSAGE, OPENED, Branch
from gradwire_server.relaying.child import Child, priority_of

BODY = bytes(1_000)
CHARGE = charge_of(len(BODY))


class Sides:
    """A child between its connection and a parent that keeps so many messages of it."""

    def __init__(self, messages: int) -> None:
        self.told: list[Branch] = []
        self.released = 0
        connection = SimpleNamespace(identity=None, release=self._release)
        parent = SimpleNamespace(send_branch=lambda branch, priority: self.told.append(branch))
        self.child = Child(
            cast("Connection", connection), 7, cast("Link", parent), messages * CHARGE
        )

    def _release(self, charge: int) -> None:
        self.released += charge

    def say(self, number: int) -> None:
        shaped = ShapedMessage.of(1, number, Kind.UPDATE, BODY, 1_200)
        self.child.pass_on(MessageReceived(shaped, CHARGE))

    @property
    def passed(self) -> list[int]:
        return [each.number for each in self.told if each.act == MESSAGE]


def test_all_that_is_heard_of_a_child_is_numbered() -> None:
    sides = Sides(10)
    sides.say(1)
    sides.say(2)
    sides.child.end(64, "left\n", by_peer=True)

    assert [(each.act, each.index) for each in sides.told] == [
        (OPENED, 0), (MESSAGE, 1), (MESSAGE, 2), (CLOSED, 3),
    ]  # fmt: skip
    assert {each.branch for each in sides.told} == {7}


def test_what_the_parent_has_no_room_for_waits_and_holds_the_childs_credit() -> None:
    sides = Sides(4)
    for number in range(1, 9):
        sides.say(number)

    assert sides.passed == [1, 2, 3, 4]
    assert sides.released == 4 * CHARGE

    sides.child.give_back(CHARGE)
    assert sides.passed == [1, 2, 3, 4, 5]
    sides.child.give_back(4 * CHARGE)
    assert sides.passed == list(range(1, 9))
    assert sides.released == 8 * CHARGE


def test_a_message_as_large_as_the_window_passes_though_a_quarter_is_not_given_back() -> None:
    sides = Sides(4)
    sides.say(1)
    large = ShapedMessage.of(1, 2, Kind.UPDATE, bytes(4 * len(BODY) + 10_000), 1_200)

    sides.child.pass_on(MessageReceived(large, 0))

    assert sides.passed == [1, 2]


def test_what_waits_is_passed_on_before_the_end_is_told() -> None:
    sides = Sides(1)
    for number in range(1, 4):
        sides.say(number)

    sides.child.end(1, "lost", by_peer=False)
    assert sides.passed == [1]
    assert not sides.child.is_told

    sides.child.give_back(CHARGE)
    sides.child.give_back(CHARGE)
    assert sides.passed == [1, 2, 3]
    assert sides.told[-1].act == CLOSED
    assert sides.child.is_told


def test_what_waits_is_dropped_where_the_parent_has_ended_the_connection() -> None:
    sides = Sides(1)
    sides.say(1)
    sides.say(2)

    sides.child.drop()
    sides.child.end(1, "expelled", by_peer=False)

    assert sides.passed == [1]
    assert sides.child.is_told


@pytest.mark.parametrize(
    ("kind", "priority"),
    [
        (Kind.UPDATE, Priority.UPDATE),
        (Kind.SNAPSHOT, Priority.SNAPSHOT),
        (Kind.LOGGED, Priority.LOGGED),
        (Kind.JOIN, Priority.CONTROL),
        (999, Priority.CONTROL),
    ],
)
def test_each_kind_keeps_its_priority(kind: Any, priority: Priority) -> None:
    assert priority_of(kind) is priority
