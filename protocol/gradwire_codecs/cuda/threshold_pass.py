"""The threshold pass over a whole vector on the device: its buffers, its launches, its faults."""

from typing import Final

import torch

from gradwire_codecs.arrays import Int32Array
from gradwire_codecs.cuda import lattice, threshold
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.feedback.threshold_pass import capacity_of, fault_of, ranges_of
from gradwire_codecs.kernels.threshold import CHUNK

TILE: Final = 1024
"""Elements of a program: eight for each of 128 threads."""


class DevicePass:
    """Scans for hits, any number of times, in buffers made once.

    All methods have to be called inside a turn of the side stream. The arguments are those of
    `ThresholdPass`, as tensors; `stored` may be None.
    """

    def __init__(
        self,
        parameters: torch.Tensor,
        stored: torch.Tensor | None,
        values: torch.Tensor,
        quantum: float,
        stream: SideStream,
    ) -> None:
        self._parameters = parameters
        self._stored = stored
        self._values = values
        self._quantum = quantum
        # Without `stored`, the kernels still need a tensor in its place, which they do not read.
        residual = parameters if stored is None else stored
        self._vectors = parameters, residual, values, quantum
        """The first arguments of the kernels of the pass."""
        self._stream = stream
        elements = parameters.numel()
        self.capacity = capacity = capacity_of(elements)
        tiles = threshold.tiles_of(elements, TILE)
        self._unordered = self._empty(capacity)
        self.index = self._empty(capacity)
        """Positions of the hits, ascending."""
        self.count = self._empty(capacity)
        """Their signed numbers of thresholds."""
        self.change = self._empty(capacity)
        """The same in quanta."""
        self._tile_hits = self._empty(tiles)
        self._tile_place = self._empty(tiles)
        self._tile_end = self._empty(tiles)
        self._total = self._empty(1)
        self._fault = torch.empty(1, dtype=torch.int64, device=parameters.device)
        self._multiple = self._magnitude_max = 1
        """Of the last `scan`."""
        self._found: tuple[int, int] | None = None
        """The range whose hits are in the buffers."""
        self._hits = 0

    def scan(
        self, start: int, stop: int, multiple: int, magnitude_max: int
    ) -> list[tuple[int, int]]:
        """Scan elements; return the ranges, in order, to ask `collect_hits` for.

        Ranges and errors are those of `ThresholdPass.scan`.
        """
        self._found = None
        self._multiple, self._magnitude_max = multiple, magnitude_max
        hits = self._mark(start, stop)
        if hits > self.capacity:
            self.check(start, stop, multiple)
            return ranges_of(start, stop, self._chunk_hits(stop - start), self.capacity)
        self._found, self._hits = (start, stop), hits
        return [(start, stop)] if hits else []

    def collect_hits(self, start: int, stop: int) -> int:
        """Write the hits in a range that `scan` returned to `index`, `count` and `change`.

        Return their number.
        """
        if (start, stop) != self._found:
            self._found, self._hits = (start, stop), self._mark(start, stop)
        return self._hits

    def check(self, start: int, stop: int, multiple: int) -> None:
        """Raise the error that `scan` would raise."""
        self._fault.fill_(threshold.NO_FAULT.value)
        threshold.find_fault[threshold.tiles_of(stop - start, TILE),](
            *self._vectors,
            multiple,
            start,
            stop,
            self._fault,
            HAS_STORED=self._stored is not None,
            TILE=TILE,
        )
        self._refuse(int(self._stream.fetch(self._fault).item()))

    def _mark(self, start: int, stop: int) -> int:
        """Find the hits of a range; write them if there is room for all; return their number."""
        tiles = threshold.tiles_of(stop - start, TILE)
        self._total.zero_()
        self._fault.fill_(threshold.NO_FAULT.value)
        threshold.mark_hits[tiles,](
            *self._vectors,
            self._multiple,
            start,
            stop,
            self._unordered,
            self.capacity,
            self._total,
            self._tile_hits,
            self._tile_place,
            HAS_STORED=self._stored is not None,
            TILE=TILE,
        )
        torch.cumsum(self._tile_hits[:tiles], 0, dtype=torch.int32, out=self._tile_end[:tiles])
        threshold.order_hits[tiles,](
            *self._vectors,
            self._magnitude_max,
            self._multiple,
            self._unordered,
            self.capacity,
            self._total,
            self._tile_hits,
            self._tile_place,
            self._tile_end,
            self.index,
            self.count,
            self.change,
            self._fault,
            HAS_STORED=self._stored is not None,
            TILE=TILE,
        )
        hits, fault = self._stream.fetch(torch.cat([self._total, self._fault])).tolist()
        self._refuse(fault)
        return int(hits)

    def commit(self, hits: int) -> None:
        """Move the hits from the residual to the replica."""
        programs, moved = threshold.tiles_of(hits, TILE), (self.index, self.change, hits)
        if self._stored is None:
            lattice.add_to_replica[programs,](self._values, *moved, TILE=TILE)
        else:
            lattice.commit_stored[programs,](
                self._parameters, self._stored, self._values, self._quantum, *moved, TILE=TILE
            )

    def absorb(self, start: int, stop: int) -> None:
        """Move what the optimizer has changed from the parameters to `stored`."""
        assert self._stored is not None
        span = slice(start, stop)
        lattice.absorb[threshold.tiles_of(stop - start, TILE),](
            self._parameters[span],
            self._stored[span],
            self._values[span],
            self._quantum,
            stop - start,
            TILE=TILE,
        )

    def _chunk_hits(self, elements: int) -> Int32Array:
        """Return the number of hits of each chunk of the scanned elements."""
        tiles = threshold.tiles_of(elements, TILE)
        group = CHUNK // TILE
        hits = torch.nn.functional.pad(self._tile_hits[:tiles], (0, -tiles % group))
        by_chunk: Int32Array = (
            self._stream.fetch(hits.view(-1, group).sum(1, dtype=torch.int32)).numpy().copy()
        )
        return by_chunk

    def _refuse(self, fault: int) -> None:
        if fault == threshold.NO_FAULT.value:
            return
        element, out_of_range = divmod(fault, 2)
        value = float(self._parameters[element])
        if self._stored is not None:
            value += float(self._stored[element])
        raise fault_of(element, value, self._quantum, finite=bool(out_of_range))

    def _empty(self, elements: int) -> torch.Tensor:
        return torch.empty(elements, dtype=torch.int32, device=self._parameters.device)
