"""What a master keeps of the histograms that workers send."""

import json

import numpy as np
import pytest

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.logged.histograms import (
    HISTOGRAM,
    LAYERS_MAX,
    QUANTITIES,
    Histograms,
)
from gradwire_server.series.histograms import PER_SECOND, LayerHistograms
from gradwire_server.series.senders import BURST
from support.histograms import counted, shown_in

WORKER, OTHER = b"worker", b"other"


def test_the_newest_are_kept_with_all_numbers_as_json_has_them() -> None:
    kept = LayerHistograms()
    assert kept.shown() == []
    kept.add(0, WORKER, counted(1, 5), {0}, 0.0)
    values = np.array([1.0, 2.0, np.nan, -np.inf], np.float32)
    kept.add(0, WORKER, counted(2, 7, ("weight", "bias"), values), {0}, 0.0)

    found = shown_in(kept)
    assert (kept.rank, kept.step, kept.taken, kept.dropped) == (0, 7, 2, 0)
    assert found.keys() == {(n, q) for n in ("weight", "bias") for q in QUANTITIES}
    weight = found["weight", "update"]
    assert [weight[name] for name in ("elements", "nan", "infinite")] == [4, 1, 1]
    assert [weight[name] for name in ("lowest", "highest", "mean")] == [1.0, 2.0, 1.5]
    assert (weight["bins"][0], weight["bins"][-1], sum(weight["bins"])) == (1, 1, 2)
    assert json.loads(json.dumps(kept.shown("bias"), allow_nan=False)) == [
        found["bias", quantity] for quantity in QUANTITIES
    ]
    assert kept.shown("nothing") == []


def test_those_of_the_lowest_rank_count_as_long_as_it_is_there() -> None:
    kept = LayerHistograms()
    for number, (rank, present, shown) in enumerate(
        [(3, {0, 3, 5}, 3), (5, {0, 3, 5}, 3), (0, {0, 3, 5}, 0), (3, {0, 3, 5}, 0), (5, {3, 5}, 5)]
    ):
        kept.add(rank, bytes([rank]), counted(number + 1, number), present, 10.0 * number)
        assert kept.rank == shown

    assert (kept.taken, kept.dropped, kept.step) == (3, 2, 4)


def test_what_comes_twice_counts_once_and_another_worker_begins_anew() -> None:
    kept = LayerHistograms()
    for worker, number in ((WORKER, 2), (WORKER, 2), (WORKER, 1), (OTHER, 1)):
        kept.add(0, worker, counted(number, number, dropped=3), {0}, 0.0)

    assert (kept.taken, kept.dropped) == (2, 6)


def test_more_than_a_worker_may_send_is_dropped() -> None:
    kept = LayerHistograms()
    for number in range(1, 11):
        kept.add(0, WORKER, counted(number, number), {0}, 0.0)

    assert kept.taken == kept.step == BURST * PER_SECOND
    assert kept.taken + kept.dropped == 10


def test_what_contradicts_itself_changes_nothing() -> None:
    kept = LayerHistograms()
    kept.add(0, WORKER, counted(1, 1), {0}, 0.0)
    with pytest.raises(InvalidMessageError):
        kept.add(0, WORKER, Histograms(2, 2, (), bytes(HISTOGRAM.itemsize), 0), {0}, 0.0)
    with pytest.raises(InvalidMessageError):
        kept.add(0, WORKER, counted(2, 2, ("same", "same")), {0}, 0.0)

    assert (kept.taken, kept.step) == (1, 1)


def test_as_many_as_a_message_may_have_are_shown() -> None:
    kept = LayerHistograms()
    kept.add(0, WORKER, counted(1, 1, [f"{n}.weight" for n in range(LAYERS_MAX)]), {0}, 0.0)

    assert len(kept.shown()) == LAYERS_MAX * len(QUANTITIES)
