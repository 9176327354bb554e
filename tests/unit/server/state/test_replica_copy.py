"""`ReplicaCopy`: whatever happens to the replica meanwhile, blocks are those of one moment."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_codecs import BlockDigests, Replica, Update, unpack_block
from gradwire_codecs.format.update import DenseUpdate
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.snapshots import block_span, count_blocks
from gradwire_server.state.replica_copy import (
    HIT_BYTES,
    KEPT_SHARE,
    UPDATES_MAX,
    ReplicaCopy,
)
from support.wording import naming

ELEMENTS: Final = 3 * BLOCK_ELEMENTS + 1000
BLOCKS: Final = count_blocks(ELEMENTS)
INT32: Final = np.iinfo(np.int32)


def copy_of(replica: Replica) -> ReplicaCopy:
    digests = BlockDigests.of(replica.values, BLOCK_ELEMENTS).values
    layout = Layout((Tensor("weights", (len(replica),)),))
    return ReplicaCopy(replica.values, 1, {0: 1}, digests, layout)


def new_replica(seed: int) -> Replica:
    """Return any values: some are near the ends of the range, and updates wrap them around."""
    random = np.random.default_rng(seed)
    return Replica(random.integers(INT32.min, INT32.max, ELEMENTS, np.int32, endpoint=True))


def sparse_update(seed: int, density: float) -> Update:
    random = np.random.default_rng(seed)
    start, stop = sorted(random.choice(ELEMENTS + 1, 2, replace=False).tolist())
    hits = np.flatnonzero(random.random(stop - start) < density).astype(np.uint32)
    count = random.choice(np.array([-2, -1, 1, 2], np.int32), hits.size)
    return Update(start, stop, 1000, hits + np.uint32(start), count)


def dense_update(seed: int) -> Update:
    random = np.random.default_rng(seed)
    start, stop = sorted(random.choice(ELEMENTS + 1, 2, replace=False).tolist())
    return DenseUpdate(start, stop, 1000, random.integers(-127, 128, stop - start, np.int8))


sparse = st.builds(sparse_update, st.integers(0, 2**32), st.sampled_from([0.0, 1e-4, 0.01, 0.3]))
dense = st.builds(dense_update, st.integers(0, 2**32))
blocks = st.integers(0, BLOCKS - 1)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.lists(sparse | dense | blocks, max_size=12))
def test_blocks_are_those_of_the_moment_of_the_copy(
    seed: int, steps: Sequence[Update | int]
) -> None:
    replica = new_replica(seed)
    before = replica.values.copy()
    copy = copy_of(replica)
    for step in [*steps, *range(BLOCKS)]:
        if isinstance(step, int):
            span = block_span(step, ELEMENTS)
            values = unpack_block(copy.block(step), span.stop - span.start)
            assert values == before[span].tobytes()
        else:
            replica.apply(step)
            copy.on_update(step)


def test_updates_are_kept_until_the_copy_is_complete_which_takes_a_bounded_number_of_them() -> None:
    replica = new_replica(0)
    copy = copy_of(replica)
    for i in range(UPDATES_MAX):
        update = sparse_update(i, 0.0)
        replica.apply(update)
        copy.on_update(update)
    assert copy.is_complete
    assert not copy._since


@pytest.mark.parametrize("density", [0.01, 0.05, 0.5, 1.0])
def test_a_copy_keeps_few_hits_beside_what_it_has_copied(density: float) -> None:
    replica = new_replica(1)
    copy = copy_of(replica)
    for seed in range(8):
        update = sparse_update(seed, density)
        replica.apply(update)
        copy.on_update(update)
        kept = sum(HIT_BYTES * each.hits for each in copy._since)
        assert kept <= KEPT_SHARE * replica.values.nbytes


def test_a_copy_whose_replica_does_not_change_copies_only_what_is_asked_for() -> None:
    copy = copy_of(new_replica(2))
    copy.block(1)
    copy.block(1)
    assert list(copy._missing) == [number for number in range(BLOCKS) if number != 1]


def test_a_block_that_is_damaged_is_named(caplog: pytest.LogCaptureFixture) -> None:
    replica = new_replica(3)
    copy = copy_of(replica)
    replica.values[BLOCK_ELEMENTS + 5] ^= 1 << 20
    for number in range(BLOCKS):
        copy.block(number)

    span = (f"weights[{BLOCK_ELEMENTS}]", f"weights[{2 * BLOCK_ELEMENTS - 1}]")
    assert caplog.messages == [naming("block 1", *span)]
