"""What a relay keeps of what passes through it, in whatever order that comes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update, pack_block, unpack_block
from gradwire_codecs.format.update import split_update
from gradwire_protocol import ShapedMessage
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.kinds import CONTROL_STREAM, SNAPSHOT_STREAM, WORKERS_MAX, Kind
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.link import Link, UpdateReceived
from gradwire_protocol.messages.masters.relaying import Carried, Feed
from gradwire_protocol.messages.modes.mode import parse_mode
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.config import MasterConfig
from gradwire_server.intermediary.kept_replica import KeptReplica
from gradwire_server.intermediary.peers import Peer
from gradwire_server.intermediary.results import Results
from support.puppet import Puppet

ELEMENTS = 10
RANK = WORKERS_MAX
MODE = parse_mode("sharing(merged=True)")
FIRST = np.arange(ELEMENTS, dtype=np.int32)


class Sent:
    """What a peer was sent."""

    identity = None

    def __init__(self) -> None:
        self.blocks: list[tuple[int, np.ndarray[Any, Any]]] = []

    def send(self, stream: int, number: int, kind: int, payload: bytes, priority: object) -> None:
        del priority
        assert (stream, kind) == (SNAPSHOT_STREAM, Kind.SNAPSHOT)
        values = unpack_block(Snapshot.parse(payload).values, ELEMENTS)
        self.blocks.append((number, np.frombuffer(values, "<i4")))

    def relay(self, message: object, priority: object) -> None: ...


class Relayed:
    """A relay that keeps a replica, as far as that goes."""

    def __init__(self) -> None:
        self.kept = KeptReplica()
        self.results = Results(MasterConfig(), self.kept)
        self.up = Puppet().connection
        self.peers: list[Peer] = []
        self.sent: list[Sent] = []

    def add_peer(self) -> Peer:
        """Let a peer come."""
        self.sent.append(Sent())
        peer = Peer(len(self.peers), Link(self.sent[-1]))  # type: ignore[arg-type]
        self.peers.append(peer)
        return peer

    def carry(self, peer: Peer, kind: Kind, payload: bytes, number: int = 1) -> bool:
        stream = CONTROL_STREAM if kind is Kind.WELCOME else SNAPSHOT_STREAM
        carried = Carried(peer.number, stream, number, kind, payload)
        return self.kept.take(self.results.run, peer, carried, feeds=self.results.feeds_any)

    def welcome(self, peer: Peer, **said: Any) -> None:
        layout = Layout((Tensor("parameters", (ELEMENTS,)),))
        said = {"founder": False, **said}
        welcome = Welcome("run", peer.number, 0, -24, layout, (), versions={}, mode=MODE, **said)
        self.carry(peer, Kind.WELCOME, welcome.pack())

    def block(self, peer: Peer, values: bytes | None = None, number: int = 1) -> bool:
        packed = bytes(pack_block(FIRST)) if values is None else values
        return self.carry(peer, Kind.SNAPSHOT, Snapshot(0, packed).pack(), number)

    def feed(self, peer: Peer, after: int, *, begins: bool) -> None:
        versions = {RANK: after} if after else {}
        feed = Feed(
            peer.number, peer.number, 0, versions, observes=False, begins=begins, run="run",
            elements=ELEMENTS, mode=MODE, results=RANK,
        )  # fmt: skip
        if begins:
            self.results.begin(feed, self.up, 0.0)
        run = self.results.note_feed(feed)
        peer.floor = versions
        assert self.results.feed(run, self.results.add(run, peer, feed), versions, 0.0)
        self.kept.note_fed(run, peer)

    def result(self, sequence: int) -> None:
        """Let a result come: it adds its number to the element of that number."""
        update = Update(
            0, ELEMENTS, 1, np.array([sequence], np.uint32), np.array([sequence], np.int32)
        )
        [body] = split_update(update, 1_000)
        encoded = EncodedUpdate(sequence, 0, body)
        message = ShapedMessage.of(RANK, sequence, Kind.UPDATE, encoded.pack(), 1000)
        self.results.receive(UpdateReceived(RANK, encoded, message, 0), self.up, 0.0)

    def fill(self, peer: Peer) -> bool:
        assert self.results.run is not None
        return self.kept.fill(self.results.run, peer)


def with_results(*sequences: int) -> list[int]:
    values = FIRST.copy()
    for sequence in sequences:
        values[sequence] += sequence
    return values.tolist()


def complete() -> Relayed:
    """Return a relay that has the replica after its first result, which its first peer brought."""
    relay = Relayed()
    peer = relay.add_peer()
    relay.welcome(peer)
    relay.feed(peer, 1, begins=True)
    relay.block(peer)
    assert relay.kept.is_complete
    return relay


@given(st.permutations(["block", "feed", 2, 3]))
def test_a_snapshot_and_the_results_after_it_come_in_any_order(order: list[str | int]) -> None:
    relay = Relayed()
    first, peer, later = relay.add_peer(), relay.add_peer(), relay.add_peer()
    relay.feed(first, 0, begins=True)
    relay.result(1)
    relay.welcome(peer)
    for what in order:
        if isinstance(what, int):
            relay.result(what)
        elif what == "feed":
            relay.feed(peer, 1, begins=False)
        else:
            assert not relay.block(peer)

    assert relay.kept.is_complete
    assert relay.block(later, b"", number=7)
    relay.feed(later, 2, begins=False)
    relay.result(4)
    assert relay.fill(later)
    [(number, values)] = relay.sent[later.number].blocks
    assert number == 7
    assert values.tolist() == with_results(2)


def test_a_block_waits_for_the_results_that_it_contains() -> None:
    relay = complete()
    later = relay.add_peer()
    relay.block(later, b"")
    relay.feed(later, 1, begins=False)
    later.floor = {RANK: 2}

    assert relay.fill(later)
    assert not relay.sent[later.number].blocks
    relay.result(2)
    assert relay.fill(later)

    assert [values.tolist() for _, values in relay.sent[later.number].blocks] == [with_results(2)]


@pytest.mark.parametrize(
    "said",
    [{"founder": True}, {"resumed": True}, {"compares": True}],
    ids=lambda said: next(iter(said)),
)
def test_blocks_of_which_the_peer_has_some_are_not_kept(said: dict[str, bool]) -> None:
    relay = Relayed()
    peer = relay.add_peer()
    relay.welcome(peer, **said)
    relay.feed(peer, 1, begins=True)
    relay.block(peer)

    assert not relay.kept.is_complete


def test_a_snapshot_of_which_a_block_came_before_its_welcome_is_not_kept_but_the_next_one() -> None:
    relay = Relayed()
    peer, other = relay.add_peer(), relay.add_peer()
    relay.block(peer)
    relay.welcome(peer)
    relay.feed(peer, 1, begins=True)
    relay.block(peer)
    assert not relay.kept.is_complete

    relay.welcome(other)
    relay.block(other)
    relay.feed(other, 1, begins=False)

    assert relay.kept.is_complete


def test_a_peer_that_is_lost_with_half_of_it_is_followed_by_another_one() -> None:
    relay = Relayed()
    peer, other = relay.add_peer(), relay.add_peer()
    relay.welcome(peer)
    relay.block(peer)
    relay.kept.forget(peer)

    relay.welcome(other)
    relay.block(other)
    relay.feed(other, 1, begins=True)

    assert relay.kept.is_complete


def test_what_is_kept_is_out_of_date_when_results_begin_again() -> None:
    relay = complete()
    [peer] = relay.peers
    assert peer.member is not None
    relay.results.remove(peer.member)
    relay.kept.forget(peer)
    later = relay.add_peer()
    relay.block(later, b"")
    relay.feed(later, 9, begins=True)

    assert not relay.kept.is_complete
    assert not relay.fill(later)


def test_a_block_beyond_the_replica_is_nowhere() -> None:
    relay = complete()
    later = relay.add_peer()
    relay.carry(later, Kind.SNAPSHOT, Snapshot(2**18, b"").pack())
    relay.feed(later, 1, begins=False)

    assert not relay.fill(later)


def test_the_parent_is_told_when_there_is_a_replica() -> None:
    relay = complete()

    reached = relay.results.take_reached(1.0)

    assert reached is not None
    assert reached.keeps_replica
