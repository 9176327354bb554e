"""Snapshots: whole, whatever the order of the blocks, and a few blocks at a time."""

from collections.abc import Callable
from functools import partial
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.kinds import SNAPSHOT_STREAM
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.snapshots import (
    BLOCKS_UNDER_WAY_MAX,
    ELEMENT_BYTES,
    BlockAssembly,
    SnapshotAssembly,
    SnapshotFeed,
    block_span,
    count_blocks,
    expand_block,
)
from support.pair import Pair
from support.puppet import Puppet
from support.wording import naming

BLOCK_BYTES = ELEMENT_BYTES * BLOCK_ELEMENTS


def blocks_of(values: bytes, elements: int) -> list[Snapshot]:
    size = ELEMENT_BYTES * elements
    return [
        Snapshot(at // ELEMENT_BYTES, values[at : at + size]) for at in range(0, len(values), size)
    ]


# Sending.


class Transfer:
    """A snapshot on its way over a network."""

    def __init__(self, feed_of: Callable[[Link], SnapshotFeed], blocks: int) -> None:
        pair = Pair().connect()
        pair.responder.releases = False  # the link does it
        receiving = Link(pair.responder.connection)
        self._pair = pair
        self.complete: list[bool] = []
        """What the feed has said to each delivery."""
        self.feed = feed_of(Link(pair.initiator.connection))
        pair.network.turn(pair.initiator.host)
        pair.network.run(lambda: self._tell_of_deliveries() == blocks, seconds=60)
        self.delivered = sorted(pair.initiator.delivered)
        came = [block for event in pair.responder.messages for block in receiving.receive(event)]
        self.blocks = [block for block in came if isinstance(block, Snapshot)]
        """Those that arrived."""

    def _tell_of_deliveries(self) -> int:
        delivered = len(self._pair.initiator.delivered)
        while len(self.complete) < delivered:
            self.complete.append(self.feed.on_delivered())
        self._pair.network.turn(self._pair.initiator.host)
        return delivered


def test_a_snapshot_arrives_whole() -> None:
    values = Random(1).randbytes(2 * BLOCK_BYTES + 400)
    assembly = SnapshotAssembly(len(values) // ELEMENT_BYTES)

    transfer = Transfer(partial(SnapshotFeed.of_replica, values), 3)

    assert [assembly.accept_block(b) for b in transfer.blocks] == [False, False, True]
    assert bytes(assembly.values) == values
    assert transfer.delivered == [(SNAPSHOT_STREAM, n) for n in range(3)]


def test_no_more_blocks_are_under_way_than_a_few() -> None:
    connection = Puppet().connection
    values = memoryview(bytes(12 * BLOCK_BYTES - 40))

    feed = SnapshotFeed.of_replica(values, Link(connection))
    queued = [round(connection.bytes_queued / BLOCK_BYTES, 3)]
    complete = []
    for _ in range(12):
        complete.append(feed.on_delivered())
        queued.append(round(connection.bytes_queued / BLOCK_BYTES, 3))

    # Nothing leaves the queue here: this is what was handed over in all.
    under_way = [handed - i for i, handed in enumerate(queued)]
    assert under_way == [2, 3, 4, 5, 6, 7, 6, 5, 4, 3, 2, 1, 0]
    assert complete == [False] * 11 + [True]


def test_a_long_snapshot_has_as_much_under_way_as_a_fast_path_needs() -> None:
    feed = SnapshotFeed(lambda number: bytes(4), range(100), Link(Puppet().connection))

    for _ in range(50):
        feed.on_delivered()

    assert feed.nbytes == BLOCKS_UNDER_WAY_MAX * Snapshot.BYTES_MAX


@pytest.mark.parametrize("elements", [1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1])
def test_blocks_follow_each_other_without_a_gap(elements: int) -> None:
    spans = [block_span(number, elements) for number in range(count_blocks(elements))]

    assert [i for span in spans for i in (span.start, span.stop)][1:-1] == [
        BLOCK_ELEMENTS for _ in range(2 * (len(spans) - 1))
    ]
    assert (spans[0].start, spans[-1].stop) == (0, elements)


def test_only_the_blocks_that_were_asked_for_are_sent() -> None:
    sent = []

    def block(number: int) -> bytes:
        sent.append(number)
        return bytes([number]) * BLOCK_BYTES

    transfer = Transfer(partial(SnapshotFeed, block, [2, 0]), 2)
    assembly = BlockAssembly(3 * BLOCK_ELEMENTS, [0, 2])

    assert sent == [2, 0]
    assert transfer.complete == [False, True]
    assert [assembly.accept_block(b) for b in transfer.blocks] == [False, True]
    assert assembly.values == {0: bytes(BLOCK_BYTES), 2: b"\2" * BLOCK_BYTES}


# Receiving.


def test_a_block_is_unpacked_to_as_many_elements_as_it_has() -> None:
    asked = []

    def unpack(values: bytes, elements: int) -> bytes:
        asked.append((values, elements))
        return 4 * elements * values

    block = expand_block(Snapshot(BLOCK_ELEMENTS, b"a"), BLOCK_ELEMENTS + 2, unpack)
    beyond = expand_block(Snapshot(5 * BLOCK_ELEMENTS, b"a"), BLOCK_ELEMENTS + 2, unpack)

    assert asked == [(b"a", 2)]
    assert block == Snapshot(BLOCK_ELEMENTS, 8 * b"a")
    with pytest.raises(InvalidMessageError, match="the replica has"):
        SnapshotAssembly(BLOCK_ELEMENTS + 2).accept_block(beyond)


def test_a_block_that_cannot_be_unpacked_is_refused() -> None:
    def unpack(values: bytes, elements: int) -> bytes:
        raise ValueError("no block")

    with pytest.raises(InvalidMessageError, match="Snapshot: no block"):
        expand_block(Snapshot(0, b"a"), 1, unpack)


def test_a_block_that_nobody_asked_for_is_refused_and_the_second_of_two_changes_nothing() -> None:
    assembly = BlockAssembly(2 * BLOCK_ELEMENTS + 1, [2])

    with pytest.raises(InvalidMessageError, match=naming("block 0", "not asked")):
        assembly.accept_block(Snapshot(0, bytes(BLOCK_BYTES)))
    with pytest.raises(InvalidMessageError, match=naming(BLOCK_ELEMENTS, 4, "blocks")):
        assembly.accept_block(Snapshot(BLOCK_ELEMENTS, bytes(4)))
    complete = [
        assembly.accept_block(Snapshot(2 * BLOCK_ELEMENTS, 4 * value)) for value in (b"a", b"b")
    ]

    assert complete == [True, True]
    assert assembly.values == {2: b"aaaa"}


@given(
    seed=st.integers(0, 2**32),
    elements=st.integers(1, 50),
    size=st.integers(1, 50),
    shuffle=st.randoms(use_true_random=False),
)
def test_blocks_make_up_the_replica_in_whatever_order_they_come(
    seed: int, elements: int, size: int, shuffle: Random
) -> None:
    """Add every block twice, in any order; it is complete from the last new one on."""
    values = Random(seed).randbytes(ELEMENT_BYTES * elements)
    blocks = blocks_of(values, size) * 2
    shuffle.shuffle(blocks)
    assembly, came = SnapshotAssembly(elements), set[int]()

    for block in blocks:
        with patch("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", size):
            complete = assembly.accept_block(block)

        came |= {*range(block.start, block.start + len(block.values) // ELEMENT_BYTES)}
        assert assembly.elements_received == len(came)
        assert complete == (len(came) == elements)

    assert bytes(assembly.values) == values


@pytest.mark.parametrize(
    ("block", "named"),
    [
        (Snapshot(8, bytes(12)), ("12 bytes", 8, 10)),
        (Snapshot(10, bytes(4)), ("4 bytes", 10)),
        (Snapshot(0, bytes(5)), ("5 bytes", 0)),
        (Snapshot(0, bytes(36)), ("36 bytes", 0, BLOCK_ELEMENTS)),
        (Snapshot(4, bytes(24)), ("24 bytes", 4, BLOCK_ELEMENTS)),
    ],
)
def test_a_block_that_does_not_fit_is_refused(block: Snapshot, named: tuple[object, ...]) -> None:
    assembly = SnapshotAssembly(10)

    with pytest.raises(InvalidMessageError, match=naming(*named)):
        assembly.accept_block(block)

    assert assembly.elements_received == 0


def test_the_second_of_two_blocks_for_one_place_changes_nothing() -> None:
    assembly = SnapshotAssembly(2)

    complete = [assembly.accept_block(Snapshot(0, 8 * value)) for value in (b"a", b"b")]

    assert complete == [True, True]
    assert assembly.values == 8 * b"a"


def test_an_assembly_begins_again_in_the_same_memory() -> None:
    values = b"a" * (BLOCK_BYTES + 8)
    assembly = SnapshotAssembly(BLOCK_ELEMENTS + 2)
    memory = assembly.values
    first, last = blocks_of(values, BLOCK_ELEMENTS)
    assembly.accept_block(first)
    assembly.accept_block(last)

    assembly.restart()

    assert assembly.values is memory
    assert not any(memory)
    assert not assembly.accept_block(last)
    assert assembly.elements_received == 2
    assert assembly.accept_block(first)
    assert memory == values
