"""`StateKeeper`: the optimizer of a simulated worker, with a state that says whose it is.

Every value of it is the same, and tells the worker and its step: so a state that is made of two is
none of either.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from gradwire.optimizer.state import PackedState, StateHeader, check_header, header_of
from gradwire.worker.exchanges import optimizer_state
from support.simulated_worker import SimulatedWorker

SLOTS = frozenset({"exp_avg", "exp_avg_sq"})
NUMBERS = frozenset({"step"})
STEP_SECONDS = 0.1
STEPS_MAX = 1_000


class CountedState(PackedState):
    """A state that knows how many of its parts have come, the header included."""

    parts_received = 1

    def set_part(self, number: int, body: bytes) -> None:
        super().set_part(number, body)
        self.parts_received += 1


class StateKeeper(optimizer_state.StateKeeper):
    """What gives and takes states for a worker that has not dialled yet.

    Parameters
    ----------
    worker : SimulatedWorker
    """

    def __init__(self, worker: SimulatedWorker) -> None:
        self.worker = worker
        worker.trains = slice(0, 20)  # what is sent beside it is small
        self.states = worker.worker.optimizer_states
        self.states.set_keeper(self)
        self.steps = 0
        self.wanted = False
        self.answered = False
        self.state: PackedState | None = None
        self.arriving: CountedState | None = None
        """The state that is asked for, from its first part on."""
        self.reason = ""
        self.mark = float(len(worker.run.workers))
        """Whose it is."""

    # What the session would do.

    def ask(self, give_up_after: float = 60.0) -> None:
        """Ask for a state, and go without it when that takes too long."""
        self.states.ask(self.worker.now)
        self.worker.run.network.turn(self.worker.host)
        self.worker.run.network.after(give_up_after, self._give_up)

    def step(self) -> None:
        """Make a step, and copy the state if somebody waits for it."""
        self.worker.step()
        self.steps += 1
        self.states.start_giving(self.worker.now)
        if self.wanted:
            self.wanted = False
            self.states.give(self.capture(), self.worker.now)
        self.worker.run.network.turn(self.worker.host)

    def capture(self) -> PackedState:
        """Return a copy of the state."""
        tensors = len(self.worker.run.layout.tensors)
        header = header_of("Adam", [SLOTS] * tensors, [NUMBERS] * tensors)
        packed = PackedState(header, self.worker.run.layout)
        for tensor in range(tensors):
            for name in SLOTS:
                packed.slot(tensor, name)[:] = self.mark * STEPS_MAX + self.steps
            packed.set_number(tensor, "step", self.steps)
        return packed

    def _give_up(self) -> None:
        if not self.answered and self.worker.host.alive:
            self.states.give_up(self.worker.now)
            self.worker.run.network.turn(self.worker.host)
            self.on_state(None, "none came in time")

    # What the worker calls.

    def unpacked(self, header: StateHeader) -> PackedState:
        check_header(header, self.worker.run.layout)
        self.arriving = CountedState(header, self.worker.run.layout)
        return self.arriving

    def on_state_wanted(self) -> None:
        self.wanted = True

    def on_state_not_wanted(self) -> None:
        self.wanted = False

    def on_state(self, state: PackedState | None, reason: str) -> None:
        assert not self.answered, "it is answered once"
        self.answered, self.state, self.reason = True, state, reason

    # What there is to see.

    def origin(self) -> float:
        """Return the mark of the worker whose state came, whole and of one moment."""
        assert self.state is not None, self.reason
        self.state.check_values()
        kept = self.state.tensor(0)
        [value] = {float(v) for name in SLOTS for v in np.unique(kept.slots[name])}
        mark, steps = divmod(value, STEPS_MAX)
        assert kept.numbers == {"step": steps}
        return mark

    @property
    def copies(self) -> int:
        """How many copies of its own state are kept."""
        return int(self.states.next_timer() is not None)  # when it forgets the copy

    @property
    def parts_received(self) -> int:
        """How many parts have come of the state that is asked for."""
        return 0 if self.arriving is None else self.arriving.parts_received


@contextmanager
def training(*keepers: StateKeeper) -> Iterator[None]:
    """Let workers make steps inside the block, as time goes on."""
    over = False

    def step(keeper: StateKeeper) -> None:
        if over or keeper.worker.is_gone or keeper.steps == STEPS_MAX - 1:
            return
        keeper.step()
        keeper.worker.run.network.after(STEP_SECONDS, lambda: step(keeper))

    for keeper in keepers:
        step(keeper)
    try:
        yield
    finally:
        over = True
