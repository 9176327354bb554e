"""Compile every kernel, or load it from Triton's cache, before the first training step needs it."""

import numpy as np
import torch

from gradwire_codecs.cuda.feedback import DeviceLocalFeedback, DeviceSharedFeedback
from gradwire_codecs.replica import Replica


def warm_up(device: torch.device) -> None:
    """Run every kernel once on a few elements.

    Takes seconds on a machine where it was never done for such a GPU, some hundredths of a second
    later.
    """
    change = torch.tensor([1.0, -1.0, 0.0, 2.0, 0.5] * 20, device=device)
    for kind in (DeviceLocalFeedback, DeviceSharedFeedback):
        for multiple, magnitude_max in ((2**22, 127), (2**24, 1)):  # as a list, and none
            mine = kind(change.clone(), Replica.zeros(100))
            theirs = kind(torch.zeros_like(change), Replica.zeros(100))
            mine.check()
            for part in mine.encode(multiple, magnitude_max=magnitude_max):
                theirs.apply(part)
            theirs.apply_sum(np.ones(100, np.int32))
            theirs.replica.digest()
