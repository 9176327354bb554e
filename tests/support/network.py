"""A network in one process: virtual time, one seed, one history.

Hosts are the production objects, an `Endpoint` and the application that goes with it, driven as
`gradwire_udp` drives them: whatever arrives and every timer is followed by a turn, in which the
application hears of events and trains of datagrams leave. Between hosts, datagrams are lost,
repeated, damaged, delayed and overtaken, as `support.link` says.

What reaches a host in one instant is read as with GRO: what came from one source, in one size,
is handed over in one piece. With `gro=False` every datagram is handed over alone, and is followed
by a turn of its own; the same has to come of it.

Nothing here reads a clock, and all randomness comes from one `random.Random`, so the same seed
gives the same history; `SimulatedNetwork.trace` is a hash of it.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf
from operator import attrgetter
from random import Random
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from gradwire_protocol import Connection, Endpoint, Event
from gradwire_protocol.connection.train import ECN_MARKED, ECN_NOT, Train
from support.link import IP_UDP_HEADER_BYTES, Channel, Link, damage

__all__ = ["Application", "Channel", "Host", "Link", "Parcel", "SimulatedNetwork", "damage"]

READ_BYTES_MAX: Final = 65_507
READ_DATAGRAMS_MAX: Final = 64
"""What Linux makes one read of."""

HELD_MAX: Final = 256
"""Datagrams that wait for a host that takes none: the buffer of a socket. Later ones are lost."""

SPARE_BYTES: Final = 4
"""What `Endpoint.receive` may write to behind the data."""

ORDINARY: Final = Link()


class Application(Protocol):
    """What sits on top of an endpoint."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None: ...

    def handle_timer(self, now: float) -> None: ...

    def next_timer(self) -> float | None: ...


class Parcel(NamedTuple):
    """A datagram on its way."""

    source: str
    destination: str
    datagram: bytes
    ecn: int


@dataclass(slots=True, eq=False)
class Host:
    """A machine: its address, and what runs on it."""

    address: str
    endpoint: Endpoint
    application: Application
    alive: bool = True
    timer: float | None = None
    held: list[Parcel] = field(default_factory=list)
    """What its network card has not told it of yet."""
    ahead: float = 0.0
    """How far its clock is ahead of the network's; it never goes back."""
    slowness: float = 0.0
    """Whatever it does, it does up to so many seconds late, at random."""
    late: float = 0.0
    """How late its timer fires; it may have been slower when that was set."""
    asleep_until: float = -inf
    """Until then it does nothing, and what arrives waits: `SimulatedNetwork.suspend`."""


def bad_link(random: Random, *, damages: bool = False) -> Link:
    """Draw a network that loses, repeats, delays, reorders, and perhaps damages."""
    return Link(
        delay=random.choice([0.0002, 0.005, 0.05]),
        jitter=random.choice([0.0, 0.001, 0.02]),
        loss=0.02,
        duplication=0.02,
        corruption=random.choice([0.0, 0.01]) if damages else 0.0,
    )


def link_of(random: Random, loss: float = 0.02) -> Link:
    """Draw a network that repeats, delays, reorders, and perhaps loses so much."""
    return Link(
        delay=random.choice([0.0002, 0.005, 0.05]),
        jitter=random.choice([0.0, 0.001, 0.02]),
        loss=random.choice([0.0, loss]),
        duplication=0.02,
    )


class SimulatedNetwork:
    """Hosts and what happens between them.

    Parameters
    ----------
    seed : int
        Determines everything.
    link : Link
        From any host to any other, but where `set_link` says otherwise. Can be replaced while the
        simulation runs. In each direction, each pair of hosts has a queue of its own.
    gro : bool
        Whether what arrives together is read together.
    gro_seconds : float
        With `gro`: how long network cards wait for more before they tell of what came.
    """

    def __init__(
        self, seed: int, link: Link = ORDINARY, *, gro: bool = True, gro_seconds: float = 0.0
    ) -> None:
        self.random = Random(seed)
        self.gro = gro
        self.gro_seconds = gro_seconds
        self.now = 1000.0
        self.counts: Counter[str] = Counter()
        self.on_datagram: Callable[[str, str, bytes], bool] = lambda *_: True
        """Called with source, destination and datagram; returns whether it may pass."""
        self.after_turn: Callable[[Host], None] = lambda _: None
        """Called after every turn of a host: the place for invariants."""
        self._link = link
        self._channels: dict[tuple[str, str], Channel] = {}
        """Of the default link, by source and destination."""
        self._special: dict[tuple[str, str], Channel] = {}
        """Those that `set_link` made."""
        self._hosts: dict[str, Host] = {}
        self._queue: list[tuple[float, int, Parcel | Callable[[], object]]] = []
        self._tiebreak = count()
        self._trace = hashlib.blake2b(digest_size=8)
        # One buffer for all reads, as a driver has: who keeps a part of it will find it changed.
        self._buffer = memoryview(bytearray(READ_BYTES_MAX + SPARE_BYTES))

    @property
    def trace(self) -> str:
        """Return a hash of everything that was delivered, and when."""
        return self._trace.hexdigest()

    @property
    def link(self) -> Link:
        """What happens between hosts for which `set_link` did not say otherwise."""
        return self._link

    @link.setter
    def link(self, link: Link) -> None:
        self._link = link
        for channel in self._channels.values():
            channel.link = link

    def set_link(self, source: str, destination: str, link: Link | Channel) -> Channel:
        """Say what happens from one host to another, in this direction only.

        A `Channel` can be set for several pairs: all of them then share its queue and its rate.
        """
        channel = link if isinstance(link, Channel) else Channel(link)
        self._special[source, destination] = channel
        return channel

    def channel(self, source: str, destination: str) -> Channel:
        """Return what leads from one host to another."""
        pair = (source, destination)
        channel = self._special.get(pair) or self._channels.get(pair)
        if channel is None:
            channel = self._channels[pair] = Channel(self._link)
        return channel

    def add(self, address: str, endpoint: Endpoint, application: Application) -> Host:
        """Connect a host to the network."""
        host = Host(address, endpoint, application)
        self._hosts[address] = host
        self.turn(host)
        return host

    def move(self, host: Host, address: str) -> None:
        """Give a host another address, as a NAT does that has forgotten it; its links stay."""
        del self._hosts[host.address]
        new = {host.address: address}
        for channels in (self._channels, self._special):
            moved = {(new.get(a, a), new.get(b, b)): c for (a, b), c in channels.items()}
            channels.clear()
            channels.update(moved)
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

    def jump_ahead(self, host: Host, seconds: float) -> None:
        """Let a host's clock jump, as that of a laptop does that was closed for a while."""
        host.ahead += seconds
        host.timer = None  # it is due earlier than it was
        self.turn(host)

    def suspend(self, host: Host, seconds: float) -> None:
        """Let a host do nothing for a while; its clock goes on."""
        host.asleep_until = max(host.asleep_until, self.now + seconds)
        self.at(host.asleep_until, lambda: self._read(host))

    def turn(self, host: Host) -> None:
        """Let a host do all it can do at this moment."""
        if not host.alive or self.now < host.asleep_until:
            return
        endpoint, application, now = host.endpoint, host.application, self.now + host.ahead
        while True:
            while (item := endpoint.next_event()) is not None:
                application.handle_event(*item, now)
            train = endpoint.next_train(now)
            if train is None:
                break
            self._send_train(host.address, train)
        self.after_turn(host)
        timer, other = endpoint.next_timer(), application.next_timer()
        if timer is None or (other is not None and other < timer):
            timer = other
        if timer is not None and timer != host.timer:
            host.late = host.slowness * self.random.random() if host.slowness else 0.0
            due = max(timer - host.ahead, self.now) + host.late
            self.at(due, lambda: self._fire(host, timer))
        host.timer = timer

    def send(self, source: str, destination: str, datagram: bytes, ecn: int = ECN_NOT) -> None:
        """Put a datagram on its way."""
        self._put(self.channel(source, destination), Parcel(source, destination, datagram, ecn))

    def run(self, until: Callable[[], bool], *, seconds: float) -> None:
        """Let time pass until a condition holds; fail if it does not within `seconds`."""
        end = self.now + seconds
        while not until():
            assert self._queue, f"at {self.now:.3f} nothing will ever happen any more"
            assert self._queue[0][0] <= end, f"not within {seconds} seconds"
            self._step()

    def run_for(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self._step()
        self.now = end

    def _send_train(self, source: str, train: Train) -> None:
        destination = str(train.address)
        channel = self.channel(source, destination)
        for datagram in train.datagrams():
            self._put(channel, Parcel(source, destination, datagram, train.ecn))

    def _put(self, channel: Channel, parcel: Parcel) -> None:
        source, destination, datagram, ecn = parcel
        counts = self.counts
        counts["sent"] += 1
        counts["bytes"] += len(datagram)
        arrivals = (
            channel.admit(len(datagram) + IP_UDP_HEADER_BYTES, self.now, self.random)
            if self.on_datagram(source, destination, datagram)
            else ()
        )
        if not arrivals:
            counts["lost"] += 1
        elif len(arrivals) > 1:
            counts["repeated"] += len(arrivals) - 1
        for at, is_marked, is_damaged in arrivals:
            arriving = parcel
            if is_marked and ecn != ECN_NOT:
                counts["marked"] += 1
                arriving = arriving._replace(ecn=ECN_MARKED)
            if is_damaged:
                counts["damaged"] += 1
                arriving = arriving._replace(datagram=damage(datagram, self.random))
            heapq.heappush(self._queue, (at, next(self._tiebreak), arriving))

    def _step(self) -> None:
        self.now, _, what = heapq.heappop(self._queue)
        if isinstance(what, Parcel):
            self._arrive(what)
        else:
            what()

    def _arrive(self, parcel: Parcel) -> None:
        host = self._hosts.get(parcel.destination)
        if host is None:
            return
        if len(host.held) >= HELD_MAX:
            self.counts["lost"] += 1
            return
        host.held.append(parcel)
        if self.now < host.asleep_until:
            return  # it reads when it wakes up
        wait = self.gro_seconds if self.gro else 0.0
        if host.slowness:
            wait = host.slowness * self.random.random()
        if wait:
            if len(host.held) == 1:
                self.after(wait, lambda: self._read(host))
            return
        if self.gro:
            self._hold_what_comes_now(host)
        self._read(host)

    def _hold_what_comes_now(self, host: Host) -> None:
        queue = self._queue
        while queue and queue[0][0] == self.now:
            what = queue[0][2]
            if not isinstance(what, Parcel) or what.destination != host.address:
                break
            host.held.append(what)
            heapq.heappop(queue)

    def _read(self, host: Host) -> None:
        if not host.alive or self.now < host.asleep_until:
            return
        held, host.held = host.held, []
        now = self.now + host.ahead
        for run in _runs(held) if len(held) != 1 else (held,):
            source, _, data, ecn = run[0]
            segment = len(data)
            if len(run) > 1:
                data = b"".join([parcel.datagram for parcel in run])
            size = len(data)
            what = f"{self.now!r} {source} {host.address} {segment} {size} {crc32(data)} "
            self._trace.update(what.encode())
            self._buffer[:size] = data
            host.endpoint.receive(self._buffer[:size], segment, source, ecn, now)
        self.turn(host)

    def _fire(self, host: Host, timer: float) -> None:
        if host.timer != timer or not host.alive:
            return  # it has moved since
        if self.now < host.asleep_until:
            self.at(host.asleep_until, lambda: self._fire(host, timer))
            return
        host.timer = None
        # By rounding, the time on its clock could be just before that of the timer, for ever.
        now = max(self.now + host.ahead, timer)
        host.endpoint.handle_timer(now)
        while (item := host.endpoint.next_event()) is not None:
            host.application.handle_event(*item, now)
        host.application.handle_timer(now)
        self.turn(host)


_source = attrgetter("source")


def _runs(parcels: list[Parcel]) -> Iterator[list[Parcel]]:
    """Cut what arrived into reads: of one source and ECN, of one size but for a shorter last."""
    run: list[Parcel] = []
    size = 0
    for parcel in sorted(parcels, key=_source):  # what came from one source stays in order
        length = len(parcel.datagram)
        if run and (
            parcel.source != run[0].source
            or parcel.ecn != run[0].ecn
            or not 0 < length <= len(run[0].datagram)
            or len(run[-1].datagram) != len(run[0].datagram)
            or len(run) == READ_DATAGRAMS_MAX
            or size + length > READ_BYTES_MAX
        ):
            yield run
            run, size = [], 0
        run.append(parcel)
        size += length
    if run:
        yield run
