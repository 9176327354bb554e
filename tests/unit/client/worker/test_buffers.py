"""`SharedBuffers`: what a worker knows of others' buffers is what the master has said."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from gradwire.worker.buffers import SharedBuffers
from gradwire.worker.membership import Membership
from gradwire_protocol.messages.buffers.layout import (
    BufferLayout,
    Buffers,
    BufferTensor,
    BufferValues,
)
from support.wording import naming

OWN_RANK = 9

LAYOUT = BufferLayout((BufferTensor("var", (1,), "float"),), (), 4)


class Side:
    """One worker's `SharedBuffers`, and what they tell."""

    def __init__(self, layout: BufferLayout | None = LAYOUT) -> None:
        self.told: list[dict[int, float]] = []
        self.shared = SharedBuffers(layout, cast("Membership", self))

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None:
        self.told.append({rank: value_of(each) for rank, each in buffers.items()})

    def on_buffers_received(self) -> None: ...

    def again(self) -> list[tuple[int, float]]:
        return [(each.rank, value_of(each)) for each in self.shared.to_resend(OWN_RANK)]


def buffers(rank: int, value: float, *, final: bool = False) -> Buffers:
    values = BufferValues(np.array([value], np.float32), np.zeros(0, np.int64))
    return LAYOUT.pack_values(rank, values, final=final)


def value_of(each: Buffers) -> float:
    return float(np.frombuffer(each.floats, "<f4")[0])


def test_what_is_of_no_use_is_counted_and_said_once_for_each_rank(
    caplog: pytest.LogCaptureFixture,
) -> None:
    side = Side()
    other = replace(buffers(1, 5), layout=b"another.")
    with caplog.at_level(logging.WARNING, "gradwire.buffers"):
        for each in (buffers(1, 1), other, other, buffers(2, np.nan)):
            side.shared.receive(each)

    assert side.told == [{1: 1}, {}, {}, {}], "what it had before is not its latest"
    assert side.shared.refused == 3
    assert [record.getMessage() for record in caplog.records] == [
        naming("buffers", "rank 1", "other ones"),
        naming("buffers", "rank 2", "finite"),
    ]


def test_those_of_the_last_worker_of_our_rank_count_until_ours_do_and_are_not_resent() -> None:
    side = Side()
    side.shared.receive(buffers(OWN_RANK, 5, final=True))
    side.shared.receive(buffers(0, 1, final=True))
    side.shared.start_over()
    assert side.again() == [(0, 1)]

    side.shared.receive(buffers(OWN_RANK, 5, final=True))
    side.shared.set_own(buffers(OWN_RANK, 6))

    assert side.told == [{9: 5}, {9: 5, 0: 1}, {}, {9: 5}, {}]
