"""The model of a network: what it may do to what is sent, and what it never does."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.link import QUEUE_BYTES_MIN, Arrival, Channel, Link, damage
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
        loss_burst_seconds_max=draw(st.sampled_from([None, 0.1])),
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
def test_no_more_waits_than_fits_into_the_queue(link: Link, pauses: Sent) -> None:
    channel = Channel(link)

    for now, size in at_times(pauses):
        idle = channel.backlog(now) == 0
        channel.admit(size, now, Random(0))
        # What finds the line free is sent at once, however large it is.
        assert idle or channel.backlog(now) <= max(link.queue_limit, 9000) + 1


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


def test_another_seed_gives_another_history() -> None:
    link = Link(loss=0.5)
    sent = flood(100, 1e9)

    assert send(Channel(link), sent, 1) != send(Channel(link), sent, 2)


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


@pytest.mark.parametrize("burst", [None, 5.0])
def test_no_more_are_lost_in_a_row_than_the_link_says(burst: float | None) -> None:
    link = Link(loss=0.3, loss_burst=burst, loss_burst_max=3)

    arrivals = send(Channel(link), flood(10_000, 1e9))

    assert max(runs_of_losses(arrivals)) == 3


def test_a_burst_by_packets_is_over_after_a_while_even_if_little_was_sent() -> None:
    often, seldom = [
        max(runs_of_losses(send(Channel(link), at_times([(pause, FULL)] * 5_000))))
        for link in [Link(loss=0.3, loss_burst=10.0, loss_burst_seconds_max=2.0)]
        for pause in (0.001, 0.9)
    ]

    assert often > 20
    assert seldom == 3


def test_a_link_that_loses_everything_does() -> None:
    assert runs_of_losses(send(Channel(Link(loss=1.0)), flood(500, 1e9))) == [500]


def test_losses_that_cannot_be_are_refused() -> None:
    """Between two bursts at least one passes: in bursts of one, half can be lost at most."""
    assert Link(loss=0.5, loss_burst=1.0).loss == 0.5
    with pytest.raises(AssertionError, match="cannot be lost"):
        Link(loss=0.6, loss_burst=1.0)


def test_what_is_listed_is_lost() -> None:
    channel = Channel(Link(drops=range(2, 5).__contains__))

    arrivals = send(channel, flood(8, 1e9))

    assert [bool(copies) for copies in arrivals] == [True] * 2 + [False] * 3 + [True] * 3
    assert channel.counts == {"listed": 3}


def test_a_queue_holds_one_bandwidth_delay_product_unless_it_is_told_otherwise() -> None:
    link = Link(rate=80e6, delay=0.015)

    assert link.queue_limit == 300_000
    assert Link(rate=80e6, delay=0.0).queue_limit == QUEUE_BYTES_MIN
    assert Link(rate=80e6, queue_bytes=5).queue_limit == 5

    channel = Channel(link)
    arrivals = send(channel, [(0.0, FULL)] * 250)
    assert [bool(copies) for copies in arrivals] == [True] * 200 + [False] * 50
    assert channel.counts == {"overflow": 50}
    assert channel.backlog(0.0) == pytest.approx(300_000)
    assert channel.backlog(0.015) == pytest.approx(150_000)
    assert channel.backlog(0.031) == 0
    assert channel.admit(FULL, 0.015, Random(0))[0].at == pytest.approx(0.030 + 0.00015 + 0.015)


def test_what_is_sent_at_less_than_the_rate_does_not_wait() -> None:
    arrivals = send(Channel(Link(rate=10e6, delay=0.02)), flood(100, 9e6))

    for (now, size), [arrival] in zip(flood(100, 9e6), arrivals, strict=True):
        assert arrival.at == pytest.approx(now + 8 * size / 10e6 + 0.02)


def test_what_finds_a_queue_is_marked() -> None:
    channel = Channel(Link(rate=12e6, mark_bytes=5 * FULL))

    arrivals = send(channel, [(0.0, FULL)] * 8)

    # The sixth finds exactly as much as may be there.
    assert [copies[0].marked for copies in arrivals] == [False] * 6 + [True] * 2
    assert channel.counts == {"marked": 2}


def test_what_is_lost_on_the_way_has_used_the_rate() -> None:
    channel = Channel(Link(rate=12e6, loss=1.0))

    send(channel, [(0.0, FULL)] * 4)

    assert channel.backlog(0.0) == pytest.approx(4 * FULL)


def test_what_is_larger_than_the_mtu_vanishes() -> None:
    channel = Channel(Link(mtu=1400, rate=1e6))

    arrivals = send(channel, [(0.0, 1401), (0.0, 1400)])

    assert [len(copies) for copies in arrivals] == [0, 1]
    assert channel.counts == {"too_large": 1}


def test_a_blackhole_comes_at_the_end_of_every_period() -> None:
    channel = Channel(Link(blackhole=(2.0, 5.0)))

    arrivals = send(channel, [(1000.5 + second, FULL) for second in range(10)])

    passes = [True] * 3 + [False] * 2
    assert [bool(copies) for copies in arrivals] == passes * 2
    assert channel.counts == {"blackhole": 4}


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


def test_jitter_spreads_the_delay_evenly() -> None:
    link = Link(delay=0.01, jitter=0.02)

    arrivals = send(Channel(link), flood(2000, 1e9))

    sent = flood(2000, 1e9)
    extra = [copy.at - now - 0.01 for [copy], (now, _) in zip(arrivals, sent, strict=True)]
    assert 0 <= min(extra) < 0.0002
    assert 0.0198 < max(extra) < 0.02
    assert sum(extra) / 2000 == pytest.approx(0.01, rel=0.05)


def test_what_waits_stays_in_the_queue_when_the_link_changes() -> None:
    channel = Channel(Link(rate=12e6, delay=0.1))
    send(channel, [(0.0, FULL)] * 10)

    channel.link = Link(rate=12e6, delay=0.05)

    assert channel.admit(FULL, 0.0, Random(0))[0].at == pytest.approx(11 * 0.001 + 0.05)


@given(st.binary(max_size=40), st.randoms(use_true_random=False))
def test_what_is_damaged_is_not_what_it_was(datagram: bytes, random: Random) -> None:
    assert damage(datagram, random) != datagram
