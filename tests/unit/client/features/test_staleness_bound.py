"""When a bound that nobody asked for is in force, and which workers it leaves out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.features.staleness_bound import (
    FIRST_PATIENCE_SECONDS,
    FIRST_STEPS,
    LEAD_STEPS,
    PATIENCE_SECONDS_MIN,
    PATIENCE_STEPS,
    PATIENCE_STEPS_MIN,
    REPORT_SECONDS,
    SLOWER,
    SLOWER_STILL,
    AutomaticBound,
    StalenessBound,
)
from gradwire.optimizer.delays import LATE_STEPS, LATENESS_UPDATES, excess_steps
from gradwire.replica.waits import Wait
from gradwire_protocol.messages.admission import Peer
from support.participants import Rig

OTHERS = (0, 2)
EVEN = dict.fromkeys(OTHERS, 1_000)
ON_TIME, LATE = 3, 5
assert excess_steps(ON_TIME, 3) <= LATE_STEPS < excess_steps(LATE, 3)
TIMEOUT = 10.0


class Trainer(Rig):
    """A worker of rank 1, beside 0 and 2; it does not know yet whether updates come late.

    It has made its first steps, unless told otherwise.
    """

    def __init__(self, first_steps: int = FIRST_STEPS) -> None:
        super().__init__()
        self.membership.on_roster([Peer(rank, str(rank), False) for rank in range(3)])
        self.bound = AutomaticBound(self.participant, TIMEOUT)
        self.wait: Wait | None = None
        """What it waits for."""
        for _ in range(first_steps):
            self.step({0: 0, 2: 0})

    @property
    def is_in_force(self) -> bool:
        return self.bound.lags.bound is not None

    def be_stale(self, updates: int) -> None:
        """Let the last updates of others have been so stale."""
        for rank in OTHERS * LATENESS_UPDATES:
            self.participant.delays.note_update(rank, updates)

    def step(self, behind: dict[int, int], paces: dict[int, int] = EVEN) -> dict[int, int]:
        """Make a step when the others are heard to be so far behind; return who holds it."""
        outbox, clocks = self.participant.outbox, self.membership.clocks
        outbox.clock += 1
        clocks.hear({rank: outbox.clock - steps for rank, steps in behind.items()})
        clocks.paces.update(paces)
        self.bound.after_step()
        return self.look()

    def look(self) -> dict[int, int]:
        """Look whether the next step may begin; return who holds it."""
        self.wait = next(self.bound.wait(), None)
        return dict(self.bound.held_by)


def test_a_long_wait_is_told_while_it_lasts() -> None:
    reports: list[float] = []
    rig = Rig()
    tally, clocks = rig.participant.tally, rig.membership.clocks
    rig.membership.on_roster([Peer(rank, str(rank), False) for rank in range(3)])
    bound = StalenessBound(rig.participant, 0, TIMEOUT, lambda: reports.append(tally.wait_seconds))
    outbox = rig.participant.outbox
    clocks.hear({0: outbox.clock, 2: outbox.clock})
    assert next(bound.wait(), None) is None
    outbox.clock += 3
    clocks.hear({2: outbox.clock - 1})

    wait = bound.wait()
    for _ in range(3):
        rig.now = next(wait).deadline
    clocks.hear({0: outbox.clock, 2: outbox.clock})
    assert next(wait, None) is None

    assert reports[:3] == pytest.approx([REPORT_SECONDS * n for n in (1, 2, 3)])
    assert (tally.waited_for, tally.steps_waited) == (0, 1), "the slowest"
    assert tally.wait_seconds == pytest.approx(3 * REPORT_SECONDS)


def test_the_first_steps_are_made_in_lockstep_and_say_nothing_about_later_ones() -> None:
    trainer = Trainer(first_steps=1)
    trainer.be_stale(LATE)
    for _ in range(FIRST_STEPS - 2):
        assert trainer.step({0: 1, 2: 0}) == {0: 1}
        assert trainer.is_in_force

    for _ in range(2):
        assert trainer.step({0: 1, 2: 0}) == {}
        assert not trainer.is_in_force


@given(
    behind=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1),
    stale=st.integers(0, ON_TIME),
)
def test_where_nothing_is_late_nobody_is_waited_for(
    behind: list[tuple[int, int]], stale: int
) -> None:
    """However far another one is behind: it may have stood still."""
    trainer = Trainer()
    trainer.be_stale(stale)

    for one, other in behind:
        assert not trainer.step({0: one, 2: other})

    assert not trainer.is_in_force
    assert trainer.wait is None


@pytest.mark.parametrize(("behind", "begins"), [(LEAD_STEPS - 1, False), (LEAD_STEPS, True)])
def test_who_is_ahead_of_half_of_the_others_waits_before_lateness_is_known(
    behind: int, begins: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The first updates may be so late that there are too few to be measured."""
    caplog.set_level("INFO", "gradwire.session")
    trainer = Trainer()

    held = trainer.step({0: 0, 2: behind})

    assert trainer.is_in_force is begins
    assert held == ({2: behind} if begins else {})
    assert [f"{behind} steps ahead of half" in line for line in caplog.messages] == [True] * begins


def test_who_was_there_before_the_first_step_is_waited_for_with_little_patience(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = Trainer(first_steps=0)
    began = trainer.now

    assert trainer.step({}, paces={}) == {0: 1, 2: 1}
    trainer.now = began + FIRST_PATIENCE_SECONDS / 2
    trainer.membership.clocks.hear({0: trainer.participant.outbox.clock})
    assert trainer.look() == {2: 1}
    assert trainer.wait is not None
    assert trainer.wait.deadline == began + FIRST_PATIENCE_SECONDS
    trainer.now = trainer.wait.deadline
    assert trainer.look() == {}
    [line] = caplog.messages
    assert "rank 2 (2) is 1 steps behind" in line
    assert trainer.step({0: 0}) == {}


def test_who_joins_late_does_not_wait_until_a_slow_worker_has_made_all_steps_of_the_run() -> None:
    trainer = Trainer(first_steps=0)
    assert trainer.step({}, paces={}) == {0: 1, 2: 1}

    trainer.membership.clocks.hear({0: 5_000})
    assert trainer.look() == {2: 1}
    assert trainer.participant.outbox.clock == 5_000
    trainer.membership.clocks.hear({2: 2_500})
    assert trainer.look() == {}

    assert trainer.step({0: 0, 2: 2_501}) == {2: 1}


def test_who_has_not_been_heard_yet_is_not_behind() -> None:
    """It joins: our clock may have gone on for thousands of steps without it."""
    trainer = Trainer(first_steps=0)
    for _ in range(FIRST_STEPS - 1):
        trainer.step({})

    for _ in range(2 * LEAD_STEPS):
        assert not trainer.step({})

    assert not trainer.is_in_force


def test_once_updates_are_late_workers_go_in_lockstep(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gradwire.session")
    trainer = Trainer()
    trainer.step({0: 0, 2: 1})
    assert not trainer.is_in_force

    trainer.be_stale(LATE)
    held = trainer.step({0: 0, 2: 1})

    assert held == {2: 1}
    assert trainer.participant.tally.staleness_bound == 0
    assert trainer.wait is not None
    assert trainer.wait.deadline == trainer.now + trainer.bound.lags.timeout_seconds
    [line] = caplog.messages
    assert "staleness_bound='auto'" in line
    assert "1.2 steps late" in line


def test_who_is_much_slower_is_left_out_and_counts_again_when_it_is_not() -> None:
    trainer = Trainer()
    trainer.be_stale(LATE)
    slow, slower, fine = (
        EVEN | {0: round(1_000 * times)} for times in (SLOWER, SLOWER + 0.1, SLOWER_STILL)
    )
    assert trainer.step({0: 0, 2: 0}, slow) == {}
    assert trainer.step({0: 1, 2: 1}, slow) == {0: 1, 2: 1}

    assert trainer.step({0: 2, 2: 1}, slower) == {2: 1}
    assert trainer.step({0: 50, 2: 1}, slow) == {2: 1}  # not much slower, but it was
    assert trainer.step({0: 90, 2: 0}, fine) == {}  # what it is behind by now is forgiven
    assert trainer.step({0: 91, 2: 0}, fine) == {0: 1}


def test_who_makes_no_step_is_waited_for_as_long_as_some_steps_take() -> None:
    trainer = Trainer()
    patience = []
    for microseconds in (100, 50_000, 2_000_000, 10_000_000):
        trainer.step({0: 0, 2: 0}, dict.fromkeys(OTHERS, microseconds))
        patience.append(trainer.bound.lags.timeout_seconds)

    assert patience == [
        PATIENCE_SECONDS_MIN,
        PATIENCE_STEPS * 0.05,
        TIMEOUT,
        PATIENCE_STEPS_MIN * 10.0,
    ]
