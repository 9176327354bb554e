"""When a bound that nobody asked for is in force, and which workers it leaves out."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.features.automatic_lags import (
    FIRST_PATIENCE_SECONDS,
    FIRST_STEPS,
    LATE_STEPS,
    LEAD_STEPS,
    PATIENCE_SECONDS_MIN,
    PATIENCE_STEPS,
    PATIENCE_STEPS_MIN,
    SLOWER,
    SLOWER_STILL,
    AutomaticLags,
)

OTHERS = {1, 2}
EVEN = {0: 1_000, 1: 1_000, 2: 1_000}
TIMEOUT = 10.0


class Rig:
    """A worker of rank 0 whose updates of others come as late as is said.

    It has made its first steps, unless told otherwise.
    """

    def __init__(self, first_steps: int = FIRST_STEPS) -> None:
        self.late: float | None = 0.0
        self.asked: list[Collection[int]] = []
        self.forgotten = 0
        self.lags = AutomaticLags(self._lateness, self._forget, TIMEOUT)
        self.clock = 100
        for _ in range(first_steps):
            self.step({1: 0, 2: 0})

    def step(
        self, behind: dict[int, int], paces: dict[int, int] | None = None, now: float = 0.0
    ) -> dict[int, int]:
        """Make a step when the others are heard to be so far behind; return who holds it."""
        self.clock += 1
        clocks = {rank: self.clock - steps for rank, steps in behind.items()}
        self.lags.note_step(self.clock, clocks, OTHERS, EVEN if paces is None else paces)
        return dict(self.lags.look(self.clock, clocks, OTHERS, now))

    def _lateness(self, ranks: Collection[int]) -> float | None:
        self.asked.append(ranks)
        return self.late

    def _forget(self) -> None:
        self.forgotten += 1


def test_the_first_steps_are_made_in_lockstep_and_say_nothing_about_later_ones() -> None:
    rig = Rig(first_steps=0)
    for _ in range(FIRST_STEPS - 1):
        rig.step({1: 0, 2: 0})
        assert rig.lags.is_in_force
        assert rig.lags.look(rig.clock + 1, {1: rig.clock, 2: rig.clock + 1}, OTHERS, 0.0) == {1: 1}
    assert (rig.asked, rig.forgotten) == ([], 0)

    assert rig.step({1: 1, 2: 0}) == {}

    assert not rig.lags.is_in_force
    assert rig.forgotten == 1


@given(
    behind=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1),
    late=st.floats(0.0, LATE_STEPS),
)
def test_where_nothing_is_late_nobody_is_waited_for(
    behind: list[tuple[int, int]], late: float
) -> None:
    """However far another one is behind: it may have stood still."""
    rig = Rig()
    rig.late = late

    for one, other in behind:
        assert not rig.step({1: one, 2: other})

    assert not rig.lags.is_in_force
    assert rig.lags.deadline is None


@pytest.mark.parametrize(("behind", "begins"), [(LEAD_STEPS - 1, False), (LEAD_STEPS, True)])
def test_who_is_ahead_of_half_of_the_others_waits_before_lateness_is_known(
    behind: int, begins: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The first updates may be so late that there are too few to be measured."""
    caplog.set_level("INFO", "gradwire.session")
    rig = Rig()
    rig.late = None

    held = rig.step({1: 0, 2: behind})

    assert rig.lags.is_in_force is begins
    assert held == ({2: behind} if begins else {})
    assert [f"{behind} steps ahead of half" in line for line in caplog.messages] == [True] * begins


def test_who_was_there_before_the_first_step_is_waited_for_with_little_patience() -> None:
    rig = Rig(first_steps=0)
    rig.clock += 1
    rig.lags.note_step(rig.clock, {}, OTHERS, {})

    assert rig.lags.look(rig.clock, {}, OTHERS, 5.0) == {1: 1, 2: 1}
    assert rig.lags.deadline == 5.0 + FIRST_PATIENCE_SECONDS
    assert rig.lags.look(rig.clock, {1: rig.clock, 2: rig.clock - 1}, OTHERS, 5.5) == {2: 1}
    assert rig.lags.set_late_aside(5.0 + FIRST_PATIENCE_SECONDS) == [2]
    assert rig.lags.look(rig.clock + 1, {1: rig.clock + 1}, OTHERS, 7.0) == {}


def test_who_has_not_been_heard_yet_is_not_behind() -> None:
    """It joins: our clock may have gone on for thousands of steps without it."""
    rig = Rig()
    rig.late = None
    for _ in range(2 * LEAD_STEPS):
        assert not rig.step({})

    assert not rig.lags.is_in_force


def test_once_updates_are_late_workers_go_in_lockstep(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gradwire.session")
    rig = Rig()
    rig.step({1: 0, 2: 1})

    rig.late = 1.25
    held = rig.step({1: 0, 2: 1})

    assert held == {2: 1}
    assert rig.lags.is_in_force
    assert rig.lags.bound == 0
    assert rig.lags.deadline == rig.lags.timeout_seconds
    [line] = caplog.messages
    assert "staleness_bound='auto'" in line
    assert "1.2 steps late" in line


def test_who_is_much_slower_is_left_out_and_counts_again_when_it_is_not() -> None:
    rig = Rig()
    rig.late = 1.0
    slow, slower, fine = (
        EVEN | {1: round(1_000 * times)} for times in (SLOWER, SLOWER + 0.1, SLOWER_STILL)
    )
    assert rig.step({1: 0, 2: 0}, slow) == {}
    assert rig.step({1: 1, 2: 1}, slow) == {1: 1, 2: 1}

    assert rig.step({1: 2, 2: 1}, slower) == {2: 1}
    assert rig.step({1: 50, 2: 1}, slow) == {2: 1}  # not much slower, but it was
    assert rig.step({1: 90, 2: 0}, fine) == {}  # what it is behind by now is forgiven
    assert rig.step({1: 91, 2: 0}, fine) == {1: 1}


def test_who_makes_no_step_is_waited_for_as_long_as_some_steps_take() -> None:
    rig = Rig()
    patience = []
    for microseconds in (100, 50_000, 2_000_000, 10_000_000):
        rig.step({1: 0, 2: 0}, dict.fromkeys(EVEN, microseconds))
        patience.append(rig.lags.timeout_seconds)

    assert patience == [
        PATIENCE_SECONDS_MIN,
        PATIENCE_STEPS * 0.05,
        TIMEOUT,
        PATIENCE_STEPS_MIN * 10.0,
    ]


def test_who_is_set_aside_counts_again_from_its_next_step_on() -> None:
    rig = Rig()
    rig.late = 1.0
    rig.step({1: 0, 2: 0})
    assert rig.step({1: 1, 2: 0}, now=1.0) == {1: 1}

    assert rig.lags.set_late_aside(1.0 + PATIENCE_SECONDS_MIN) == [1]

    assert rig.step({1: 2, 2: 0}, now=2.0) == {}
    assert rig.step({1: 1, 2: 0}, now=3.0) == {}  # it has made two, and is forgiven what is left
    assert rig.step({1: 2, 2: 0}, now=4.0) == {1: 1}
