"""What congestion control makes of paths, in virtual time.

The links lose packets at random behind their queue, so that of a link with 10 % loss at most 90 %
is of use. Every history is determined by its seed, which is a parameter of the test.
"""

from random import Random

import pytest

from gradwire_protocol.congestion import BbrLite
from gradwire_protocol.congestion.bbr import Phase
from support.bottleneck import MBIT, Bottleneck, Flow, bottleneck, fairness
from support.link import Link
from support.tiers import variants

SEEDS = pytest.mark.seeds(2)


def link_with_queue(mbit: float, rtt: float, products: float = 1.0) -> Link:
    """Make a link whose queue holds so many times its rate times its round trip."""
    return bottleneck(mbit, products * mbit * MBIT * rtt)


def lonely_flow(link: Link, *, rtt: float, seed: int) -> Flow:
    return Flow(Bottleneck(seed, link), BbrLite(1400, Random(seed).random), rtt=rtt)


def utilisation(flow: Flow, begin: float, end: float) -> float:
    return flow.goodput(begin, end) / flow.network.rate


# Alone.


@SEEDS
@pytest.mark.parametrize("rtt", variants(0.05, 0.02, 0.1))
@pytest.mark.parametrize(
    ("loss", "least"), variants((0.03, 0.82), (0.0, 0.9), (0.01, 0.88), (0.1, 0.7))
)
def test_bbr_fills_links_that_lose_packets(
    rtt: float, loss: float, least: float, seed: int
) -> None:
    """The first seconds, in which the rate is found, are part of it."""
    flow = lonely_flow(link_with_queue(100, rtt), rtt=rtt, seed=seed)
    flow.network.alter(loss=loss)

    flow.network.run(20)

    assert utilisation(flow, 0, 20) >= least


@SEEDS
def test_a_link_is_full_after_a_few_round_trips(seed: int) -> None:
    """14 initial windows fit into it: the fourth doubling fills it."""
    flow = lonely_flow(link_with_queue(100, 0.05), rtt=0.05, seed=seed)

    flow.network.run(1)

    round_trips = [utilisation(flow, 0.05 * i, 0.05 * i + 0.05) for i in range(20)]
    assert max(round_trips[:8]) >= 0.95
    assert utilisation(flow, 0.4, 1) >= 0.75


@SEEDS
@pytest.mark.parametrize("jitter", variants(0.005, 0.001, 0.02))
def test_bbr_does_not_mind_packets_that_overtake_each_other(jitter: float, seed: int) -> None:
    flow = lonely_flow(link_with_queue(100, 0.05), rtt=0.05, seed=seed)
    flow.network.alter(jitter=jitter)

    flow.network.run(8)

    assert utilisation(flow, 3, 8) >= 0.9
    assert flow.spurious <= 0.03 * flow.sent


@SEEDS
def test_bbr_does_not_mind_lost_acknowledgements(seed: int) -> None:
    flow = lonely_flow(link_with_queue(100, 0.05), rtt=0.05, seed=seed)
    flow.network.run(1)  # losing the only ACK of the first window costs a timeout, whoever counts
    flow.network.ack_loss = 0.5

    flow.network.run(9)

    assert utilisation(flow, 1, 10) >= 0.8
    assert flow.spurious <= 0.005 * flow.sent


@SEEDS
def test_bbr_fills_a_long_slow_link(seed: int) -> None:
    flow = lonely_flow(link_with_queue(10, 0.75), rtt=0.75, seed=seed)

    flow.network.run(30)

    assert utilisation(flow, 7.5, 30) >= 0.8


# Local networks: trains are large and acknowledgements late, compared with the round trip.


@SEEDS
@pytest.mark.parametrize("datagram_bytes", variants(1400, 8900))
@pytest.mark.parametrize("rtt", variants(0.002, 0.000_1))
@pytest.mark.parametrize("grain", variants(0.000_2, 0.0, 0.001))
def test_bbr_fills_a_loopback_whose_receiver_wakes_up_now_and_then(
    grain: float, rtt: float, datagram_bytes: int, seed: int
) -> None:
    network = Bottleneck(seed, bottleneck(10_000, 8e6))
    network.grain = grain
    controller = BbrLite(datagram_bytes, Random(seed).random)
    flow = Flow(network, controller, rtt=rtt, datagram_bytes=datagram_bytes)

    flow.network.run(0.12)

    assert utilisation(flow, 0.06, 0.12) >= 0.9


@SEEDS
@pytest.mark.parametrize("mbit", variants(100, 10, 50, 1000))
def test_bbr_fills_a_local_network_of_any_speed(mbit: float, seed: int) -> None:
    """The delay of an ACK is many round trips here."""
    flow = lonely_flow(bottleneck(mbit, 256e3), rtt=0.000_2, seed=seed)

    flow.network.run(2)

    assert utilisation(flow, 0, 2) >= 0.9


@SEEDS
def test_bbr_uses_a_lossy_local_network(seed: int) -> None:
    """A few dozen packets fill it, of which chance loses none, or three."""
    flow = lonely_flow(bottleneck(100, 1e5), rtt=0.005, seed=seed)
    flow.network.alter(loss=0.03)

    flow.network.run(10)

    assert utilisation(flow, 0, 10) >= 0.7


# Together.


@SEEDS
@pytest.mark.parametrize("products", variants(1.0, 0.25))
@pytest.mark.parametrize("count", variants(4, 2, 8))
def test_bbr_flows_share_a_link(count: int, products: float, seed: int) -> None:
    """They start half a second apart; each may flood the link once, to find it out."""
    network = Bottleneck(seed, link_with_queue(100, 0.03, products))
    for i in range(count):
        Flow(network, BbrLite(1400, Random(100 * seed + i).random), rtt=0.03, start=0.5 * i)
    network.run(5)
    sent, overflowed = (sum(getattr(f, name) for f in network.flows) for name in COUNTS)

    network.run(15)

    sent_later = sum(f.sent for f in network.flows) - sent
    lost_later = sum(f.overflowed for f in network.flows) - overflowed
    rates = [f.goodput(5, 20) for f in network.flows]
    assert fairness(rates) >= 0.8
    assert sum(rates) >= 0.8 * network.rate
    assert lost_later <= 0.05 * sent_later
    assert overflowed + lost_later <= 0.08 * (sent + sent_later)


COUNTS = ("sent", "overflowed")


# Paths that change, and applications that pause.


@SEEDS
def test_after_an_outage_a_flow_starts_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is slower when it comes back; nobody floods it, and it is full soon."""
    restarts: list[BbrLite] = []
    restart = BbrLite.on_persistent_congestion

    def watched(self: BbrLite) -> None:
        restarts.append(self)
        restart(self)

    monkeypatch.setattr(BbrLite, "on_persistent_congestion", watched)
    flow = lonely_flow(link_with_queue(100, 0.03), rtt=0.03, seed=seed)
    network = flow.network
    network.run(2)
    network.alter(loss=1.0)
    network.run(1.5)
    network.alter(loss=0.0, rate=20e6)
    overflowed = flow.overflowed

    network.run(6)

    assert len(restarts) == 1
    assert flow.overflowed - overflowed <= 300
    assert utilisation(flow, 5.5, 9.5) >= 0.85


@SEEDS
def test_bbr_finds_out_within_seconds_that_a_link_has_become_faster_or_slower(seed: int) -> None:
    flow = lonely_flow(link_with_queue(20, 0.05), rtt=0.05, seed=seed)
    flow.network.run(3)
    flow.network.alter(rate=100e6)
    flow.network.run(4)
    assert utilisation(flow, 6, 7) >= 0.9

    flow.network.alter(rate=20e6)
    flow.network.run(4)

    assert utilisation(flow, 10, 11) >= 0.9
    assert flow.recovery.rtt.smoothed < 0.15


@SEEDS
@pytest.mark.parametrize("size", [300_000, 1_000_000])
def test_bursts_are_not_slowed_down(size: int, seed: int) -> None:
    """Twenty updates with pauses: from the third on, each takes little more than it must."""
    link = link_with_queue(100, 0.05)
    controller = BbrLite(1400, Random(seed).random)
    flow = Flow(Bottleneck(seed, link), controller, rtt=0.05, endless=False)
    times, phases = [], set()
    for _ in range(20):
        message = flow.supply(size)
        for _ in range(10):
            flow.network.run(0.1)
            phases.add(controller.phase)
        times.append(message.seconds)

    assert max(times[2:]) <= 1.2 * (size / flow.network.rate + 0.05)
    assert Phase.PROBE_RTT not in phases

    message = flow.supply(10_000_000)
    flow.network.run(5)
    assert message.seconds <= 1.3 * (10_000_000 / flow.network.rate + 0.05)


@SEEDS
def test_bursts_do_not_flood_a_shallow_queue_again_and_again(seed: int) -> None:
    """The application never sends for long enough to see the link full; the losses tell."""
    controller = BbrLite(1400, Random(seed).random)
    network = Bottleneck(seed, bottleneck(100, 60e3))
    flow = Flow(network, controller, rtt=0.05, endless=False)
    for _ in range(40):
        flow.supply(1_000_000)
        flow.network.run(0.5)

    assert flow.overflowed <= 0.05 * flow.sent


# Marks.


@SEEDS
def test_marks_replace_losses_and_do_not_stop_bbr(seed: int) -> None:
    flow = lonely_flow(link_with_queue(100, 0.02, 4.0), rtt=0.02, seed=seed)
    flow.network.alter(mark_bytes=100_000)

    flow.network.run(8)

    assert flow.overflowed == 0
    assert utilisation(flow, 0, 8) >= 0.9
