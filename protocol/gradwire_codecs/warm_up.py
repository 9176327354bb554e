"""Compile kernels, or load them from the cache, before the first training step needs them.

`warm_up` is for what every worker and master runs. The rest is for modes with rounds and for other
settings: `warm_up_rest`, before such a run begins. What neither has compiled is compiled by its
first call.

Compiling takes seconds, once for each machine, and two processes share it. Each goes through the
same tasks, one from the first to the last, the other one from the last to the first. What they
meet at is in the cache already. So no task may need what another one has made.
"""

import gc
from base64 import b85decode
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final
from zlib import decompress

import numpy as np

from gradwire_codecs.feedback.contributions import encode_dense
from gradwire_codecs.feedback.feedback import BYTES_MAX
from gradwire_codecs.feedback.host_feedback import LocalFeedback, SharedFeedback
from gradwire_codecs.format.block_packing import pack_block, unpack_block
from gradwire_codecs.format.dense import COUNT_MAX
from gradwire_codecs.format.update import DenseUpdate, Update, decode, pack_update
from gradwire_codecs.kernels.compiling import compiling_alone
from gradwire_codecs.replica.digests import BlockDigests
from gradwire_codecs.replica.merging import merge
from gradwire_codecs.replica.outer_step import OuterSum, look_ahead
from gradwire_codecs.replica.replica import Replica
from gradwire_codecs.replica.round_sum import RoundSum

KINDS: Final = (LocalFeedback, SharedFeedback)

ELEMENTS: Final = 4000
"""That every task's vectors have."""

EXAMPLES: Final = (
    b"c-mv&V`gA&XlP(!VLG6B@E9}0Wfq1P>_7pI7wn7*FXT0Yw(M9j)M<tSCWZy_j46z%E(Z=%1iIS^1NH+UEDRT!!8X#z!ebX"
    b"H0~;3;2FeVXtPClPDf9pU@fKvc"
)
"""Updates in each of the formats, so that what reads them is compiled without what writes them."""


@cache
def warm_up() -> None:
    """Run the kernels of sharing, as workers and masters do it, once on a few elements.

    It takes seconds the first time gradwire runs on a machine, and hundredths of a second after.
    Of several processes, one compiles, and the others wait for it; a second core compiles as well.
    """
    _run(SHARING)


@cache
def warm_up_rest() -> None:
    """Run once what rounds take, and residuals that have a vector of their own."""
    _run(REST)


def help_from_the_end(name: str) -> None:
    """Compile the tasks of this name, the last one first, while another process does the same."""
    gc.disable()
    for task in reversed(TASKS[name]):
        task()


def _run(name: str) -> None:
    helper = f"from gradwire_codecs.warm_up import help_from_the_end as f; f({name!r})"
    with compiling_alone(name, helper=helper):
        for task in TASKS[name]:
            task()


@cache
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


def examples_of(text: bytes) -> Iterator[bytes]:
    """Yield the updates of `EXAMPLES`, of which each has its size before it, in two bytes."""
    packed = decompress(b85decode(text))
    while packed:
        size = int.from_bytes(packed[:2], "big")
        body, packed = packed[2 : 2 + size], packed[2 + size :]
        yield body


def written_examples() -> list[bytes]:
    """Return updates of elements with larger magnitudes, in the formats LISTED, EVERY and BYTES."""
    return [*_written(), pack_update(DenseUpdate(0, 100, 1, np.full(100, 100, np.int8)))]


def _written() -> list[bytes]:
    index, count = np.arange(0, 4000, 40, dtype=np.uint32), np.ones(100, np.int32)
    bodies = []
    for larger in (1, 100):
        count[:larger] = 100
        bodies.append(pack_update(Update(0, 4000, 1, index, count)))
    return bodies


def _encoded() -> None:
    """Encode a vector of which all elements are hits: in the format DENSE."""
    LocalFeedback(np.ones(ELEMENTS, np.float32), Replica.zeros(ELEMENTS)).encode(2**24)


def _packed() -> None:
    """Pack and unpack a block of a replica."""
    unpack_block(pack_block(np.zeros(ELEMENTS, np.int32)), ELEMENTS)


def _weighed() -> None:
    """Do what a master does before it takes an update."""
    update, replica = _update(), Replica.zeros(ELEMENTS)
    BlockDigests.of(replica.values, ELEMENTS).add(update)
    replica.first_outside(update)


def _applied() -> None:
    """Do what is done with an update that was read."""
    update, replica = _update(), Replica.zeros(ELEMENTS)
    replica.apply(update)
    theirs = LocalFeedback(np.zeros(ELEMENTS, np.float32), replica)
    theirs.apply(update)
    replica.write_parameters(theirs.parameters)


def _scaled() -> None:
    """Scale what the optimizer has changed."""
    mine = LocalFeedback(np.zeros(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
    before = mine.residual()
    mine.read_residual(before)
    mine.add_growth(before, np.float32(0.5))


def _merged() -> None:
    merge([_update(), _update()], ELEMENTS)


def _decoded() -> None:
    for body in list(examples_of(EXAMPLES))[:-1]:  # the last one is in the format BYTES
        decode(body, ELEMENTS)


def _update() -> Update:
    return Update(0, ELEMENTS, 1, np.arange(4, dtype=np.uint32), np.ones(4, np.int32))


def _dense() -> DenseUpdate:
    return DenseUpdate(0, ELEMENTS, 1, np.ones(ELEMENTS, np.int8))


def _contributed() -> None:
    """Do what workers do in a round, with both kinds of residuals."""
    for kind in KINDS:
        mine = kind(np.ones(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
        encode_dense(mine, [(0, ELEMENTS)], COUNT_MAX, bytes_max=BYTES_MAX)
        mine.apply(_dense())
    look_ahead([_dense()], 0.5, np.zeros(ELEMENTS, np.int32))


def _summed() -> None:
    """Do what a master does in a round."""
    ranges = [(0, ELEMENTS)]
    replica = Replica.zeros(ELEMENTS)
    digests = BlockDigests.of(replica.values, ELEMENTS)
    for update in (_dense(), _update()):
        for total in (
            RoundSum(ELEMENTS, ranges),
            OuterSum(ELEMENTS, ranges, rate=0.5, momentum=0.5),
        ):
            total.add(update)
            total.take_mean(1, COUNT_MAX)
            total.take_mean(1, None)
    digests.add(_dense())
    replica.first_outside(_dense())
    replica.apply(_dense())
    _ = _dense().index


def _stored() -> None:
    """Do what a residual takes that has a vector of its own."""
    mine = SharedFeedback(np.ones(ELEMENTS, np.float32), Replica.zeros(ELEMENTS))
    mine.encode(2**24)
    mine.absorb()


def _applied_encoded() -> None:
    """Add updates as they came, as programs that use the codec alone do it."""
    for body in examples_of(EXAMPLES):
        decode(body, ELEMENTS)
        replica = Replica.zeros(ELEMENTS)
        replica.apply(body)
        LocalFeedback(np.zeros(ELEMENTS, np.float32), replica).apply(body)


SHARING: Final = "sharing"
REST: Final = "rest"

TASKS: Final[dict[str, tuple[Callable[[], object], ...]]] = {
    SHARING: (_encoded, _written, _packed, _applied, _scaled, _weighed, _merged, _decoded),
    REST: (_stored, _contributed, written_examples, _summed, _applied_encoded),
}
