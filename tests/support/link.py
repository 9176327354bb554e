"""`Link` says what a network does to what is sent over it, `Channel` does it.

A channel is one direction, and knows nothing of clocks, sockets or contents: it is told how many
bytes are sent and when, and answers when which copies of them arrive. `support.network` asks it
in virtual time, `support.emulator` in real time, so both are one network.

What is sent passes, in this order:

1. what makes it vanish at once: the `mtu`, a `blackhole`, the list of `drops`;
2. the bottleneck: a queue of `queue_bytes` that is emptied at `rate`, whose tail is dropped when
   it is full, and which marks what it takes in while more than `mark_bytes` wait;
3. the way: random `loss`, after the bottleneck, so what is lost has used its share of the rate;
   then the `delay`; copies, damage and lateness, drawn anew for every copy.

Bytes are those of IP packets, so that a `rate` and an `mtu` mean here what they mean elsewhere.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Final, NamedTuple

IP_UDP_HEADER_BYTES: Final = 28
"""What IPv4 and UDP add to a datagram."""

QUEUE_BYTES_MIN: Final = 15_000
"""Ten full packets: what a queue of one bandwidth-delay product holds where there is no delay."""

BURST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What happens on the way, in one direction. Times in seconds, chances from 0 to 1."""

    delay: float = 0.010

    jitter: float = 0.0
    """Up to this is added to the delay, at random: datagrams overtake each other."""

    reordering: float = 0.0
    """The share that is held up, by `reordering_delay`, and so overtaken."""

    reordering_delay: float = 0.005

    rate: float | None = None
    """Bits per second; None for as fast as it comes."""

    queue_bytes: int | None = None
    """What may wait for its turn, what is just being sent included. None: as much as is sent in
    the time there and back (one bandwidth-delay product), if the other direction is as long."""

    mark_bytes: int | None = None
    """Mark what finds more than this in the queue (ECN); what cannot be marked passes as it is."""

    loss: float = 0.0

    loss_burst: float | None = None
    """Mean number of losses in a row, as of a Gilbert-Elliott channel whose good state loses
    nothing and whose bad state everything. A pause of `BURST_PAUSE_SECONDS` ends a burst: one
    that sends a packet every two seconds would otherwise be cut off for half a minute.
    None: every loss is independent of the one before."""

    loss_burst_seconds: float | None = None
    """The same by time, instead of by packets: the mean length of the bad state."""

    loss_burst_max: int | None = None
    """More losses in a row than this never happen, which makes them fewer than `loss`."""

    drops: Callable[[int], bool] | None = None
    """Told the index of what is sent, from 0; returns whether it is lost. A list of them is
    ``frozenset({2, 5}).__contains__``."""

    duplication: float = 0.0
    """The share that arrives more than once, which is up to `copies_max` times."""

    copies_max: int = 2

    corruption: float = 0.0
    """A bit is flipped, or the end is cut off, or something is appended."""

    mtu: int | None = None
    """Larger packets vanish without a word."""

    blackhole: tuple[float, float] | None = None
    """(off, every): at the end of every `every` seconds nothing passes for `off` of them."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        burst = self.loss_burst
        assert burst is None or burst * (1 - self.loss) >= self.loss, (
            f"in bursts of {burst}, {self.loss} cannot be lost: at least one passes between two"
        )
        assert burst is None or burst >= 1, f"a burst of {burst}"
        assert burst is None or self.loss_burst_seconds is None, "bursts by packets and by time"
        assert self.copies_max >= 2, f"a duplicate makes two at least, not {self.copies_max}"

    @property
    def queue_limit(self) -> float:
        """The bytes that fit into the queue."""
        if self.rate is None:
            return inf
        if self.queue_bytes is not None:
            return self.queue_bytes
        return max(self.rate / 8 * 2 * self.delay, QUEUE_BYTES_MIN)

    @property
    def keeps_order(self) -> bool:
        """Whether what is sent first always arrives first."""
        return not self.jitter and not self.reordering


class Arrival(NamedTuple):
    """A copy of what was sent."""

    at: float
    marked: bool = False
    damaged: bool = False


class Channel:
    """One direction between two places, or one that several share.

    Parameters
    ----------
    link : Link
        Can be replaced at any time; what waits in the queue stays there.
    """

    def __init__(self, link: Link) -> None:
        self.counts: Counter[str] = Counter()
        """How many were dropped (``too_large``, ``blackhole``, ``listed``, ``overflow``,
        ``lost``) and ``marked``, ``repeated``, ``damaged``."""
        self.offered = 0
        """How many were sent so far."""
        self._free_at = -inf
        """When the bottleneck has sent all that is in its queue."""
        self._losses = 0
        """In a row, so far."""
        self._lost_at = -inf
        """When the last one of them was sent."""
        self._bad = False
        self._bad_changes_at = -inf
        """Of bursts by time: the state, and when it ends."""
        self.link = link

    @property
    def link(self) -> Link:
        """What happens on the way."""
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link
        self._delay = link.delay
        self._seconds_per_byte = 8 / link.rate if link.rate else 0.0
        # Half a byte is the difference between times of which the last digits are lost.
        self._queue_seconds = (link.queue_limit + 0.5) * (self._seconds_per_byte or inf)
        marks_from = inf if link.mark_bytes is None else link.mark_bytes + 0.5
        self._mark_seconds = marks_from * (self._seconds_per_byte or inf)
        self._loss_after_success, self._loss_after_loss = _loss_chances(link)
        self._can_vanish = bool(link.mtu or link.blackhole or link.drops)
        self._is_plain = not (link.duplication or link.corruption) and link.keeps_order
        self._since: float | None = None
        """When the first was sent over this link."""

    def backlog(self, now: float) -> float:
        """Return the bytes in the queue."""
        return max(0.0, self._free_at - now) / self._seconds_per_byte if self._link.rate else 0.0

    def admit(self, size: int, now: float, random: Random) -> list[Arrival]:
        """Send something of `size` bytes; return what arrives of it, and when."""
        index = self.offered
        self.offered = index + 1
        if self._can_vanish and self._vanishes(index, size, now):
            return []
        marked = False
        if self._seconds_per_byte:
            free_at = self._free_at
            takes = size * self._seconds_per_byte
            if free_at <= now:
                free_at = now
            elif free_at - now + takes > self._queue_seconds:
                self.counts["overflow"] += 1
                return []
            elif free_at - now > self._mark_seconds:
                self.counts["marked"] += 1
                marked = True
            now = self._free_at = free_at + takes
        if self._loss_after_success and self._is_lost(now, random):
            return []
        if self._is_plain:
            # What `Arrival` would do in three times the time; this is called for every datagram.
            return [tuple.__new__(Arrival, (now + self._delay, marked, False))]
        return self._copies(now + self._delay, marked, random)

    def _vanishes(self, index: int, size: int, now: float) -> bool:
        link = self._link
        why = None
        if link.mtu is not None and size > link.mtu:
            why = "too_large"
        elif link.blackhole is not None:
            off, every = link.blackhole
            self._since = now if self._since is None else self._since
            why = "blackhole" if (now - self._since) % every >= every - off else None
        if why is None and link.drops is not None and link.drops(index):
            why = "listed"
        if why is not None:
            self.counts[why] += 1
        return why is not None

    def _is_lost(self, now: float, random: Random) -> bool:
        if self._link.loss_burst_seconds is not None:
            is_lost = self._is_bad(now, self._link.loss_burst_seconds, random)
        else:
            in_burst = self._losses and now < self._lost_at + BURST_PAUSE_SECONDS
            chance = self._loss_after_loss if in_burst else self._loss_after_success
            is_lost = random.random() < chance
        is_lost &= self._losses != self._link.loss_burst_max
        if is_lost:
            self._losses += 1
            self._lost_at = now
            self.counts["lost"] += 1
        else:
            self._losses = 0
        return is_lost

    def _is_bad(self, now: float, mean_seconds: float, random: Random) -> bool:
        """Return the state of bursts by time; both states last exponential times."""
        loss = self._link.loss
        if self._bad_changes_at == -inf:
            self._bad_changes_at = now
            self._bad = random.random() >= loss  # about to change
        while now >= self._bad_changes_at:
            self._bad = not self._bad
            mean = mean_seconds if self._bad else mean_seconds * (1 - loss) / loss
            self._bad_changes_at += random.expovariate(1 / mean)
        return self._bad

    def _copies(self, at: float, marked: bool, random: Random) -> list[Arrival]:
        link = self._link
        copies = 1
        if random.random() < link.duplication:
            copies = random.randint(2, link.copies_max)
            self.counts["repeated"] += copies - 1
        arrivals = []
        for _ in range(copies):
            later = random.random() * link.jitter
            if random.random() < link.reordering:
                later += link.reordering_delay
            damaged = random.random() < link.corruption
            if damaged:
                self.counts["damaged"] += 1
            arrivals.append(Arrival(at + later, marked, damaged))
        return arrivals


def _loss_chances(link: Link) -> tuple[float, float]:
    """Return the chances to be lost after one that got through, and after one that was lost."""
    if link.loss_burst is None:
        return link.loss, link.loss
    # A burst of B on average ends with a chance of 1/B at each. One begins after one that got
    # through with a chance p, so 1/p get through on average between two: B / (B + 1/p) is `loss`.
    if link.loss == 0:
        return 0.0, 0.0
    return link.loss / (link.loss_burst * (1 - link.loss)), 1 - 1 / link.loss_burst


def damage(datagram: bytes, random: Random) -> bytes:
    """Return a datagram that something went wrong with."""
    kind = random.randrange(3)
    if kind == 0 and datagram:
        damaged = bytearray(datagram)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        return bytes(damaged)
    if kind == 1 and datagram:
        return datagram[: random.randrange(len(datagram))]
    return datagram + random.randbytes(random.randrange(1, 20))
