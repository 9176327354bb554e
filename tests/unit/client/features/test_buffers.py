"""`BufferSharing`: when what buffers hold is sent and averaged, and when it is not."""

from collections.abc import Mapping

import numpy as np
import pytest

from gradwire.errors import NonFiniteError
from gradwire.features.buffers import BufferSharing
from gradwire.replica.stats import Tally
from gradwire_protocol.messages.buffers.layout import (
    BufferLayout,
    Buffers,
    BufferTensor,
    BufferValues,
)
from support.wording import naming

LAYOUT = BufferLayout(
    (BufferTensor("var", (1,), "float"),), (BufferTensor("n", (), "torch.int64"),), 4
)


class Worker:
    """A worker whose module has one statistic and one count, and who hears what a test says."""

    def __init__(self, *, steps: int, rank: int = 1) -> None:
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
            send=self.sent.append,
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

    @property
    def told(self) -> list[tuple[float, int, bool]]:
        """What it has sent: statistic, count, whether that was the last."""
        return [
            (np.frombuffer(each.floats, "<f4")[0], np.frombuffer(each.integers, "<i8")[0],
             each.final)
            for each in self.sent
        ]  # fmt: skip


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


def test_buffers_that_come_before_the_founders_first_step_are_averaged_with_its_own() -> None:
    worker = Worker(steps=1, rank=0)
    worker.var = 6.0
    worker.part.begin(founds=True)

    worker.hear(r1=(2.0, 0))
    worker.part.before_push()
    worker.part.after_step()

    assert worker.var == 4.0
