"""A worker asks for the state of an optimizer and gives its own: against a scripted master."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradwire.optimizer import state as optimizer_state
from gradwire.optimizer.state import (
    PackedState,
    StateHeader,
    UnfitStateError,
    check_header,
    header_of,
)
from gradwire.worker.optimizer_state import (
    COPY_SECONDS,
    KEPT_NO_LONGER,
    OptimizerStateExchange,
    StateKeeper,
)
from gradwire.worker.state import Stage, WorkerState
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import REASON_CHARACTERS_MAX
from gradwire_protocol.messages.kinds import RANKS_MAX
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.states.records import StatePart, WantState
from support.peer import no_state, state_part
from support.wording import naming

LAYOUT = Layout((Tensor("weight", (10,)),))
PART_BYTES = 16
ASK, ENOUGH = WantState(0, 0), WantState(0, None)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_state, "STATE_PART_BYTES", PART_BYTES)


def packed(value: float = 1.0) -> PackedState:
    """Return a state of four parts: a header, and 48 bytes."""
    state = PackedState(header_of("Adam", [frozenset({"exp_avg"})], [frozenset({"step"})]), LAYOUT)
    state.slot(0, "exp_avg")[:] = value
    state.set_number(0, "step", value)
    return state


def parts_of(state: PackedState, number: int) -> list[StatePart]:
    return [state_part(number, i, state.parts, state.part(i)) for i in range(state.parts)]


class Side(StateKeeper):
    """A worker's exchange, what it says to the master, and what the keeper hears."""

    def __init__(self) -> None:
        self.said: list[WantState | StatePart] = []
        self.told: list[Any] = []
        link = SimpleNamespace(send=self.said.append, send_state_part=self.said.append)
        self.standing = SimpleNamespace(link=link, stage=Stage.LIVE)
        self.exchange = OptimizerStateExchange(cast("WorkerState", self.standing))
        self.exchange.set_keeper(self)

    def hear(self, *messages: WantState | StatePart) -> None:
        for message in messages:
            self.exchange.receive(message, 0.0)

    def unpacked(self, header: StateHeader) -> PackedState:
        check_header(header, LAYOUT)
        if header.optimizer != "Adam":
            raise UnfitStateError(f"it is of {header.optimizer}; ours is Adam")
        return PackedState(header, LAYOUT)

    def on_state_wanted(self) -> None:
        self.told.append("wanted")

    def on_state_not_wanted(self) -> None:
        self.told.append("not wanted")

    def on_state(self, state: PackedState | None, reason: str) -> None:
        shown = None if state is None else float(state.slot(0, "exp_avg")[-1])
        self.told.append((shown, reason))


# Asking.


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda parts: parts[1:], ("part 1", "part 0")),
        (lambda parts: [parts[0], parts[2]], ("part 2", "part 1")),
        (lambda parts: [parts[0], parts[0]], ("part 0", "part 1")),
        (
            lambda parts: [state_part(1, 0, 9, parts[0].body)],
            ("9 parts", 4),
        ),
        (lambda parts: [state_part(1, 0, 4, b"\xc1")], ("StateHeader",)),
        (
            lambda parts: [parts[0], state_part(1, 1, 4, parts[1].body[1:])],
            ("part 1", 15, 16),
        ),
        (
            lambda parts: [
                state_part(1, 0, 4, StateHeader("SGD", (), ("step",), b"\0", b"\1").pack())
            ],
            ("SGD", "Adam"),
        ),
        (
            lambda parts: [
                state_part(1, 0, 4, StateHeader("Adam", (), ("step",), b"\0\0", b"\1\1").pack())
            ],
            ("2 tensors", 1),
        ),
    ],
)
def test_what_does_not_fit_is_not_taken_and_nothing_more_is_wanted(
    spoil: Any, named: tuple[object, ...]
) -> None:
    side = Side()
    side.exchange.ask(0.0)

    side.hear(*spoil(parts_of(packed(), 1)))

    [(state, reason)] = side.told
    assert state is None
    assert reason == naming("another worker", *named)
    assert side.said == [ASK, ENOUGH]


# Giving.


def giving(*numbers: int) -> Side:
    """Return a worker that gives its state under some numbers."""
    side = Side()
    side.exchange.start_giving(0.0)
    side.hear(*(WantState(number, 0) for number in numbers))
    side.exchange.give(packed(5.0), 0.0)
    return side


def test_a_copy_that_is_not_wanted_for_long_is_forgotten() -> None:
    side = giving(1)

    side.exchange.handle_timer(COPY_SECONDS - 1)
    side.hear(WantState(1, 1))
    side.exchange.handle_timer(COPY_SECONDS)
    side.hear(WantState(1, 2))

    none = no_state(1, KEPT_NO_LONGER)
    assert side.said[-2:] == [none, none]
    assert side.exchange.next_timer() is None


def test_nobody_waits_any_more_when_the_copy_is_made() -> None:
    side = Side()
    side.exchange.start_giving(0.0)
    side.hear(WantState(1, 0), WantState(1, None))

    side.exchange.give(packed(), 0.0)

    assert side.told == ["wanted", "not wanted"]
    assert side.said == []
    assert side.exchange.next_timer() is None


def test_a_state_that_cannot_be_copied_is_refused_and_asked_for_again_by_the_next() -> None:
    side = Side()
    side.exchange.start_giving(0.0)
    side.hear(WantState(2, 0), WantState(1, 0))

    side.exchange.refuse("it keeps\n" + "x" * REASON_CHARACTERS_MAX, 0.0)
    side.hear(WantState(3, 0))

    said = ("it keeps " + "x" * REASON_CHARACTERS_MAX)[:REASON_CHARACTERS_MAX]
    assert side.said == [no_state(n, said) for n in (1, 2)]
    assert StatePart.parse(side.said[0].pack()) == side.said[0]
    assert side.told == ["wanted"] * 3


def test_who_has_made_the_last_step_gives_the_rest_of_what_it_is_giving() -> None:
    side = giving(1)

    side.exchange.stop_giving("it has made its last step", 0.0)
    side.hear(WantState(1, 1), WantState(2, 0))

    assert side.said[1:] == [
        parts_of(packed(5.0), 1)[1],
        no_state(2, "it has made its last step"),
    ]


def test_no_more_wait_than_there_can_be_workers() -> None:
    side = Side()
    side.exchange.start_giving(0.0)

    side.hear(*(WantState(number, 0) for number in range(1, RANKS_MAX + 2)))

    assert side.said == [no_state(RANKS_MAX + 1, naming("too many"))]


def test_a_part_that_there_is_not_is_nonsense() -> None:
    side = giving(1)

    with pytest.raises(InvalidMessageError, match=naming("part 4", 4)):
        side.hear(WantState(1, 4))
