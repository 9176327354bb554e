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
