"""The model of a network: what it may do to what is sent, and what it never does."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.link import Arrival, Channel, Link, damage
from support.tiers import count

Sent = list[tuple[float, int]]
"""When, and how many bytes."""

FULL = 1500

PACKETS = count(200_000, quick=20_000, of="packets of a link that loses some")

DROPPED = ("too_large", "blackhole", "listed", "overflow", "lost")

chances = st.sampled_from([0.0, 0.05, 0.5])
sendings = st.lists(
    st.tuples(st.sampled_from([0.0, 1e-6, 1e-3, 0.1]), st.integers(20, 9000)),
    min_size=1,
    max_size=60,
)
"""After how long, and how many bytes."""


@st.composite
def links(draw: st.DrawFn) -> Link:
    return Link(
        delay=draw(st.sampled_from([0.0, 0.001, 0.05])),
        rate=draw(st.sampled_from([None, 1e6, 1e8])),
        queue_bytes=draw(st.sampled_from([None, 2_000, 100_000])),
        mark_bytes=draw(st.sampled_from([None, 0, 10_000])),
        jitter=draw(st.sampled_from([0.0, 0.02])),
        reordering=draw(chances),
        loss=draw(chances),
        loss_burst=draw(st.sampled_from([None, 3.0])),
        loss_burst_max=draw(st.sampled_from([None, 2])),
        drops=draw(st.sampled_from([None, frozenset({0, 3, 4}).__contains__])),
        duplication=draw(chances),
        copies_max=draw(st.integers(2, 3)),
        corruption=draw(chances),
        mtu=draw(st.sampled_from([None, FULL])),
        blackhole=draw(st.sampled_from([None, (0.2, 0.5)])),
    )


def at_times(sendings: Sent, start: float = 1000.0) -> Sent:
    """Add up the pauses."""
    sent, now = [], start
    for pause, size in sendings:
        now += pause
        sent.append((now, size))
    return sent


def send(channel: Channel, sent: Sent, seed: int = 0) -> list[list[Arrival]]:
    """Return what arrives of each of them."""
    random = Random(seed)
    return [channel.admit(size, now, random) for now, size in sent]


def flood(n: int, rate: float, now: float = 0.0) -> Sent:
    """Return packets that use up a rate."""
    return [(now + i * FULL * 8 / rate, FULL) for i in range(n)]


@given(links(), sendings)
def test_nothing_arrives_before_it_can(link: Link, pauses: Sent) -> None:
    sent = at_times(pauses)

    arrivals = send(Channel(link), sent)

    for (now, size), copies in zip(sent, arrivals, strict=True):
        takes = 8 * size / link.rate if link.rate else 0.0
        assert all(copy.at >= now + takes + link.delay - 1e-9 for copy in copies)


@given(links(), sendings)
def test_every_packet_is_accounted_for(link: Link, pauses: Sent) -> None:
    channel = Channel(link)

    arrivals = send(channel, at_times(pauses))

    arrived = sum(len(copies) for copies in arrivals)
    dropped = [channel.counts[why] for why in DROPPED]
    assert arrived + sum(dropped) == channel.offered + channel.counts["repeated"]
    assert channel.offered == len(pauses)
    assert channel.counts["damaged"] == sum(copy.damaged for c in arrivals for copy in c)


@given(links(), sendings)
def test_the_rate_is_kept_in_every_interval(link: Link, pauses: Sent) -> None:
    channel = Channel(link)
    sent = at_times(pauses)

    left = []  # when the bottleneck had sent it, as the backlog says
    for now, size in sent:
        before = channel.backlog(now)
        channel.admit(size, now, Random(0))
        if channel.backlog(now) > before and link.rate:
            left.append((now + channel.backlog(now) * 8 / link.rate, size))

    for i, (begin, _) in enumerate(left):
        passed = 0
        for end, size in left[i + 1 :]:
            passed += size
            assert link.rate is not None
            assert passed <= (end - begin) * link.rate / 8 * (1 + 1e-6) + 1e-3


@given(links(), sendings)
def test_order_is_kept_where_nothing_is_held_up(link: Link, pauses: Sent) -> None:
    arrivals = send(Channel(link), at_times(pauses))

    times = [copy.at for copies in arrivals for copy in copies]
    if link.keeps_order:
        assert times == sorted(times)


@given(links(), sendings, st.integers(0, 10))
def test_the_same_seed_gives_the_same_history(link: Link, pauses: Sent, seed: int) -> None:
    sent = at_times(pauses)

    assert send(Channel(link), sent, seed) == send(Channel(link), sent, seed)


def runs_of_losses(arrivals: list[list[Arrival]]) -> list[int]:
    """Return how many were lost in a row, each time."""
    lost = "".join("." if copies else "x" for copies in arrivals)
    return [len(run) for run in lost.split(".") if run]


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("burst", [None, 1.0, 3.0, 10.0])
def test_as_much_is_lost_as_the_link_says(loss: float, burst: float | None) -> None:
    n = PACKETS

    arrivals = send(Channel(Link(loss=loss, loss_burst=burst)), flood(n, 1e9), seed=1)

    runs = runs_of_losses(arrivals)
    mean = burst or 1 / (1 - loss)
    # Bursts come and are as long as chance has it: five times their standard error.
    assert sum(runs) == pytest.approx(n * loss, abs=5 * mean * (2 * n * loss / mean) ** 0.5)
    assert sum(runs) / len(runs) == pytest.approx(mean, abs=5 * mean / len(runs) ** 0.5)


def test_duplicates_come_up_to_so_many_times() -> None:
    n = 3000
    arrivals = send(Channel(Link(duplication=2 / 3, copies_max=3)), flood(n, 1e9))

    counts = [[len(copies) for copies in arrivals].count(k) for k in range(5)]

    assert counts[0] == counts[4] == 0
    assert all(count == pytest.approx(n / 3, rel=0.1) for count in counts[1:4])


def test_what_is_held_up_is_overtaken() -> None:
    link = Link(reordering=0.1, reordering_delay=0.005)

    arrivals = [copy.at for [copy] in send(Channel(link), flood(1000, 12e6))]

    held = [at - now > 0.012 for at, (now, _) in zip(arrivals, flood(1000, 12e6), strict=True)]
    assert 60 < sum(held) < 140
    assert sum(a > b for a, b in pairwise(arrivals)) == sum(a and not b for a, b in pairwise(held))


@given(st.binary(max_size=40), st.randoms(use_true_random=False))
def test_what_is_damaged_is_not_what_it_was(datagram: bytes, random: Random) -> None:
    assert damage(datagram, random) != datagram
