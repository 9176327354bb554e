"""Benchmark `time-to-loss`: what is kept and compared, and its reference of SparseLoCo."""

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.defaults.member import DDP
from benchmarks.rivals.sparse_loco import LEVELS, SENT, Chunks, Sent, mean_of
from benchmarks.time_to_loss.cells import Cell, Cells, Outcome
from benchmarks.time_to_loss.comparison import (
    FULL,
    QUICK,
    Found,
    at_best_rate,
    figures_of,
    with_options,
)
from benchmarks.time_to_loss.member import Watch
from benchmarks.time_to_loss.methods import EVERY, METHODS, MODES, SPARSE_LOCO
from benchmarks.time_to_loss.training import outcome_of
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.modes.mode import parse_mode

CELL = Cell(task="lstm", method=DDP, link=100.0, rate=0.01, seconds=6.0, step_seconds=0.1,
            workers=4, seed=0, keys=True)  # fmt: skip


def outcome(loss: float) -> Outcome:
    return Outcome(seconds=[3.0, 6.0], losses=[2.0, loss], megabytes=[1.0, 2.0], steps=60, late=0)


def memory_of(shape: tuple[int, ...], seed: int) -> Float32Array:
    elements = int(np.prod(shape))
    return np.random.default_rng(seed).standard_normal(elements).astype(np.float32)


# What is measured.


def test_modes_are_text_that_gradwire_reads_and_the_full_plan_has_forty_rounds() -> None:
    assert [str(parse_mode(mode)) for mode in MODES] == list(MODES)
    assert len(set(METHODS)) == len(METHODS)
    assert FULL.seconds / FULL.step_seconds / EVERY >= 40


def test_options_change_the_plan() -> None:
    given = ["--tasks", "lstm", "--links", "10", "100", "--seconds", "60", "--rates", "2",
             "--methods", "sharing", "ddp"]  # fmt: skip

    plan = with_options(FULL, given)

    assert plan == replace(FULL, tasks=["lstm"], links=[10.0, 100.0], seconds=60.0, rates=2,
                           methods=["sharing", "ddp"])  # fmt: skip
    assert with_options(QUICK, []) == QUICK


def test_a_rate_is_the_best_of_those_tried_on_one_link_for_a_short_time() -> None:
    asked = []

    def measured(cell: Cell) -> Outcome:
        asked.append((cell.link, cell.seconds, cell.rate))
        return outcome({5e-3: 3.0, 1e-2: inf, 2e-2: 1.0}[cell.rate])

    plan = replace(FULL, rates=3)
    cell, _ = at_best_rate(plan, "lstm", 10.0, DDP, measured)

    tried = [(plan.pick_link, plan.pick_seconds, rate) for rate in (5e-3, 1e-2, 2e-2)]
    assert asked == [*tried, (10.0, plan.seconds, 2e-2)]
    assert cell.rate == 2e-2


def test_what_was_measured_is_known_to_the_next_run(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "cells.jsonl"
    diverged = replace(CELL, rate=0.02)
    first = Cells(file)
    first.add(CELL, outcome(1.5), "abc")
    first.add(diverged, outcome(inf), "abc")

    later = Cells(file)

    assert (later.outcome(CELL), later.outcome(diverged)) == (outcome(1.5), outcome(inf))
    assert replace(CELL, link=10.0) not in later
    with pytest.raises(KeyError):
        later.outcome(replace(CELL, link=10.0))


def test_the_best_mode_stands_beside_the_best_rival_and_links_have_means() -> None:
    def row(task: str, link: float, losses: dict[str, float]) -> Found:
        return {(task, link, method): (CELL, outcome(loss)) for method, loss in losses.items()}

    found = {
        **row("gpt", 10.0, {"sharing": 1.6, "averaging": 2.0, DDP: 4.0, SPARSE_LOCO: 2.0}),
        **row("lstm", 10.0, {"sharing": inf, "averaging": 1.25, DDP: 1.0, SPARSE_LOCO: inf}),
        **row("lstm", 100.0, {"sharing": 1.0}),
    }

    gpt, lstm, mean = figures_of(found, FULL)

    assert (gpt.figure[:15], gpt.rival, gpt.ratio, gpt.met) == ("loss of sharing", SPARSE_LOCO, 0.8,
                                                                True)  # fmt: skip
    assert (lstm.figure[:17], lstm.ratio, lstm.met) == ("loss of averaging", 1.25, False)
    assert mean.value == pytest.approx(1.0)
    assert not mean.met


def test_bytes_are_those_since_the_beginning_and_a_failure_is_an_error() -> None:
    said = {"losses": [2.0, 1.0], "steps": 3, "late": 1}

    assert outcome_of(CELL, [5_000_000, 6_000_000, 8_000_000], said).megabytes == [1.0, 3.0]
    with pytest.raises(RuntimeError, match="the cable is out"):
        outcome_of(CELL, [], {"error": "the cable is out"})


def test_a_model_is_looked_at_as_it_was_when_each_time_came() -> None:
    model = nn.Linear(1, 1, bias=False)
    watch = Watch(model, begins=100.0, seconds=6.0, points=3)

    def step(weight: float, now: float) -> bool:
        with torch.no_grad():
            model.weight.fill_(weight)
        return watch.look(now)

    goes_on = [step(1.0, 101.0), step(2.0, 101.9), step(3.0, 104.5), step(4.0, 106.1)]

    assert goes_on == [True, True, True, False]
    assert [state["weight"].item() for state in watch.states] == [2.0, 2.0, 3.0]
    assert watch.steps == 3
    assert watch.part(103.0) == 0.5


# SparseLoCo.

shapes = st.sampled_from([(1,), (64,), (130,), (5, 7), (64, 64), (70, 60), (3, 64, 64)])


@given(shapes, st.integers(0, 100))
def test_what_is_sent_and_what_is_kept_is_what_was_there(shape: tuple[int, ...], seed: int) -> None:
    before = memory_of(shape, seed)
    memory, chunks = before.copy(), Chunks(shape)

    packed = chunks.take(memory)
    places, values = chunks.read(packed)

    assert len(packed) == chunks.bytes
    assert len(set(places.tolist())) == len(places)
    assert len(np.unique(values)) <= LEVELS
    again = memory.copy()
    again[places] += values
    assert again == pytest.approx(before, abs=1e-5)


def test_the_largest_of_each_chunk_of_a_matrix_are_sent_and_vectors_whole() -> None:
    memory = memory_of((128, 64), 1)
    largest = [start + np.argsort(-np.abs(memory[start : start + 4096]))[:SENT]
               for start in (0, 4096)]  # fmt: skip
    chunks = Chunks((128, 64))

    places, _ = chunks.read(chunks.take(memory.copy()))

    assert set(places.tolist()) == set(np.concatenate(largest).tolist())
    assert chunks.bytes == 16 + 2 * SENT * 14 // 8
    assert Chunks((100,)).bytes == 16 + 100 * 2 // 8


def test_a_mean_is_over_all_or_over_those_who_sent_an_element() -> None:
    sent = [
        Sent(np.array([0, 2]), np.array([1.0, 3.0], np.float32)),
        Sent(np.array([2]), np.array([1.0], np.float32)),
    ]

    assert mean_of(sent, 3, over_senders=False).tolist() == [0.5, 0.0, 2.0]
    assert mean_of(sent, 3, over_senders=True).tolist() == [1.0, 0.0, 2.0]
