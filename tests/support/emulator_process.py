"""What runs between emulated machines: takes packets here, gives them there when it is time.

A process of its own, started by `support.emulator`, which tells it what to do through its standard
input and ends it by closing that; so it ends with its parent, however that ends. It answers with
`READY` and, at the end, with a `Report`.

A packet costs 5 to 15 us, most of them the kernel's: it delivers what is written, and TCP answers
it, before the write returns. Python's part is about 2 us.
"""

import gc
import heapq
import os
import pickle
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from select import select
from socket import inet_aton
from time import monotonic, process_time, sleep
from typing import Final

from support.link import Channel, Link, damage
from support.namespaces import DEVICE, Machine
from support.tun import marked, open_tun

READY: Final = b"ready\n"

BATCH: Final = 64
"""Packets that are read, or written, before the other direction has its turn."""

NAP_SECONDS: Final = 0.0001
"""Time that is left to packets to come together, instead of waking up for each of them: a quarter
of the work at 200 Mbit/s. It makes them late by half of it, on average, at either end."""

DESTINATION: Final = slice(16, 20)
"""Where it is in the header of IPv4."""

NOWHERE: Final = -1
"""A file that nothing can be written to."""

Waiting = tuple[float, int, bytes]
"""When it is due; a number, for packets that are due together; and the packet."""

LATENESS_STEP_SECONDS: Final = 0.00001
LATENESS_STEPS: Final = 100_000
"""Lateness is counted in steps of 10 us, up to a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to do."""

    machines: tuple[Machine, ...]
    links: tuple[Link, ...]
    """From the first to the second, and back; or one, which all machines share."""
    seed: int
    mtu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """What became of the packets of one direction, or of one machine where all share a link."""

    offered: int
    """That were read."""
    unread: int
    """That were lost before, because they were not read in time."""
    delivered: int
    """That were written, copies included."""
    delivered_bytes: int
    counts: Counter[str]
    """Of the `Channel`: what it dropped, marked, repeated and damaged."""
    refused: int
    """That the other machine's kernel did not take: damaged ones, mostly."""
    late_seconds_p99: float
    late_seconds_max: float
    """How much later than they had to be packets were delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was done."""

    directions: Sequence[Direction]
    seconds: float
    cpu_seconds: float

    @property
    def forward(self) -> Direction:
        """From the first of two machines to the second."""
        return self.directions[0]

    @property
    def back(self) -> Direction:
        """From the second to the first."""
        return self.directions[1]


class Line:
    """One direction: from the file of one device, through a channel, to that of another.

    Parameters
    ----------
    source : int
        The file that packets are read from.
    target : callable
        Returns the file that a packet is written to.
    channel : Channel
        That of several lines where they share it.
    seed, mtu : int
    """

    def __init__(
        self, source: int, target: Callable[[bytes], int], channel: Channel, seed: int, mtu: int
    ) -> None:
        self.source = source
        self.channel = channel
        self._random = Random(seed)
        self._target = target
        self._offered = 0
        self._mtu = mtu
        self._queue: deque[Waiting] | list[Waiting]
        self._push: Callable[[Waiting], object]
        self._pop: Callable[[], Waiting]
        if channel.link.keeps_order:
            self._queue = line = deque[Waiting]()
            self._push, self._pop = line.append, line.popleft
        else:
            self._queue = heap = list[Waiting]()
            self._push, self._pop = partial(heapq.heappush, heap), partial(heapq.heappop, heap)
        self._delivered = 0
        self._delivered_bytes = 0
        self._refused = 0
        self._lateness = [0] * LATENESS_STEPS
        self._late_max = 0.0

    def take(self) -> None:
        """Read what came, up to a batch."""
        source, mtu, admit, push = self.source, self._mtu, self.channel.admit, self._push
        random = self._random
        with suppress(BlockingIOError):
            for _ in range(BATCH):
                packet = os.read(source, mtu)
                self._offered += 1
                for at, is_marked, is_damaged in admit(len(packet), monotonic(), random):
                    copy = damage(packet, random) if is_damaged else packet
                    push((at, self.channel.offered, marked(copy) if is_marked else copy))

    def give(self) -> float:
        """Write what is due, up to a batch; return when to come again."""
        queue, pop, target, lateness = self._queue, self._pop, self._target, self._lateness
        for _ in range(BATCH):
            if not queue:
                return inf
            at = queue[0][0]
            late = monotonic() - at
            if late < 0:
                return at
            packet = pop()[2]
            try:
                self._delivered_bytes += os.write(target(packet), packet)
                self._delivered += 1
            except OSError:
                self._refused += 1
            lateness[min(int(late / LATENESS_STEP_SECONDS), LATENESS_STEPS - 1)] += 1
            self._late_max = max(late, self._late_max)
        return queue[0][0] if queue else inf

    def report(self, unread: int) -> Direction:
        """Return what became of the packets."""
        return Direction(
            offered=self._offered,
            unread=unread,
            delivered=self._delivered,
            delivered_bytes=self._delivered_bytes,
            counts=self.channel.counts,
            refused=self._refused,
            late_seconds_p99=self._late_p99(),
            late_seconds_max=self._late_max,
        )

    def _late_p99(self) -> float:
        rest = sum(self._lateness) / 100
        for step in reversed(range(LATENESS_STEPS)):
            rest -= self._lateness[step]
            if rest < 0:
                return (step + 1) * LATENESS_STEP_SECONDS
        return 0.0


def lines_of(order: Order, files: Sequence[int]) -> Sequence[Line]:
    """Return what carries packets between the devices of some machines, by their files."""
    if len(order.links) == 1:
        channel = Channel(order.links[0])
        by_address = {
            inet_aton(machine.address): file
            for machine, file in zip(order.machines, files, strict=True)
        }

        def addressed(packet: bytes) -> int:
            return by_address.get(packet[DESTINATION], NOWHERE)

        return [Line(file, addressed, channel, order.seed, order.mtu) for file in files]
    (one, two), (there, back) = files, order.links
    return (
        Line(one, lambda _: two, Channel(there), 2 * order.seed, order.mtu),
        Line(two, lambda _: one, Channel(back), 2 * order.seed + 1, order.mtu),
    )


def run(lines: Sequence[Line], stop: int) -> None:
    """Carry packets until the file `stop` ends."""
    by_source = {line.source: line for line in lines}
    files = [*by_source, stop]
    due = inf
    while True:
        readable, _, _ = select(files, (), (), None if due == inf else max(0.0, due - monotonic()))
        if stop in readable:
            return
        for file in readable:
            by_source[file].take()
        due = min([line.give() for line in lines])
        if due > monotonic():
            sleep(NAP_SECONDS)


def hurry() -> None:
    """Be as punctual as the system allows: this is the network, which waits for nobody."""
    gc.disable()  # there are no cycles, and it would look for them all the time
    # Else the kernel adds 50 us to every sleep, to wake up for several things at once.
    Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")
    # Before everything else: else it waits for who is computing, a tick of 4 ms and more.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def dropped_by_device() -> int:
    """Return how many packets the device of this thread's machine had no room for."""
    lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()
    [fields] = [line.split()[1:] for line in lines if line.split()[0] == f"{DEVICE}:"]
    return int(fields[11])  # eight of receiving, then: bytes, packets, errors, dropped


def main() -> None:
    """Do what standard input orders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when it is enough
    order: Order = pickle.load(sys.stdin.buffer)
    lines = lines_of(
        order, [machine.inside(partial(open_tun, DEVICE)) for machine in order.machines]
    )
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    hurry()
    began, cpu_began = monotonic(), process_time()
    run(lines, sys.stdin.fileno())
    unread = [machine.inside(dropped_by_device) for machine in order.machines]
    report = Report(
        directions=[line.report(lost) for line, lost in zip(lines, unread, strict=True)],
        seconds=monotonic() - began,
        cpu_seconds=process_time() - cpu_began,
    )
    pickle.dump(report, sys.stdout.buffer)
