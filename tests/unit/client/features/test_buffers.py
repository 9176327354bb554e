"""`BufferSharing`: when what buffers hold is sent and averaged, and when it is not."""

from collections.abc import Mapping

import numpy as np
import pytest

from gradwire.errors import NonFiniteError
from gradwire.features.buffers import BufferSharing
from gradwire.replica.stats import Tally
from gradwire_protocol.messages.states.buffers import BufferLayout, BufferTensor, BufferValues
from gradwire_protocol.messages.states.records import Buffers
from support.wording import naming

LAYOUT = BufferLayout(
    (BufferTensor("var", (1,), "float"),), (BufferTensor("n", (), "torch.int64"),), 4
)


class Worker:
    """A worker whose module has one statistic and one count, and who hears what a test says."""

    def __init__(self, *, steps: int, rank: int = 1, observes: bool = False) -> None:
        self.layout = LAYOUT
        self.var, self.n = 8.0, 0
        self.buffers: Mapping[int, Buffers] = {}
        self.lost: str | None = None
        self.sent: list[Buffers] = []
        self.tally = Tally()
        self.part = BufferSharing(
            self,
            steps=steps,
            rank=rank,
            others=self,
            send=None if observes else self.sent.append,
            tally=self.tally,
        )

    def read(self) -> BufferValues:
        return BufferValues(np.array([self.var], np.float32), np.array([self.n]))

    def write(self, values: BufferValues) -> None:
        [self.var], [self.n] = values.floats.tolist(), values.integers.tolist()

    def hear(self, **of: tuple[float, int]) -> None:
        """Let others have sent these: r0=(1.0, 5) for rank 0."""
        self.buffers = {
            int(name[1:]): LAYOUT.pack_values(
                int(name[1:]), BufferValues(np.array([var], np.float32), np.array([n])), final=False
            )
            for name, (var, n) in of.items()
        }

    def step(self, times: int = 1, *, paused: bool = False) -> None:
        for _ in range(times):
            self.part.before_push()
            if not paused:
                self.part.after_step()

    @property
    def told(self) -> list[tuple[float, int, bool]]:
        """What it has sent: statistic, count, whether that was the last."""
        return [
            (np.frombuffer(each.floats, "<f4")[0], np.frombuffer(each.integers, "<i8")[0],
             each.final)
            for each in self.sent
        ]  # fmt: skip


def test_it_sends_and_averages_at_every_kth_step() -> None:
    worker = Worker(steps=3)
    worker.step(2)
    worker.hear(r0=(2.0, 5), r7=(2.0, 1))
    assert (worker.told, worker.var) == ([], 8.0)

    worker.step()

    assert worker.told == [(8.0, 0, False)]
    assert (worker.var, worker.n) == (4.0, 5)
    assert worker.tally.buffers_averaged == 1
    assert {each.rank for each in worker.sent} == {1}


def test_what_has_not_changed_is_not_sent_again() -> None:
    worker = Worker(steps=1)

    worker.step(5)
    worker.n = 1
    worker.step(5)

    assert worker.told == [(8.0, 0, False), (8.0, 1, False)]


def test_alone_nothing_is_averaged() -> None:
    worker = Worker(steps=1)

    worker.step(3)
    worker.part.before_finish()
    worker.part.after_finish()

    assert (worker.var, worker.tally.buffers_averaged) == (8.0, 0)


def test_with_0_it_is_done_at_the_end_only() -> None:
    worker = Worker(steps=0)
    worker.step(10)
    assert worker.sent == []

    worker.part.before_finish()
    worker.hear(r0=(2.0, 5))
    worker.part.after_finish()

    assert worker.told == [(8.0, 0, True)]
    assert (worker.var, worker.n) == (5.0, 5)


def test_at_the_end_it_is_the_mean_of_what_was_sent_whatever_the_module_has_by_then() -> None:
    worker = Worker(steps=1)
    worker.step()
    worker.hear(r0=(2.0, 5))

    worker.part.before_finish()
    worker.var = 1000.0
    worker.part.after_finish()

    assert worker.var == 5.0


def test_the_last_is_sent_once_and_nothing_after_it() -> None:
    worker = Worker(steps=1)
    worker.step()

    worker.part.before_finish()
    worker.var = 3.0
    worker.part.before_finish()
    worker.step()

    assert worker.told == [(8.0, 0, False), (8.0, 0, True)]


def test_while_it_is_paused_it_sends_and_takes_nothing_and_then_makes_up_for_it() -> None:
    worker = Worker(steps=2)
    worker.step()
    worker.hear(r0=(2.0, 5))

    worker.step(2, paused=True)
    assert (worker.told, worker.var) == ([(8.0, 0, False)], 8.0)
    worker.var = 4.0
    worker.step(paused=True)
    assert worker.var == 4.0
    worker.part.after_step()

    assert (worker.var, worker.tally.buffers_averaged) == (3.0, 1)


def test_while_the_connection_is_lost_nothing_is_averaged() -> None:
    worker = Worker(steps=2)
    worker.step()
    worker.hear(r0=(2.0, 5))
    worker.lost = "no answer"

    worker.step(5)
    assert (len(worker.sent), worker.var) == (1, 8.0)
    worker.lost = None
    worker.step()

    assert worker.var == 5.0


def test_who_comes_later_begins_with_the_mean_of_the_others() -> None:
    worker = Worker(steps=100)
    worker.hear(r0=(2.0, 5), r2=(4.0, 9))

    worker.step()

    assert (worker.var, worker.n) == (3.0, 9)
    worker.var = 8.0
    worker.step()
    assert worker.var == 8.0, "only once"


def test_an_observer_takes_the_mean_of_the_workers_and_sends_nothing() -> None:
    observer = Worker(steps=2, observes=True)
    observer.part.after_step()
    observer.hear(r0=(2.0, 5), r2=(4.0, 9))

    observer.part.after_step()
    assert (observer.var, observer.n) == (3.0, 9)
    observer.hear(r0=(6.0, 5))
    observer.part.after_finish()

    assert (observer.var, observer.sent) == (6.0, [])


def test_what_is_not_finite_is_named_and_not_sent() -> None:
    worker = Worker(steps=1)
    worker.var = float("nan")

    with pytest.raises(NonFiniteError, match=naming("buffer", "var[0]", "nan")):
        worker.part.before_push()
    with pytest.raises(NonFiniteError):
        worker.part.before_finish()

    assert worker.sent == []
    worker.var = 1.0
    worker.part.before_finish()
    assert worker.told == [(1.0, 0, True)]


def test_everyone_computes_the_same_in_the_order_of_ranks() -> None:
    """Floating point addition does not commute over three; so the order has to be one."""
    of = {0: (1e8, 0), 1: (1.0, 0), 2: (-1e8, 0), 3: (0.3, 0)}
    ends = []
    for rank in of:
        worker = Worker(steps=0, rank=rank)
        worker.var = of[rank][0]
        worker.part.before_finish()
        worker.hear(**{f"r{other}": of[other] for other in reversed(of) if other != rank})
        worker.part.after_finish()
        ends.append(worker.var)

    assert len(set(ends)) == 1
