"""How far a worker may be ahead, and that nobody waits for ever."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.features.clock_lags import ClockLags
from gradwire.worker.membership import Clocks
from support.tiers import examples

TIMEOUT = 10.0


@dataclass
class Trainer:
    """A worker of a model of a run: its clock, its lead, and what is on its way to it."""

    rank: int
    lead: ClockLags
    clock: int = 1
    clocks: Clocks = field(default_factory=Clocks)
    coming: list[tuple[int, int]] = field(default_factory=list)
    alive: bool = True


class Model:
    """Workers with a bound, and messages that take as long as it pleases."""

    def __init__(self, n: int, bound: int) -> None:
        self.bound = bound
        self.now = 0.0
        self.trainers = [Trainer(rank, ClockLags(bound, TIMEOUT)) for rank in range(n)]
        for trainer in self.trainers:
            self.tell(trainer)

    @property
    def alive(self) -> list[Trainer]:
        return [trainer for trainer in self.trainers if trainer.alive]

    def tell(self, trainer: Trainer) -> None:
        for other in self.trainers:
            if other is not trainer:
                other.coming.append((trainer.rank, trainer.clock))

    def deliver(self, trainer: Trainer, n: int) -> None:
        for rank, clock in trainer.coming[:n]:
            trainer.clocks.hear({rank: clock})
        del trainer.coming[:n]

    def held_by(self, trainer: Trainer) -> dict[int, int]:
        """Return who holds a worker up; the dead stay in the roster, for nobody has noticed."""
        ranks = {other.rank for other in self.trainers} - {trainer.rank}
        return trainer.lead.look(trainer.clock, trainer.clocks.latest, ranks, self.now)

    def step(self, trainer: Trainer) -> bool:
        if self.held_by(trainer):
            return False
        trainer.clock += 1
        self.tell(trainer)
        return True

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for trainer in self.alive:
            self.held_by(trainer)
            trainer.lead.set_late_aside(self.now)


def train_on(model: Model, goals: dict[int, int]) -> int:
    """Let all who live train as far as they should; return how often nobody could."""
    stood_still = 0
    while any(trainer.clock < goals[trainer.rank] for trainer in model.alive):
        stepped = []
        for trainer in model.alive:
            model.deliver(trainer, len(trainer.coming))
            stepped.append(model.step(trainer))
        if not any(stepped):
            stood_still += 1
            model.pass_time(TIMEOUT)
        assert stood_still <= len(model.trainers)
    return stood_still


ACTIONS = st.lists(
    st.tuples(st.sampled_from("ssssddddkt"), st.integers(0, 4), st.integers(1, 5)), max_size=120
)


@given(n=st.integers(2, 5), bound=st.integers(0, 4), actions=ACTIONS)
def test_nobody_waits_in_a_circle_whatever_is_late_or_dies(
    n: int, bound: int, actions: list[tuple[str, int, int]]
) -> None:
    model = Model(n, bound)
    for action, which, amount in actions:
        trainer = model.trainers[which % n]
        if action == "k" and len(model.alive) > 1:
            trainer.alive = False
        elif action == "t":
            model.pass_time(2.0 * amount)
        elif action == "d":
            model.deliver(trainer, amount)
        elif trainer.alive:
            model.step(trainer)

    for trainer in model.alive:
        model.deliver(trainer, len(trainer.coming))
    slowest = min(model.trainers, key=lambda trainer: trainer.clock)
    assert not model.held_by(slowest)
    for trainer in model.alive:
        for rank in model.held_by(trainer):
            assert model.trainers[rank].clock < trainer.clock
    goals = {trainer.rank: trainer.clock + 5 * (bound + 1) for trainer in model.alive}
    assert train_on(model, goals) <= len(model.trainers) - len(model.alive)


@settings(max_examples=examples(50))
@given(
    n=st.integers(2, 5),
    bound=st.integers(0, 4),
    actions=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=200),
)
def test_nobody_is_more_than_a_step_beyond_the_bound_ahead_of_anybody(
    n: int, bound: int, actions: list[tuple[int, int]]
) -> None:
    """As long as nobody is late: what is on its way only makes others look slower than they are."""
    model = Model(n, bound)
    for trainer in model.trainers:
        model.deliver(trainer, n - 1)  # all have begun
    for which, amount in actions:
        trainer = model.trainers[which % n]
        model.deliver(trainer, amount)
        model.step(trainer)

        clocks = [trainer.clock for trainer in model.trainers]
        assert max(clocks) - min(clocks) <= bound + 1


def test_another_one_with_its_rank_counts_from_its_first_update_on() -> None:
    lead = ClockLags(1, TIMEOUT)
    lead.look(9, {1: 9}, {1}, 0.0)
    lead.look(9, {1: 9}, set(), 0.0)

    assert lead.look(50, {1: 9}, {1}, 0.0) == {}
    assert lead.look(50, {1: 48}, {1}, 0.0) == {}
    assert lead.look(51, {1: 48}, {1}, 0.0) == {1: 2}
    # Even where nobody has noticed that the one before was gone: no clock goes back.
    assert lead.look(51, {1: 3}, {1}, 0.0) == {}
    assert lead.look(52, {1: 3}, {1}, 0.0) == {1: 2}


def test_who_makes_no_step_is_waited_for_once_and_then_not_until_it_makes_one() -> None:
    lead = ClockLags(1, TIMEOUT)
    lead.look(1, {1: 1, 2: 1}, {1, 2}, 0.0)
    assert lead.look(3, {1: 1, 2: 3}, {1, 2}, 100.0) == {1: 2}
    assert lead.deadline == 100.0 + TIMEOUT

    assert lead.set_late_aside(100.0 + TIMEOUT - 0.1) == []
    assert lead.set_late_aside(100.0 + TIMEOUT) == [1]
    assert lead.look(50, {1: 1, 2: 50}, {1, 2}, 200.0) == {}
    # It is 48 steps behind, and is not waited for to make them up; but for new ones it is.
    assert lead.look(50, {1: 2, 2: 50}, {1, 2}, 200.0) == {}
    assert lead.look(51, {1: 2, 2: 51}, {1, 2}, 200.0) == {1: 2}


def test_after_a_lost_connection_all_count_anew() -> None:
    lead = ClockLags(1, TIMEOUT)
    lead.look(1, {1: 1, 2: 1}, {1, 2}, 0.0)
    lead.set_all_aside()

    assert lead.look(50, {1: 1, 2: 1}, {1, 2}, 0.0) == {}
    assert lead.look(50, {1: 30, 2: 1}, {1, 2}, 0.0) == {}
    assert lead.look(51, {1: 30, 2: 1}, {1, 2}, 0.0) == {1: 2}
