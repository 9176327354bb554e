"""What one bottleneck does to bulk, to updates, to what is silent, and to many at once.

Played by `support.bottleneck`, for tests and the benchmark `badlinks`. Rates are in Mbit/s, times
in seconds, sizes in bytes.
"""

from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Final

from gradwire_protocol.congestion import BbrLite
from support.bottleneck import MBIT, Bottleneck, Flow, bottleneck, fairness

DATAGRAM_BYTES: Final = 1400
QUEUE_BYTES_MIN: Final = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Losses of a Gilbert-Elliott channel; `packets` is the mean length of a burst."""

    mean: float
    packets: float
    by_time: bool = False
    """Whether a burst lasts as long as these packets take on the link, or until they were lost."""

    def options(self, mbit: float) -> dict[str, Any]:
        """Return the options of a link."""
        if self.by_time:
            seconds = self.packets * DATAGRAM_BYTES / (mbit * MBIT)
            return {"loss": self.mean, "loss_burst_seconds": seconds}
        return {"loss": self.mean, "loss_burst": self.packets}

    def __str__(self) -> str:
        kind = "time" if self.by_time else "packets"
        return f"{100 * self.mean:g} % lost in bursts of {self.packets:g} by {kind}"


def network(
    seed: int, *, mbit: float, rtt: float, bursts: Bursts | None = None, products: float = 1.0
) -> Bottleneck:
    """Make a bottleneck whose queue holds so many bandwidth-delay products."""
    queue = max(products * mbit * MBIT * rtt, QUEUE_BYTES_MIN)
    options = bursts.options(mbit) if bursts else {}
    return Bottleneck(seed, bottleneck(mbit, queue, **options))


def bulk(
    seed: int, *, rtt: float, bursts: Bursts | None, mbit: float = 100.0, seconds: float = 10.0
) -> float:
    """Return the share of the link that one flow uses, its start included."""
    link = network(seed, mbit=mbit, rtt=rtt, bursts=bursts)
    flow = Flow(link, BbrLite(DATAGRAM_BYTES, Random(seed).random), rtt=rtt)
    link.run(seconds)
    return flow.goodput(0, seconds) / link.rate


def updates(
    seed: int,
    *,
    size: int,
    spacing: float,
    rtt: float,
    bursts: Bursts | None = None,
    mbit: float = 100.0,
    count: int = 100,
) -> list[float]:
    """Return how long each of some updates takes to arrive; infinite if it does not in time."""
    link = network(seed, mbit=mbit, rtt=rtt, bursts=bursts)
    controller = BbrLite(DATAGRAM_BYTES, Random(seed).random)
    flow = Flow(link, controller, rtt=rtt, endless=False)
    for _ in range(count):
        flow.supply(size)
        link.run(spacing)
    link.run(100 * rtt)
    return [message.seconds for message in flow.messages]


@dataclass(frozen=True, slots=True)
class Healing:
    """How a flow goes on when a path has healed."""

    seconds: float
    """Until the first data arrives."""
    probe_timeout: float
    """Before the silence, and without a back-off."""


def heal(seed: int, *, gap: float, rtt: float, mbit: float = 100.0) -> Healing:
    """Break the path for some time, in the midst of small updates."""
    link = network(seed, mbit=mbit, rtt=rtt)
    flow = Flow(link, BbrLite(DATAGRAM_BYTES, Random(seed).random), rtt=rtt, endless=False)

    def send(seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            flow.supply(4_000)
            link.run(0.1)

    send(2.0)
    timeout = flow.recovery.probe_timeout
    link.alter(loss=1.0)
    link.ack_loss = 1.0
    link.run(0.1 * Random(seed).random())
    send(gap - 0.1)
    link.alter(loss=0.0)
    link.ack_loss = 0.0
    healed = link.now
    link.run(30.0)
    assert flow.messages[-1].missing == 0
    first = next(at for at, _ in flow.history if at > healed)
    return Healing(first - healed, timeout)


@dataclass(frozen=True, slots=True)
class Rush:
    """What became of many messages sent in one moment."""

    slowest: float
    """Time of the slowest over the least that all together take."""
    sent_again: float
    """Packets sent again, as a share of those needed."""


def rush(
    seed: int, *, rtt: float, workers: int = 32, size: int = 300_000, mbit: float = 1000.0,
    queue_bytes: int = 256_000,
) -> Rush:  # fmt: skip
    """Let many workers send their first large message in the same moment.

    Each has sent a small one before, as a worker does to join.
    """
    link = Bottleneck(seed, bottleneck(mbit, queue_bytes))
    flows = [
        Flow(link, BbrLite(DATAGRAM_BYTES, Random(100 * seed + i).random), rtt=rtt, endless=False)
        for i in range(workers)
    ]
    for flow in flows:
        flow.supply(1000)
    link.run(1.0)
    before = sum(flow.sent for flow in flows)
    messages = [flow.supply(size) for flow in flows]
    link.run(20.0)
    needed = workers * -(-size // DATAGRAM_BYTES)
    again = sum(flow.sent for flow in flows) - before - needed
    least = rtt / 2 + workers * size / link.rate
    return Rush(max(message.seconds for message in messages) / least, again / needed)


def share(
    seed: int, *, count: int, rtt: float = 0.03, mbit: float = 100.0, seconds: float = 40.0
) -> float:
    """Return Jain's index of flows that start half a second apart, once all have started."""
    link = network(seed, mbit=mbit, rtt=rtt)
    for i in range(count):
        controller = BbrLite(DATAGRAM_BYTES, Random(100 * seed + i).random)
        Flow(link, controller, rtt=rtt, start=0.5 * i)
    link.run(seconds)
    begin = 0.5 * count + 3.0
    return fairness([flow.goodput(begin, seconds) for flow in link.flows])


def percentile(values: list[float], share_below: float) -> float:
    """Return the value that so many are below, or infinity if messages are missing there."""
    ordered = sorted(values)
    return ordered[min(int(share_below * len(ordered)), len(ordered) - 1)] if ordered else inf
