"""Compile every kernel, or load it from the cache, before the first training step needs it."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import numpy as np

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.feedback.host_feedback import HostFeedback, LocalFeedback, SharedFeedback
from gradwire_codecs.feedback.partial_feedback import PartialFeedback
from gradwire_codecs.feedback.residuals import clip_residual
from gradwire_codecs.format.block_packing import pack_block, unpack_block
from gradwire_codecs.format.update import ELEMENTS_MAX, Update, decode, pack_update
from gradwire_codecs.kernels.compiling import compiling_alone
from gradwire_codecs.replica.digests import BlockDigests, digest_of, unflip
from gradwire_codecs.replica.replica import Replica

Kind: TypeAlias = Callable[[Float32Array, Replica], HostFeedback]
HALF: Final[Kind] = partial(PartialFeedback, portion=0.5)


def warm_up() -> None:
    """Run every kernel once on a few elements.

    It takes seconds the first time gradwire runs on a machine, and hundredths of a second after.
    Of several processes, one compiles, and the others wait for it.
    """
    with compiling_alone():
        _run_all()


def _run_all() -> None:
    few = np.array([1.0, -1.0, 0.0, 2.0, 0.5], np.float32)
    # Most hits have magnitude 1, some a larger one: the format LISTED.
    some = np.zeros(4000, np.float32)
    some[::10], some[::1000] = 0.25, 1.0
    # Every element is a hit: the format DENSE.
    all_ = np.ones(1000, np.float32)
    for kind in (LocalFeedback, SharedFeedback, HALF):
        for change, multiple in ((few, 2**22), (few, 2**24), (some, 2**22), (all_, 2**24)):
            _share(kind, change.copy(), multiple)
    # Few larger magnitudes take the format LISTED, many the format EVERY.
    index, count = np.arange(0, 4000, 40, dtype=np.uint32), np.ones(100, np.int32)
    for larger in (1, 100):
        count[:larger] = 100
        pack_update(Update(0, 4000, 1, index, count))


def _share(kind: Kind, parameters: Float32Array, multiple: int) -> None:
    """Do what workers and a master do with a feedback and a replica."""
    elements = len(parameters)
    mine = kind(parameters, Replica.zeros(elements))
    theirs = kind(np.zeros(elements, np.float32), Replica.zeros(elements))
    replica = Replica.zeros(elements)
    digests = BlockDigests.of(replica.values, elements)
    for body in mine.encode(multiple):
        update = decode(body, ELEMENTS_MAX)
        replica.first_outside(update)
        digests.add(update)
        for apply in (theirs.apply, replica.apply):
            apply(update)
            apply(body)
    theirs.apply_sum(mine.replica.values)
    theirs.correct_replica(mine.replica.values)
    clip_residual(mine, multiple, 1.0)
    before = theirs.residual()
    theirs.add_growth(before, np.float32(0.5))
    theirs.read_residual(before)
    theirs.drop_residual()
    clip_residual(mine, multiple, 1.0)
    unflip(replica.values, 0, digest_of(replica.values))
    unpack_block(pack_block(replica.values), elements)
