"""A network in one process: virtual time, one seed, one history.

Hosts are the production objects, an `Endpoint` and the application that goes with it, driven as
`gradwire_udp` drives them: every datagram that arrives and every timer is followed by a turn, in
which the application hears of events and datagrams leave. Between hosts, datagrams are lost,
repeated, damaged, delayed and overtaken, as `Link` says.

Nothing here reads a clock, and all randomness comes from one `random.Random`, so the same seed
gives the same history; `SimulatedNetwork.trace` is a hash of it.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Protocol

from gradwire_protocol import Connection, Endpoint, Event


class Application(Protocol):
    """What sits on top of an endpoint."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None: ...

    def handle_timer(self, now: float) -> None: ...

    def next_timer(self) -> float | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What happens to a datagram on its way. Times in seconds, the rest are probabilities."""

    delay: float = 0.010
    jitter: float = 0.0
    """Up to this is added to the delay, at random: datagrams overtake each other."""
    loss: float = 0.0
    duplication: float = 0.0
    corruption: float = 0.0
    """A bit is flipped, or the end is cut off, or something is appended."""


@dataclass(slots=True, eq=False)
class Host:
    """A machine: its address, and what runs on it."""

    address: str
    endpoint: Endpoint
    application: Application
    alive: bool = True
    timer: float | None = None


class SimulatedNetwork:
    """Hosts and what happens between them.

    Parameters
    ----------
    seed : int
        Determines everything.
    link : Link
        Between any two hosts; can be replaced while the simulation runs.
    """

    def __init__(self, seed: int, link: Link = Link()) -> None:
        self.random = Random(seed)
        self.link = link
        self.now = 1000.0
        self.counts: Counter[str] = Counter()
        self.on_datagram: Callable[[str, str, bytes], bool] = lambda *_: True
        """Called with source, destination and datagram; returns whether it may pass."""
        self.after_turn: Callable[[Host], None] = lambda _: None
        """Called after every turn of a host: the place for invariants."""
        self._hosts: dict[str, Host] = {}
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._tiebreak = count()
        self._trace = hashlib.blake2b(digest_size=8)

    @property
    def trace(self) -> str:
        """Return a hash of everything that was delivered, and when."""
        return self._trace.hexdigest()

    def add(self, address: str, endpoint: Endpoint, application: Application) -> Host:
        """Connect a host to the network."""
        host = Host(address, endpoint, application)
        self._hosts[address] = host
        self.turn(host)
        return host

    def move(self, host: Host, address: str) -> None:
        """Give a host another address, as a NAT does that has forgotten it."""
        del self._hosts[host.address]
        host.address = address
        self._hosts[address] = host

    def kill(self, host: Host) -> None:
        """Stop a host without a word."""
        host.alive = False
        del self._hosts[host.address]

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Do something at a time."""
        heapq.heappush(self._queue, (when, next(self._tiebreak), action))

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Do something later."""
        self.at(self.now + delay, action)

    def turn(self, host: Host) -> None:
        """Let a host do all it can do at this moment."""
        if not host.alive:
            return
        endpoint, application = host.endpoint, host.application
        while True:
            while (item := endpoint.next_event()) is not None:
                application.handle_event(*item, self.now)
            datagrams = endpoint.datagrams_to_send(self.now)
            if not datagrams:
                break
            for datagram, address in datagrams:
                self.send(host.address, str(address), datagram)
        self.after_turn(host)
        timers = [t for t in (endpoint.next_timer(), application.next_timer()) if t is not None]
        timer = min(timers, default=None)
        if timer is not None and timer != host.timer:
            self.at(max(timer, self.now), lambda: self._fire(host, timer))
        host.timer = timer

    def send(self, source: str, destination: str, datagram: bytes) -> None:
        """Put a datagram on its way."""
        self.counts["sent"] += 1
        self.counts["bytes"] += len(datagram)
        random, link = self.random, self.link
        if not self.on_datagram(source, destination, datagram) or random.random() < link.loss:
            self.counts["lost"] += 1
            return
        copies = 2 if random.random() < link.duplication else 1
        self.counts["repeated"] += copies - 1
        for _ in range(copies):
            arriving = datagram
            if random.random() < link.corruption:
                self.counts["damaged"] += 1
                arriving = damage(datagram, random)
            delay = link.delay + random.random() * link.jitter
            self.after(delay, lambda d=arriving: self._deliver(source, destination, d))  # type: ignore[misc]

    def run(self, until: Callable[[], bool], *, seconds: float) -> None:
        """Let time pass until a condition holds; fail if it does not within `seconds`."""
        end = self.now + seconds
        while not until():
            assert self._queue, f"at {self.now:.3f} nothing will ever happen any more"
            assert self._queue[0][0] <= end, f"not within {seconds} seconds"
            self.now, _, action = heapq.heappop(self._queue)
            action()

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    def _deliver(self, source: str, destination: str, datagram: bytes) -> None:
        host = self._hosts.get(destination)
        if host is None:
            return
        self._trace.update(f"{self.now!r} {source} {destination} ".encode() + datagram)
        host.endpoint.receive_datagram(datagram, source, self.now)
        self.turn(host)

    def _fire(self, host: Host, timer: float) -> None:
        if host.timer != timer or not host.alive:
            return  # it has moved since
        host.timer = None
        host.endpoint.handle_timer(self.now)
        while (item := host.endpoint.next_event()) is not None:
            host.application.handle_event(*item, self.now)
        host.application.handle_timer(self.now)
        self.turn(host)


def damage(datagram: bytes, random: Random) -> bytes:
    """Return a datagram that something went wrong with."""
    kind = random.randrange(3)
    if kind == 0:
        damaged = bytearray(datagram)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        return bytes(damaged)
    if kind == 1:
        return datagram[: random.randrange(len(datagram))]
    return datagram + random.randbytes(random.randrange(1, 20))
