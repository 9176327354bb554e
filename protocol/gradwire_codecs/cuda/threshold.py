"""The threshold pass on the device: the same results as `gradwire_codecs.kernels.threshold`.

Of its four steps, only the first reads all of the vectors:

1. `mark_hits`, a program for each tile of elements, finds the hits of its tile and writes their
   positions to the next free place in `found`. For each tile it stores that place.
2. A prefix sum over the tiles gives the final place of each tile's hits.
3. `order_hits` moves them there, ascending, and computes the thresholds that each one sends. Only
   this step, for the hits alone, divides and uses double precision, for which most GPUs have few
   units.
4. If no element is at fault, `add_to_replica` or `commit_stored` of `lattice` counts
   the hits as shared.

If there is no room for all hits, `find_fault` checks all of them instead.
"""

import triton
import triton.language as tl

from gradwire_codecs.cuda.jit import inlined, kernel

NO_FAULT = tl.constexpr(2**63 - 1)
"""A fault is twice the position of the element, plus 1 if it is out of range."""


@inlined
def shared(values: tl.tensor, quantum: tl.tensor, i: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Return elements of the replica in units of the parameters."""
    return tl.load(values + i, mask=inside, other=0).to(tl.float32) * quantum


@inlined
def residual(
    parameters: tl.tensor,
    stored: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    i: tl.tensor,
    inside: tl.tensor,
    HAS_STORED: tl.constexpr,  # noqa: N803 - constants of a kernel
) -> tl.tensor:
    """Return the residual of elements; 0 for those that are not `inside`."""
    d = tl.load(parameters + i, mask=inside, other=0.0) - shared(values, quantum, i, inside)
    if HAS_STORED:
        d += tl.load(stored + i, mask=inside, other=0.0)
    return d


@inlined
def fault_of(
    d: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    i: tl.tensor,
    hit: tl.tensor,
) -> tl.tensor:
    """Return the smallest fault among hits."""
    finite = tl.abs(d) < float("inf")
    value = tl.load(values + i, mask=hit, other=0).to(tl.float64)
    # The replica moves towards this and never past it, so it stays in range too.
    target = value * quantum + d.to(tl.float64)
    outside = tl.abs(target) >= 2147483648.0 * quantum
    fault = tl.where(finite, tl.where(outside, 2 * i + 1, NO_FAULT), 2 * i)
    return tl.min(tl.where(hit, fault, NO_FAULT))


@kernel("quantum", "multiple", "start", "stop", "capacity")
def mark_hits(
    parameters: tl.tensor,
    stored: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    multiple: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    found: tl.tensor,
    capacity: tl.tensor,
    total: tl.tensor,
    tile_hits: tl.tensor,
    tile_place: tl.tensor,
    HAS_STORED: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Find the elements of a tile that are hits or not finite: the comparison marks both."""
    tile = tl.program_id(0)
    i = tile.to(tl.int64) * TILE + start + tl.arange(0, TILE)
    inside = i < stop
    d = residual(parameters, stored, values, quantum, i, inside, HAS_STORED)
    hit = inside & ((tl.abs(d) < multiple.to(tl.float32) * quantum) == 0)
    hits = tl.sum(hit.to(tl.int32))
    tl.store(tile_hits + tile, hits)
    if hits > 0:
        place = tl.atomic_add(total, hits, sem="relaxed")
        tl.store(tile_place + tile, place)
        at = place + tl.cumsum(hit.to(tl.int32), 0) - 1
        tl.store(found + at, i.to(tl.int32), mask=hit & (at < capacity))


@kernel("quantum", "magnitude_max", "multiple", "capacity")
def order_hits(
    parameters: tl.tensor,
    stored: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    magnitude_max: tl.tensor,
    multiple: tl.tensor,
    found: tl.tensor,
    capacity: tl.tensor,
    total: tl.tensor,
    tile_hits: tl.tensor,
    tile_place: tl.tensor,
    tile_end: tl.tensor,
    index: tl.tensor,
    count: tl.tensor,
    change: tl.tensor,
    fault: tl.tensor,
    HAS_STORED: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Write the hits of a tile to their final places, with the thresholds that they send."""
    tile = tl.program_id(0)
    hits = tl.load(tile_hits + tile)
    if (hits > 0) & (tl.load(total) <= capacity):
        place = tl.load(tile_place + tile)
        to = tl.load(tile_end + tile) - hits
        for low in range(0, hits, TILE):
            j = low + tl.arange(0, TILE)
            hit = j < hits
            i = tl.load(found + place + j, mask=hit, other=0).to(tl.int64)
            d = residual(parameters, stored, values, quantum, i, hit, HAS_STORED)
            wrong = fault_of(d, values, quantum, i, hit)
            if wrong < NO_FAULT:
                tl.atomic_min(fault, wrong, sem="relaxed")
            tau = (multiple.to(tl.float32) * quantum).to(tl.float64)
            thresholds = tl.where(tl.abs(d) < float("inf"), d, 0.0).to(tl.float64) / tau
            most = tl.zeros_like(tau) + magnitude_max
            c = tl.minimum(tl.maximum(thresholds, -most), most).to(tl.int32)
            tl.store(index + to + j, i.to(tl.int32), mask=hit)
            tl.store(count + to + j, c, mask=hit)
            tl.store(change + to + j, c * multiple, mask=hit)


@kernel("quantum", "multiple", "start", "stop")
def find_fault(
    parameters: tl.tensor,
    stored: tl.tensor,
    values: tl.tensor,
    quantum: tl.tensor,
    multiple: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    fault: tl.tensor,
    HAS_STORED: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
) -> None:
    """Find an element at fault among the hits of a tile."""
    tile = tl.program_id(0)
    i = tile.to(tl.int64) * TILE + start + tl.arange(0, TILE)
    inside = i < stop
    d = residual(parameters, stored, values, quantum, i, inside, HAS_STORED)
    hit = inside & ((tl.abs(d) < multiple.to(tl.float32) * quantum) == 0)
    wrong = fault_of(d, values, quantum, i, hit)
    if wrong < NO_FAULT:
        tl.atomic_min(fault, wrong, sem="relaxed")


def tiles_of(elements: int, tile: int) -> int:
    """Return how many tiles cover `elements`."""
    return int(triton.cdiv(elements, tile))
