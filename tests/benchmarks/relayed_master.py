"""What a master spends where relays stand before it, without any sockets.

As in `scaling`, the `Runs` of a daemon on their `Endpoint` are timed in virtual time. Before them
stand relays that say what relays say: that peers have come, what these say to join, sums of their
updates, and what has reached them. What a relay itself spends is not looked at.
"""

import os
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks.scaling import TimedMaster
from benchmarks.workers import QUANTUM_EXPONENT
from gradwire_codecs import Update, decode
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merged_sum import merge
from gradwire_protocol import Connected, Connection, Event, MessageReceived
from gradwire_protocol.messages.admission import CODEC_VERSION, Join
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import CONTROL_STREAM, Kind
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.link import Link, Message, UpdateReceived
from gradwire_protocol.messages.masters.relaying import (
    Arrived,
    Carried,
    Feed,
    Merged,
    Opened,
    PeerSpan,
    Reached,
    Relaying,
    Taken,
)

ALIKE: Final = 0.5
"""Part of the elements of an update that all workers change in a step: those of the largest
gradients are the same for many."""


@dataclass(eq=False)
class ScriptedRelay:
    """What stands before the master: a relay of so many peers."""

    connection: Connection
    peers: int
    layout: Layout
    link: Link = field(init=False)
    ranks: dict[int, int] = field(default_factory=dict)
    """By peer."""
    feeds: int = 0
    sums: int = 0
    taken: int = 0
    results: int = 0

    def __post_init__(self) -> None:
        """Begin to speak."""
        self.link = Link(self.connection)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        """Act as a relay would."""
        del connection, now
        if isinstance(event, Connected):
            self.link.send(Relaying("127.0.0.1:1", "127.0.0.1:2"))
            for peer in range(self.peers):
                self._join(peer)
        elif isinstance(event, MessageReceived):
            for message in self.link.receive(event):
                self._receive(message)

    def _join(self, peer: int) -> None:
        worker_id = os.urandom(WORKER_ID_BYTES)
        join = Join(None, worker_id, f"peer{peer}", None, CODEC_VERSION, QUANTUM_EXPONENT,
                    self.layout)  # fmt: skip
        self.link.send(Opened(peer, None, None))
        self.link.send_carried(Carried(peer, CONTROL_STREAM, 0, Kind.JOIN, join.pack()))

    def _receive(self, message: Message) -> None:
        match message:
            case Carried(peer, stream, number):
                self.link.send(Arrived(peer, stream, number))
            case Feed():
                self.ranks[message.peer] = message.rank
                self.feeds += 1
            case Taken():
                assert message.done
                self.taken += 1
            case UpdateReceived():
                self.connection.release(message.charge)
                self.results += 1
                versions = {message.rank: message.update.sequence}
                self.link.send(Reached(self.feeds, versions, keeps_replica=False))

    def send_sum(self, body: bytes) -> None:
        """Send the sum of one update of each peer."""
        spans = tuple(
            PeerSpan(peer, rank, self.sums, self.sums + 1) for peer, rank in self.ranks.items()
        )
        self.sums += 1
        clocks = dict.fromkeys(self.ranks.values(), self.sums)
        self.link.send_merged(Merged(self.sums, 0, 1, spans, len(spans), 0, clocks, body))


class RelayedMaster(TimedMaster):
    """A master, whose time is taken, and relays with as many peers each.

    Parameters
    ----------
    relays, peers : int
    elements : int
        Of the run's parameters.
    """

    def __init__(self, relays: int, peers: int, elements: int) -> None:
        super().__init__(1, elements, topology="tree", workers_max=relays * peers + 1)
        layout = Layout((Tensor("weights", (elements,)),))
        self.relays: list[ScriptedRelay] = []
        with self.untold():
            for _ in range(relays):
                connection = self.connect()
                relay = ScriptedRelay(connection, peers, layout)
                self.relays.append(relay)
                self.hear(connection, relay)
                while relay.feeds < peers:
                    self.pass_time()

    def step(self, bodies: list[bytes]) -> None:
        """Let all relays send a sum at once, and wait until all have all of them."""
        for relay, body in zip(self.relays, bodies, strict=True):
            relay.send_sum(body)
        while any(relay.taken < relay.sums for relay in self.relays) or self.owes:
            self.pass_time()

    @property
    def owes(self) -> bool:
        """Whether something was taken that not all relays have back."""
        run = self.run
        assert run.rounds is not None
        return run.rounds.opened_at is not None or run.relay.unstable > 0


def sums_of(body: bytes, elements: int, relays: int, peers: int) -> list[bytes]:
    """Return what relays send: each the sum of updates like this one, of so many peers."""
    updates = alike_updates(body, elements, relays * peers)
    sums = [merge(updates[i : i + peers], elements) for i in range(0, len(updates), peers)]
    return [pack_update(each) for [each] in sums]


def alike_updates(body: bytes, elements: int, workers: int) -> list[Update]:
    """Return updates as large as this one, one of each worker in a step."""
    random = np.random.default_rng(1)
    update = decode(body, elements)
    alike = random.choice(elements, round(ALIKE * update.hits), replace=False)

    def another() -> Update:
        rest = random.choice(elements, update.hits - len(alike), replace=False)
        index = np.union1d(alike, rest).astype(np.uint32)
        count = random.choice(np.array([-1, 1], np.int32), len(index))
        return Update(0, elements, update.multiple, index, count)

    return [another() for _ in range(workers)]
