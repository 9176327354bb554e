"""What the settings about the threshold do to what sessions share, with a real master."""

from gradwire.metrics import PERCENTILES, STATISTICS, SessionCollector
from gradwire.optimizer.delays import BUCKETS
from support.local_master import LocalMaster
from support.sessions import HALF, change, join

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
