"""Compile every kernel, or load it from the cache, before the first training step needs it."""

from base64 import b85decode
from collections.abc import Iterator
from typing import Final
from zlib import decompress

import numpy as np

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.feedback.feedback import BYTES_MAX
from gradwire_codecs.feedback.host_feedback import HostFeedback, LocalFeedback, SharedFeedback
from gradwire_codecs.format.block_packing import pack_block, unpack_block
from gradwire_codecs.format.byte_counts import COUNT_MAX
from gradwire_codecs.format.update import ELEMENTS_MAX, DenseUpdate, Update, decode, pack_update
from gradwire_codecs.kernels.compiling import compiling_alone
from gradwire_codecs.replica.digests import BlockDigests, digest_of
from gradwire_codecs.replica.merging import merge
from gradwire_codecs.replica.outer_step import OuterSum, look_ahead
from gradwire_codecs.replica.replica import Replica
from gradwire_codecs.replica.round_sum import RoundSum

KINDS: Final = (LocalFeedback, SharedFeedback)

EXAMPLES: Final = (
    b"c-mv&V`gA&XlP(!VLG6B@E9}0Wfq1P>_7pI7wn7*FXT0Yw(M9j)M<tSCWZy_j46z%E(Z=%1iIS^1NH+UEDRT!!8X#z!ebX"
    b"H0~;3;2FeVXtPClPDf9pU@fKvc"
)
"""Updates in each of the formats: with these, a process can compile what reads updates while
another one compiles what writes them."""


def warm_up() -> None:
    """Run every kernel once on a few elements.

    It takes seconds the first time gradwire runs on a machine, and hundredths of a second after.
    Of several processes, one compiles, and the others wait for it; a second core compiles as well.
    """
    with compiling_alone(helper="from gradwire_codecs.warm_up import read_examples as f; f()"):
        # First what writes, for both kinds: `read_examples` is at the rest meanwhile.
        written = [
            (kind, *_write(kind, change, multiple))
            for kind in KINDS
            for change, multiple in _changes()
        ]
        written_examples()
        for kind in KINDS:
            _contribute(kind)
        for kind, mine, bodies in written:
            _share(kind, mine, bodies)


def warm_up_optimizers() -> None:
    """Run the kernels of a master's optimizers once."""
    # Imported here: only masters of some runs need these kernels.
    from gradwire_codecs.replica.optimizer_rules import Rule
    from gradwire_codecs.replica.optimizer_sum import OptimizerSum

    for rule in (Rule("sgd", momentum=0.9), Rule("adagrad"), Rule("rmsprop"), Rule("adam")):
        total = OptimizerSum(4, [(0, 4)], rule, lambda step: 0.0, -30)
        total.begin_with(Replica.zeros(total.length))
        index, counts = np.arange(4, dtype=np.uint32), np.ones(4, np.int8)
        for update in (
            Update(0, 4, 1, index, counts.astype(np.int32)),
            DenseUpdate(0, 4, 1, counts),
        ):
            total.add(update)
            total.take_mean(1, COUNT_MAX)
            total.take_mean(1, None)


def read_examples() -> None:
    """Run the kernels that read, without those that write: they may be under way elsewhere."""
    for body in examples_of(EXAMPLES):
        update = decode(body, ELEMENTS_MAX)
        replica = Replica.zeros(update.stop)
        _read(replica, BlockDigests.of(replica.values, update.stop), update, body)
        for kind in KINDS:
            _receive(
                kind(np.zeros(update.stop, np.float32), Replica.zeros(update.stop)), update, body
            )


def examples_of(text: bytes) -> Iterator[bytes]:
    """Yield the updates of `EXAMPLES`, of which each has its size before it, in two bytes."""
    packed = decompress(b85decode(text))
    while packed:
        size = int.from_bytes(packed[:2], "big")
        body, packed = packed[2 : 2 + size], packed[2 + size :]
        yield body


def written_examples() -> list[bytes]:
    """Return updates of elements with larger magnitudes, in the formats LISTED, EVERY and BYTES."""
    index, count = np.arange(0, 4000, 40, dtype=np.uint32), np.ones(100, np.int32)
    bodies = []
    for larger in (1, 100):
        count[:larger] = 100
        bodies.append(pack_update(Update(0, 4000, 1, index, count)))
    bodies.append(pack_update(DenseUpdate(0, 100, 1, count.astype(np.int8))))
    return bodies


def _changes() -> list[tuple[Float32Array, int]]:
    """Return changes and the multiples of the quantum that they are encoded with."""
    few = np.array([1.0, -1.0, 0.0, 2.0, 0.5], np.float32)
    # Most hits have magnitude 1, some a larger one: the format LISTED.
    some = np.zeros(4000, np.float32)
    some[::10], some[::1000] = 0.25, 1.0
    # Every element is a hit: the format DENSE.
    all_ = np.ones(1000, np.float32)
    return [(few, 2**22), (few, 2**24), (some, 2**22), (all_, 2**24)]


def _write(
    kind: type[HostFeedback], change: Float32Array, multiple: int
) -> tuple[HostFeedback, list[bytes]]:
    mine = kind(change, Replica.zeros(len(change)))
    return mine, [bytes(body) for body in mine.encode(multiple)]


def _contribute(kind: type[HostFeedback]) -> None:
    """Do what workers and a master do in a round."""
    mine = kind(np.ones(1000, np.float32), Replica.zeros(1000))
    bodies = encode_dense(mine, [(0, 1000)], COUNT_MAX, bytes_max=BYTES_MAX)
    _share(kind, mine, bodies)


def _share(kind: type[HostFeedback], mine: HostFeedback, bodies: list[bytes]) -> None:
    """Do what workers and a master do with what one feedback has encoded."""
    elements = len(mine.replica)
    theirs = kind(np.zeros(elements, np.float32), Replica.zeros(elements))
    replica = Replica.zeros(elements)
    digests = BlockDigests.of(replica.values, elements)
    for body in bodies:
        update = decode(body, ELEMENTS_MAX)
        merge([update, update], elements)
        _read(replica, digests, update, body)
        _receive(theirs, update, body)
    theirs.apply_sum(mine.replica.values)
    theirs.correct_replica(mine.replica.values)
    before = theirs.residual()
    theirs.add_growth(before, np.float32(0.5))
    theirs.read_residual(before)
    theirs.drop_residual()


def _read(replica: Replica, digests: BlockDigests, update: Update, body: bytes) -> None:
    """Do what a master does with an update."""
    assert len(update.index) == update.hits
    replica.first_outside(update)
    digests.add(update)
    replica.apply(update)
    replica.apply(body)
    digest_of(replica.values)
    unpack_block(pack_block(replica.values), len(replica.values))
    elements = len(replica)
    ranges = [(0, elements)]
    for total in (RoundSum(elements, ranges), OuterSum(elements, ranges, rate=0.5, momentum=0.5)):
        total.add(update)
        total.take_mean(1, COUNT_MAX)
        total.take_mean(1, None)


def _receive(theirs: HostFeedback, update: Update, body: bytes) -> None:
    """Do what a worker does with an update of another one."""
    theirs.apply(update)
    theirs.apply(body)
    look_ahead([update], 0.5, np.zeros(len(theirs.replica), np.int32))
