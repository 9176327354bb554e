"""The loops of `gradwire_codecs.kernels.lattice` on the device, one program for each tile."""

import triton.language as tl

from gradwire_codecs.cuda.jit import inlined, kernel
from gradwire_codecs.cuda.threshold import shared


@kernel("hits")
def add_to_replica(
    values: tl.tensor,
    index: tl.tensor,
    change: tl.tensor,
    hits: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803 - constants of a kernel
) -> None:
    """Add hits to the replica."""
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    hit = j < hits
    i = tl.load(index + j, mask=hit, other=0).to(tl.int64)
    value = tl.load(values + i, mask=hit, other=0) + tl.load(change + j, mask=hit, other=0)
    tl.store(values + i, value, mask=hit)


@kernel("quantum", "hits")
def commit_stored(
    parameters: tl.tensor,
    stored: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    index: tl.tensor,
    change: tl.tensor,
    hits: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Move hits from `stored` to replica and parameters."""
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    hit = j < hits
    i = tl.load(index + j, mask=hit, other=0).to(tl.int64)
    moved = tl.load(change + j, mask=hit, other=0)
    rest = tl.load(stored + i, mask=hit, other=0.0).to(tl.float64)
    rest -= moved.to(tl.float64) * quantum
    tl.store(stored + i, rest.to(tl.float32), mask=hit)
    value = tl.load(values + i, mask=hit, other=0) + moved
    tl.store(values + i, value, mask=hit)
    tl.store(parameters + i, value.to(tl.float32) * quantum, mask=hit)


@kernel("quantum", "elements")
def absorb(
    parameters: tl.tensor,
    stored: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    elements: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Move what the optimizer has changed from the parameters to `stored`."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = i < elements
    known = shared(values, quantum, i, inside)
    d = tl.load(parameters + i, mask=inside, other=0.0) - known
    tl.store(stored + i, d + tl.load(stored + i, mask=inside, other=0.0), mask=inside)
    tl.store(parameters + i, known, mask=inside)


@inlined
def add_at(
    parameters: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    i: tl.tensor,
    change: tl.tensor,
    inside: tl.tensor,
) -> None:
    """Add a change to elements of replica and parameters."""
    before = tl.load(values + i, mask=inside, other=0)
    after = before + change
    ahead = tl.load(parameters + i, mask=inside, other=0.0) - before.to(tl.float32) * quantum
    tl.store(values + i, after, mask=inside)
    # The parameter stays as far from the replica as it was: see `gradwire_codecs.kernels.lattice`.
    tl.store(parameters + i, after.to(tl.float32) * quantum + ahead, mask=inside)


@kernel("quantum", "hits")
def add_to_both(
    parameters: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    index: tl.tensor,
    change: tl.tensor,
    hits: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Add a peer's change to replica and parameters."""
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    hit = j < hits
    i = tl.load(index + j, mask=hit, other=0).to(tl.int64)
    add_at(parameters, values, quantum, i, tl.load(change + j, mask=hit, other=0), hit)


@kernel("quantum", "elements")
def add_sum(
    parameters: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    total: tl.tensor,
    elements: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Add a sum of updates, one number for each element; those of zero change nothing."""
    i = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    change = tl.load(total + i, mask=i < elements, other=0)
    add_at(parameters, values, quantum, i, change, change != 0)
