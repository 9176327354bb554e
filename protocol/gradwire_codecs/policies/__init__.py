"""Threshold policies: which threshold the next update uses.

A policy observes each update (the part of all elements that it sends, its size, the time since the
update before) and returns a threshold. Its state is a few plain numbers, saved and restored with
that of the session.

- `FixedThreshold`: the threshold never changes, as in Strom's paper.
- `TargetDensity`: steers towards a part of all elements per update.
- `DensityBand`: changes the threshold while that part is outside of a band.
- `WarmUp`: wraps a policy that steers a density, and sends more in the first steps.
"""
