"""What a worker says of its items does not contradict itself, whatever is granted, and when."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.worker.exchanges.work import WorkExchange
from gradwire.worker.membership import Answer, Membership
from gradwire.worker.state import WorkerState
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.work import FINISHED_MAX, Grant, Ledger, Plan, Work

PLAN = Plan("train", 1_000, 1, None, 60)


class Side:
    """A worker's exchange, what it has said, and what the session has heard."""

    def __init__(self) -> None:
        self.said: list[Work] = []
        self.membership = Membership(1)
        state: Any = SimpleNamespace(membership=self.membership, tell=self._tell)
        self.exchange = WorkExchange(cast("WorkerState", state))
        self.requests = 0

    def _tell(self, work: Work) -> None:
        work.check()
        self.said.append(work)

    def ask(self, sequence: int = 0) -> None:
        self.requests += 1
        self.exchange.ask(PLAN, self.requests, sequence, 0.0)

    def grant(self, number: int | None, ledger: Ledger, refused: str = "") -> None:
        self.exchange.receive(Grant(PLAN.name, ledger, number, refused))

    @property
    def answer(self) -> Answer | None:
        return self.membership.answers.get(PLAN.name)


def test_the_next_request_says_that_the_item_before_is_finished() -> None:
    side = Side()
    side.ask()
    side.grant(0, Ledger(1, (0,)))
    assert side.answer == Answer(1, 0, "")

    side.ask(sequence=7)

    assert side.said[-1] == Work(PLAN, Ledger(1, (0,)), None, {0: 7}, wants=True)
    side.grant(4, Ledger(5, (3, 4)))  # 0 is done
    assert list(side.exchange.to_resend()) == [Work(PLAN, Ledger(5, (3, 4)), 4)]


def test_an_item_that_comes_after_its_loop_has_ended_goes_back() -> None:
    side = Side()
    side.ask()
    side.exchange.give_back(PLAN.name, 0.0)
    said = len(side.said)

    side.grant(0, Ledger(1, (0,)))

    assert side.said[said:] == [Work(PLAN, Ledger(1, (0,)), None)]
    assert side.answer is None


def test_what_was_never_asked_for_or_is_done_is_no_grant() -> None:
    side = Side()
    with pytest.raises(InvalidMessageError, match="not asked for"):
        side.grant(0, Ledger(1, (0,)))
    side.ask()
    with pytest.raises(InvalidMessageError, match="is done"):
        side.grant(0, Ledger(1, ()))


def test_a_refusal_is_the_answer() -> None:
    side = Side()
    side.ask()

    side.grant(None, Ledger(), refused="it has 5 items")

    assert side.answer == Answer(1, None, "it has 5 items")


def test_who_has_finished_more_than_a_message_holds_forgets_the_oldest() -> None:
    side = Side()
    for number in range(FINISHED_MAX + 3):
        side.ask(number)
        side.grant(number, Ledger(number + 1, tuple(range(number + 1))))
    side.ask(1)

    finished = side.said[-1].finished
    assert len(finished) == FINISHED_MAX
    assert min(finished) == 3


@given(st.lists(st.tuples(st.sampled_from(["ask", "end", "grant", "over"]), st.integers(0, 3))))
def test_nothing_that_is_said_contradicts_itself(acts: list[tuple[str, int]]) -> None:
    """`Side` checks that. The master here grants what it likes, and has others finish the rest."""
    side, done = Side(), set[int]()
    granted = 0
    for act, choice in acts:
        if act == "ask":
            side.ask(choice)
        elif act == "end":
            side.exchange.give_back(PLAN.name, 0.0)
        elif side.requests:
            number = granted if act == "grant" else None
            granted += number is not None
            done |= {n for n in range(granted - 1) if n % 4 == choice}
            still_open = tuple(n for n in range(granted) if n not in done)
            side.grant(number, Ledger(granted, still_open))
    for work in side.exchange.to_resend():
        work.check()
