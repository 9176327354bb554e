"""Threshold policies: which threshold the next update uses.

A policy sees what came of each update (the part of all elements that it sends, its size, the time
since the one before) and answers with a threshold. Its state is a few plain numbers, saved and
restored with the session's.

- `FixedThreshold`: the same for ever, as in Strom's paper.
- `TargetDensity`: towards a part of all elements per update.
- `DensityBand`: as it is, while that part is within a band.
- `ByteBudget`: towards a size per update, or a rate in bytes per second.
- `WarmUp`: one that steers a density, with a higher one in the first steps.
"""

from gradwire_codecs.policies.band import DensityBand
from gradwire_codecs.policies.budget import ByteBudget
from gradwire_codecs.policies.density import TargetDensity
from gradwire_codecs.policies.fixed import FixedThreshold
from gradwire_codecs.policies.policy import Observation, PolicyState, ThresholdPolicy
from gradwire_codecs.policies.warm_up import WarmUp

__all__ = [
    "ByteBudget",
    "DensityBand",
    "FixedThreshold",
    "Observation",
    "PolicyState",
    "TargetDensity",
    "ThresholdPolicy",
    "WarmUp",
]
