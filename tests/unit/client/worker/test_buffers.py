"""`SharedBuffers`: what a worker knows of others' buffers is what the master has said."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from gradwire.worker.buffers import SharedBuffers
from gradwire.worker.membership import Membership
from gradwire_protocol.messages.states.buffers import BufferLayout, BufferTensor, BufferValues
from gradwire_protocol.messages.states.records import Buffers
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


def test_the_latest_of_each_rank_counts_until_none_does() -> None:
    side = Side()

    unknown = Buffers.withdrawal(7)
    for each in (unknown, buffers(0, 1), buffers(2, 5), buffers(0, 2), Buffers.withdrawal(2)):
        side.shared.receive(each)

    assert side.told == [{}, {0: 1}, {0: 1, 2: 5}, {0: 2, 2: 5}, {0: 2}]


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


def test_who_has_nothing_to_average_takes_nothing() -> None:
    side = Side(None)

    side.shared.receive(buffers(1, 1, final=True))
    side.shared.start_over()

    assert (side.told, side.again(), side.shared.refused) == ([], [], 0)


def test_a_master_that_lets_us_in_again_says_everything_anew() -> None:
    side = Side()
    side.shared.set_own(buffers(3, 7))
    side.shared.receive(buffers(0, 1))

    side.shared.start_over()

    assert side.told == [{0: 1}, {}]
    assert side.again() == [(3, 7)]


def test_what_others_have_sent_last_is_told_to_a_master_that_may_have_lost_it() -> None:
    side = Side()
    side.shared.set_own(buffers(3, 7, final=True))
    for each in (buffers(0, 1, final=True), buffers(1, 2), buffers(2, 3, final=True)):
        side.shared.receive(each)

    side.shared.start_over()
    assert side.again() == [(3, 7), (0, 1), (2, 3)]
    side.shared.start_over()  # lost again before it had said anything
    assert side.again() == [(3, 7), (0, 1), (2, 3)]

    side.shared.receive(buffers(0, 4))
    side.shared.receive(Buffers.withdrawal(2))
    assert side.again() == [(3, 7)], "this one has spoken of them"
    assert side.told[-1] == {0: 4}


def test_when_the_run_is_finished_what_is_there_stays() -> None:
    side = Side()
    side.shared.receive(buffers(0, 1, final=True))
    side.shared.finish()

    side.shared.start_over()
    side.shared.receive(buffers(1, 2, final=True))

    assert side.told == [{0: 1}]
    assert side.again() == [(0, 1)], "it may still be of use to others"


def test_those_of_the_last_worker_of_our_rank_count_until_ours_do_and_are_not_resent() -> None:
    side = Side()
    side.shared.receive(buffers(OWN_RANK, 5, final=True))
    side.shared.receive(buffers(0, 1, final=True))
    side.shared.start_over()
    assert side.again() == [(0, 1)]

    side.shared.receive(buffers(OWN_RANK, 5, final=True))
    side.shared.set_own(buffers(OWN_RANK, 6))

    assert side.told == [{9: 5}, {9: 5, 0: 1}, {}, {9: 5}, {}]
