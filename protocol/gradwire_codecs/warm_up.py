"""Compile every kernel, or load it from the cache, before the first training step needs it."""

import numpy as np

from gradwire_codecs.digests import BlockDigests, digest_of, unflip
from gradwire_codecs.feedback import LocalFeedback, SharedFeedback
from gradwire_codecs.packing import pack_block, unpack_block
from gradwire_codecs.replica import Replica
from gradwire_codecs.sections import Sections
from gradwire_codecs.update import ELEMENTS_MAX, Update, decode, pack_update


def warm_up() -> None:
    """Run every kernel once on a few elements.

    Takes seconds on a machine where gradwire has never run, some hundredths of a second later.
    """
    change = np.array([1.0, -1.0, 0.0, 2.0, 0.5], np.float32)
    for feedback in (LocalFeedback, SharedFeedback):
        for multiple in (2**22, 2**24):  # 2^22: magnitudes above 1, 2^24: none, so another code
            mine = feedback(change.copy(), Replica.zeros(change.size))
            theirs = feedback(np.zeros_like(change), Replica.zeros(change.size))
            for part in mine.encode(multiple):
                theirs.apply(decode(part, change.size))
                theirs.apply(part)
            theirs.apply_sum(mine.replica.values)
            theirs.mend(mine.replica.values)
            mine.settle()
    # Few larger magnitudes are listed, many are all given.
    index, count = np.arange(0, 4000, 40, dtype=np.uint32), np.ones(100, np.int32)
    for larger in (1, 100):
        count[:larger] = 100
        pack_update(Update(Sections.single(0, 4000, 1), index, count))
    # So many hits fit no sparse code: this one takes the dense coder.
    dense = LocalFeedback(np.ones(1000, np.float32), Replica.zeros(1000))
    for part in dense.encode(1, magnitude_max=1):
        update = decode(part, ELEMENTS_MAX)
        replica = Replica.zeros(1000)
        replica.first_outside(update)
        digests = BlockDigests.of(replica.values, 1000)
        digests.add(update)
        replica.apply(update)
        replica.apply(part)
        unflip(replica.values, 0, digest_of(replica.values))
        unpack_block(pack_block(replica.values), 1000)
