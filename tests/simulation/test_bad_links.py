"""Bursts of losses, silence and updates now and then, over one bottleneck, in virtual time.

The benchmark `badlinks` plays the same for more links and seeds, and shows figures.
"""

from itertools import pairwise
from random import Random

import pytest

from support.bad_links import Bursts, bulk, heal, percentile, rush, share, updates
from support.link import Channel, Link
from support.tiers import variants

SEEDS = pytest.mark.seeds(3)
BY_PACKETS = Bursts(mean=0.02, packets=20)
BY_TIME = Bursts(mean=0.02, packets=20, by_time=True)

PROBES = 0.15
"""Seconds in which two probes are sent, however near the other side is."""


@SEEDS
@pytest.mark.parametrize("rtt", variants(0.05, 0.01, 0.1))
@pytest.mark.parametrize(
    "bursts",
    variants(
        BY_PACKETS, BY_TIME, Bursts(mean=0.005, packets=5), Bursts(mean=0.03, packets=40),
        Bursts(mean=0.03, packets=40, by_time=True),
    ),
    ids=str,
)  # fmt: skip
def test_bulk_fills_a_link_that_loses_in_bursts(bursts: Bursts, rtt: float, seed: int) -> None:
    assert bulk(seed, rtt=rtt, bursts=bursts) >= 0.8


@SEEDS
@pytest.mark.parametrize("rtt", variants(0.05, 0.01, 0.1))
@pytest.mark.parametrize(
    "bursts", variants(BY_TIME, None, Bursts(mean=0.005, packets=5, by_time=True)), ids=str
)
@pytest.mark.parametrize(("size", "spacing"), variants((40_000, 0.06), (1_000, 0.01), (4_000, 0.1)))
def test_updates_now_and_then_arrive_within_a_few_round_trips(
    size: int, spacing: float, bursts: Bursts | None, rtt: float, seed: int
) -> None:
    seconds = updates(seed, size=size, spacing=spacing, rtt=rtt, bursts=bursts)

    # A burst that takes the end of an update and its first probe is outlasted by the second one.
    assert percentile(seconds, 0.98) <= max(6 * rtt, PROBES)


@SEEDS
@pytest.mark.parametrize("rtt", variants(0.05, 0.01, 0.1))
@pytest.mark.parametrize("gap", variants(3.0, 0.5, 8.0, 25.0))
def test_data_flows_soon_after_a_path_has_healed(gap: float, rtt: float, seed: int) -> None:
    healing = heal(seed, gap=gap, rtt=rtt)

    if gap <= 3.0:
        assert healing.seconds <= 2 * healing.probe_timeout
    else:
        assert healing.seconds <= 0.5


@SEEDS
@pytest.mark.parametrize("rtt", variants(0.01, 0.001, 0.005))
def test_many_that_start_in_one_moment_are_soon_done(rtt: float, seed: int) -> None:
    many = rush(seed, rtt=rtt)

    assert many.slowest <= 3
    assert many.sent_again <= 0.12


@SEEDS
@pytest.mark.parametrize("count", variants(4, 2, 16))
def test_in_the_long_run_flows_have_equal_shares(count: int, seed: int) -> None:
    # Two flows take turns at having more, for ten seconds each and longer, so they need more turns.
    assert share(seed, count=count, seconds=max(120 / count, 30.0, 4.0 * count)) >= 0.85


@pytest.mark.parametrize("seed", range(3))
def test_bursts_by_time_lose_what_they_should_in_runs_as_long_as_they_should(seed: int) -> None:
    rate = 1_000.0
    channel = Channel(Link(delay=0.0, loss=0.05, loss_burst_seconds=0.02))
    random = Random(seed)

    passed = [bool(channel.admit(100, i / rate, random)) for i in range(200_000)]

    lost = passed.count(False)
    runs = sum(before and not after for before, after in pairwise(passed))
    assert lost / len(passed) == pytest.approx(0.05, rel=0.1)
    # A run that begins and ends between two packets is not seen.
    assert lost / runs == pytest.approx(20, rel=0.15)
