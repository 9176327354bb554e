"""Compile every kernel, or load it from Triton's cache, before the first training step needs it."""

from functools import cache
from typing import Final

import numpy as np
import torch

from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.cuda.feedback import DeviceLocalFeedback, DeviceSharedFeedback
from gradwire_codecs.replica.replica import Replica

ELEMENTS: Final = 400


@cache
def warm_up(device: torch.device) -> None:
    """Run every kernel once on a few elements, once in a process.

    It takes seconds the first time on a machine with this kind of GPU, and hundredths of a second
    after.
    """
    for each in vectors():
        change = torch.tensor(each, device=device)
        mine = DeviceLocalFeedback(change, Replica.zeros(ELEMENTS))
        theirs = DeviceSharedFeedback(torch.zeros_like(change), Replica.zeros(ELEMENTS))
        for part in mine.encode(2**24):
            theirs.apply(part)
    theirs.apply_sum(np.ones(ELEMENTS, np.int32))
    theirs.add_change(vectors()[0])
    theirs.encode(2**24)
    theirs.check()
    theirs.replica.digest()


def vectors() -> list[Float32Array]:
    """Return a change for each format of an update, in the order of their numbers."""
    plain = np.zeros(ELEMENTS, np.float32)
    plain[::10] = 1
    listed = plain.copy()
    listed[200] = 3
    dense = np.ones(ELEMENTS, np.float32)
    dense[::3] = -1
    return [plain, listed, 3 * plain, dense]
