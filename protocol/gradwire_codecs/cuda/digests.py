"""Digests of a replica on the device, as in `gradwire_codecs.replica.digests`."""

import torch
import triton
import triton.language as tl

from gradwire_codecs.cuda.jit import kernel

TILE = 1024


@kernel("elements")
def _weigh(
    values: tl.tensor,
    elements: tl.tensor,
    sums: tl.tensor,
    TILE: tl.constexpr,  # noqa: N803 - constants of a kernel
) -> None:
    tile = tl.program_id(0)
    j = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    x = (j + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    weight = (x ^ (x >> 31)) | 1
    value = tl.load(values + j, mask=j < elements, other=0).to(tl.int64)
    tl.store(sums + tile, tl.sum(weight.to(tl.int64) * value))


def digest_of(values: torch.Tensor) -> torch.Tensor:
    """Return the digest of a replica, of dtype int32, as a tensor of shape (1,), dtype int64."""
    tiles = triton.cdiv(len(values), TILE)
    sums = torch.empty(tiles, dtype=torch.int64, device=values.device)
    _weigh[tiles,](values, len(values), sums, TILE=TILE)
    return sums.sum().view(1)
