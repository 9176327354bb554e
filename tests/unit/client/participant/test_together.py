"""Several procedures as one: each goes on when its own wait is over, or its membership."""

from collections.abc import Callable, Generator
from typing import Any

import pytest

from gradwire.participant.together import together
from gradwire.replica.waits import Procedure, Wait
from gradwire.worker.membership import Membership


class Script:
    """A procedure that waits until it has been let on so many times."""

    def __init__(self, waits: int, *, deadline: float = 100.0) -> None:
        self.membership = Membership(1)
        self.left = waits
        self.ended = False
        self._deadline = deadline

    def run(self) -> Procedure[str]:
        try:
            while (before := self.left) and not self.membership.closed:
                condition: Callable[[], bool] = lambda: self.left < before  # noqa: E731
                yield Wait(condition, self._deadline, lambda: f"the script with {self.left} left")
            return "closed" if self.membership.closed else "done"
        finally:
            self.ended = True


def begin(*scripts: Script) -> tuple[Generator[Wait, None, list[str]], Wait]:
    procedure = together([(script.membership, script.run()) for script in scripts])
    return procedure, next(procedure)


def result_of(procedure: Procedure[Any]) -> Any:
    with pytest.raises(StopIteration) as end:
        next(procedure)
    return end.value.value


def test_results_come_in_order_when_all_are_done() -> None:
    one, other = Script(1, deadline=30.0), Script(2, deadline=20.0)
    procedure, wait = begin(one, other)

    assert wait.deadline == 20.0
    assert wait.purpose() == "the script with 1 left"
    assert not wait.condition()
    other.left -= 1
    assert wait.condition(), "one is enough"
    wait = next(procedure)
    assert not wait.condition()
    one.left -= 1
    wait = next(procedure)
    assert wait.purpose() == "the script with 1 left"
    assert wait.deadline == 20.0
    other.left -= 1
    assert result_of(procedure) == ["done", "done"]


def test_what_need_not_wait_does_not() -> None:
    assert result_of(together([(s.membership, s.run()) for s in (Script(0), Script(0))])) == [
        "done",
        "done",
    ]
    assert result_of(together([])) == []


def test_a_membership_that_is_closed_ends_its_own_wait() -> None:
    one, other = Script(1), Script(1)
    procedure, wait = begin(one, other)

    other.membership.on_closed(None)
    assert wait.condition()
    wait = next(procedure)
    assert other.ended
    assert not wait.condition(), "the other one waits on"
    one.left -= 1
    assert result_of(procedure) == ["done", "closed"]


def test_an_error_of_one_ends_all() -> None:
    def fails() -> Procedure[str]:
        yield Wait(lambda: True, 1.0, lambda: "an error")
        raise ValueError("it has failed")

    script = Script(1)
    procedure = together([(script.membership, script.run()), (Membership(1), fails())])
    next(procedure)

    with pytest.raises(ValueError, match="it has failed"):
        next(procedure)

    assert script.ended
