"""`encode_hits`: encodes hits in the memory of a device to the bytes of an update on the host.

It chooses the format like `gradwire_codecs.format.update`, by exact sizes. Only these sizes, and
then the bytes, are copied to the host.
"""

from dataclasses import dataclass
from typing import Final

import torch

from gradwire_codecs.cuda import coding
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.cuda.threshold import tiles_of
from gradwire_codecs.format.bits import BLOCK
from gradwire_codecs.format.byte_counts import is_written_in_bytes
from gradwire_codecs.format.dense import WORD_BYTES, dense_bytes, digits_per_word
from gradwire_codecs.format.header import (
    BYTES,
    DENSE,
    EVERY,
    LISTED,
    PLAIN,
    numbers_bytes,
    pack_header,
)
from gradwire_codecs.format.sparse import bytes_of

ROWS: Final = 4
"""Blocks of a program: two values for each of 128 threads."""

ROWS_INTERPRETED: Final = 64
"""The same for Triton's interpreter, whose time depends on the number of operations."""

TILE: Final = 256

WORD_BITS: Final = 32


def encode_hits(
    stream: SideStream,
    start: int,
    stop: int,
    multiple: int,
    index: torch.Tensor,
    count: torch.Tensor,
    bytes_max: int,
) -> list[bytes]:
    """Encode hits as one update, or as several of adjoining ranges if one is too large.

    Call it inside a turn of `stream`. The arguments are those of `Update` and `split_update`;
    `index` and `count` are tensors of shape (hits,), dtype int32.
    """
    if not len(index):
        return []
    plan = _Plan.of(stream, start, stop, multiple, index, count)
    if plan.size <= bytes_max:
        return [plan.write(stream)]
    middle = start + (stop - start) // 2
    cut = int(torch.searchsorted(index, middle).item())
    return encode_hits(
        stream, start, middle, multiple, index[:cut], count[:cut], bytes_max
    ) + encode_hits(stream, middle, stop, multiple, index[cut:], count[cut:], bytes_max)


class _RiceStream:
    """Values in Rice code, in blocks with heads; each may have a sign and a second value."""

    def __init__(
        self,
        values: torch.Tensor,
        seconds: torch.Tensor | None = None,
        signed: torch.Tensor | None = None,
    ) -> None:
        self._values = values
        self._seconds = seconds
        self._signed = signed
        self._rows = ROWS if values.is_cuda else ROWS_INTERPRETED
        self._programs = tiles_of(len(values), BLOCK * self._rows)
        blocks = tiles_of(len(values), BLOCK)
        self._bits = torch.zeros(blocks, dtype=torch.int32, device=values.device)
        if signed is not None:
            self._bits += BLOCK
            self._bits[-1] -= -len(values) % BLOCK
        self._parameters = self._measure(values)
        self._second_parameters = self._parameters if seconds is None else self._measure(seconds)
        self._ends = torch.cumsum(self._bits, 0, dtype=torch.int64)

    @property
    def bits(self) -> torch.Tensor:
        """Bits of the stream: a tensor of shape (1,), dtype int64."""
        return self._ends[-1:]

    def write(self, words: torch.Tensor, base: int) -> None:
        """Write the stream from bit `base` on."""
        coding.write[self._programs,](
            self._values,
            self._values if self._seconds is None else self._seconds,
            self._values if self._signed is None else self._signed,
            len(self._values),
            self._parameters,
            self._second_parameters,
            self._bits,
            self._ends,
            base,
            words,
            HAS_SIGN=self._signed is not None,
            HAS_SECOND=self._seconds is not None,
            ROWS=self._rows,
        )

    def _measure(self, values: torch.Tensor) -> torch.Tensor:
        """Return the parameters of values; add the bits of values and heads to `_bits`."""
        parameters = torch.empty_like(self._bits)
        coding.measure[self._programs,](
            values, len(values), parameters, self._bits, ROWS=self._rows
        )
        blocks = len(parameters)
        coding.add_heads[tiles_of(blocks, TILE),](parameters, blocks, self._bits, TILE=TILE)
        return parameters


@dataclass(frozen=True, slots=True)
class _Plan:
    """The format and size of an update that is to be written."""

    header: bytes
    start: int
    length: int
    index: torch.Tensor
    count: torch.Tensor
    magnitude_max: int
    streams: list[tuple[_RiceStream, int]]
    """The streams, and the bytes of each; none for formats with a place for every element."""
    hits_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the update."""
        return len(self.header) + self.hits_bytes

    @classmethod
    def of(
        cls,
        stream: SideStream,
        start: int,
        stop: int,
        multiple: int,
        index: torch.Tensor,
        count: torch.Tensor,
    ) -> "_Plan":
        """Choose the format that takes the fewest bytes."""
        magnitude = count.abs()
        larger = magnitude > 1
        positions = _RiceStream(_gaps(index, start), signed=count)
        facts = torch.stack([
            positions.bits[0], magnitude.max(), larger.sum(), magnitude.sum(dtype=torch.int64)
        ])  # fmt: skip
        bits, magnitude_max, listed, total = stream.fetch(facts).tolist()
        hits, length = len(index), stop - start
        if is_written_in_bytes(length, hits, total, magnitude_max):
            header = pack_header(BYTES, start, length, multiple, [hits])
            return cls(header, start, length, index, count, magnitude_max, [], length)
        form, streams = PLAIN, [(positions, bytes_of(bits))]
        numbers: list[int] = []
        if listed:
            at = torch.nonzero(larger).view(-1).to(torch.int32)
            in_list = _RiceStream(_gaps(at, 0), seconds=magnitude[larger] - 2)
            every = _RiceStream(magnitude - 1)
            list_bits, every_bits = stream.fetch(torch.cat([in_list.bits, every.bits])).tolist()
            options = [
                (LISTED, [listed, bytes_of(bits)], (in_list, bytes_of(list_bits))),
                (EVERY, [bytes_of(bits)], (every, bytes_of(every_bits))),
            ]
            form, numbers, magnitudes = min(
                options, key=lambda option: numbers_bytes(option[1]) + option[2][1]
            )
            streams.append(magnitudes)
        hits_bytes = sum(size for _, size in streams)
        dense_size = dense_bytes(length, magnitude_max)
        if dense_size + numbers_bytes([magnitude_max]) < hits_bytes + numbers_bytes(numbers):
            form, numbers, streams, hits_bytes = DENSE, [magnitude_max], [], dense_size
        header = pack_header(form, start, length, multiple, [hits, *numbers])
        return cls(header, start, length, index, count, magnitude_max, streams, hits_bytes)

    def write(self, stream: SideStream) -> bytes:
        """Return the encoded update."""
        if self.header[0] == BYTES:
            words = self._bytes()
        else:
            words = self._sparse_words() if self.streams else self._dense_words()
        hits = stream.fetch(words.view(torch.uint8)[: self.hits_bytes])
        return self.header + hits.numpy().tobytes()

    def _bytes(self) -> torch.Tensor:
        counts = torch.zeros(self.length, dtype=torch.int8, device=self.index.device)
        counts[self.index.long() - self.start] = self.count.to(torch.int8)
        return counts

    def _sparse_words(self) -> torch.Tensor:
        # One word more, because writing to the last one may write zeros after it.
        size = self.hits_bytes * 8 // WORD_BITS + 2
        words = torch.zeros(size, dtype=torch.int32, device=self.index.device)
        at = 0
        for each, size_bytes in self.streams:
            each.write(words, 8 * at)
            at += size_bytes
        return words

    def _dense_words(self) -> torch.Tensor:
        # A word is the sum over its elements of digit times radix to the power of the place, and a
        # digit is the count plus M. So each word starts as that of the counts 0, and the counts of
        # the hits are added. int64 computes modulo 2^64, so the order does not matter.
        digits = digits_per_word(self.magnitude_max)
        powers = [(2 * self.magnitude_max + 1) ** place for place in range(digits)]
        words = [_as_int64(self.magnitude_max * sum(powers))] * (self.hits_bytes // WORD_BYTES)
        last = self.length - (len(words) - 1) * digits
        device = self.index.device
        filled = torch.full((len(words),), words[0], dtype=torch.int64, device=device)
        filled[-1] = _as_int64(self.magnitude_max * sum(powers[:last]))
        element = self.index - self.start
        scale = torch.tensor([_as_int64(p) for p in powers], device=device)[element % digits]
        return filled.index_add_(0, element // digits, self.count * scale)


def _gaps(positions: torch.Tensor, start: int) -> torch.Tensor:
    """Return how many elements lie between each position and the one before, or `start`."""
    gaps = positions.clone()
    gaps[1:] -= positions[:-1] + 1
    gaps[0] -= start
    return gaps


def _as_int64(number: int) -> int:
    """Return the signed number with the same 64 bits."""
    return (number + 2**63) % 2**64 - 2**63
