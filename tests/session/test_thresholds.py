"""What the settings about the threshold do to what sessions share, with a real master."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradwire.metrics import PERCENTILES, SessionCollector
from gradwire.optimizer.delays import BUCKETS
from gradwire.replica.stats import STATISTICS
from gradwire_codecs.arrays import Float32Array
from support.local_master import LocalMaster
from support.sessions import HALF, change, double_zeros, join, pull, zeros

FEEDBACKS = pytest.mark.parametrize("feedback", ["local", "shared"])


def test_a_shake_up_sends_what_else_would_wait(master: LocalMaster) -> None:
    theirs = zeros()
    one = join(master, shake_up_steps=3, shake_up_divisor=4.0)
    other = join(master, theirs)

    sent = [one.push(change(0.125, 0, 0, 0)) for _ in range(3)]
    pull(other, 1)

    assert sent == [0, 0, 1]
    assert theirs.tolist() == [0.375, 0, 0, 0]
    assert one.stats.threshold == HALF / 4
    one.push(change(0, 0, 0, HALF))
    assert one.stats.threshold == HALF


@FEEDBACKS
@pytest.mark.parametrize("make", [zeros, double_zeros], ids=["array", "tensor"])
def test_what_clipping_loses_is_counted_and_gone(
    master: LocalMaster, feedback: str, make: Callable[[], Float32Array | torch.Tensor]
) -> None:
    """With a magnitude of 127 thresholds per update, most of a change of 200 waits."""
    target = make()
    whole = target if isinstance(target, np.ndarray) else [target]
    session = join(
        master, whole, feedback=feedback, residual_clip=2.0, clip_steps=2, quantum=2.0**-20
    )
    session.push(change(200.0, 0.25, -200.0, 0))
    assert session.stats.elements_clipped == 0

    session.push()

    sent = 2 * 127 * HALF
    stats = session.stats
    assert stats.elements_clipped == 2
    assert stats.magnitude_clipped == 2 * (200.0 - sent - 2 * HALF)
    residual = session.state_dict()["residual"].tolist()
    assert residual == [1.0, 0.25, -1.0, 0]
    kept = [1.0, 0.25, -1.0, 0] if feedback == "local" else [0, 0, 0, 0]
    assert target.tolist() == [sent + kept[0], kept[1], -sent + kept[2], 0]


def test_nothing_is_clipped_unless_it_is_asked_for(master: LocalMaster) -> None:
    session = join(master, quantum=2.0**-20)
    for _ in range(10):
        session.push(change(200.0, 0, 0, 0))

    assert session.stats.elements_clipped == 0
    assert session.state_dict()["residual"].tolist() == [2_000.0 - 10 * 127 * HALF, 0, 0, 0]


# What there is to see of it.


def test_a_collector_has_the_numbers_of_the_session(master: LocalMaster) -> None:
    """Such as how large the residual is, in thresholds."""
    session = join(master)
    session.push(change(0.25, -0.125, 0, HALF))
    session.close()  # what comes over the network no longer moves the numbers

    families = {family.name: family for family in SessionCollector(session).collect()}

    stats = session.stats
    residual = stats.residual
    assert (residual.max, residual.mean, residual.p50) == (0.5, 0.1875, 0.125)
    for field, statistic in STATISTICS.items():
        metric, value = f"gradwire_session_{statistic.metric or field}", getattr(stats, field)
        if statistic.kind in ("counter", "gauge") and value is not None:
            [sample] = families[metric].samples
            assert sample.value == value, field
        elif statistic.kind == "histogram":
            counts = {s.labels.get("le", s.name): s.value for s in families[metric].samples}
            assert counts["+Inf"] == counts[f"{metric}_count"] == value.count
            assert counts[f"{metric}_sum"] == value.sum
            assert [counts[str(float(limit))] for limit in BUCKETS] == list(value.at_most)
        elif statistic.kind is not None:
            assert metric not in families
    by_quantile = {
        sample.labels["quantile"]: sample.value
        for sample in families["gradwire_session_residual_thresholds"].samples
    }
    assert by_quantile == {q: getattr(residual, name) for q, name in PERCENTILES.items()}
    [mean] = families["gradwire_session_residual_mean_thresholds"].samples
    assert mean.value == residual.mean
