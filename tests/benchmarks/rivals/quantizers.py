"""Rivals that quantize dense vectors: torch's own quantizers, and hivemind's.

torch's have one scale for each range. hivemind cuts its tensors into parts, each with a codebook
or scales of its own; here it cuts the same ranges. Neither of them has error feedback, so
`TorchQuantizer` adds it on request.

gradwire does not depend on hivemind: where it is not installed, `hivemind_quantizers` returns none.
hivemind 1.1.12 cannot decode with numpy 2.4; ``pip install hivemind "bitsandbytes~=0.45.2"
"numpy<2.4"``, in an environment of its own, makes what it needs.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol, TypeAlias

import torch
from torch import Tensor

from gradwire_codecs.arrays import Float32Array

Ranges: TypeAlias = Sequence[tuple[int, int]]

SCALE_BYTES: Final = 4

HIVEMIND: Final = {
    "Uniform8BitQuantization": "hivemind",
    "BlockwiseQuantization": "bitsandbytes",
}
"""hivemind's quantizations to 8 bits, without the one by quantiles, and the package of each."""


class Quantizer(Protocol):
    """Encodes changes of a vector as a worker does, and adds them up as a master does."""

    name: str

    def encode(self, change: Float32Array) -> Sequence[Any]:
        """Encode a change."""

    def add(self, encoded: Sequence[Any]) -> None:
        """Add an encoded change to the sum."""

    def size_bytes(self, encoded: Sequence[Any]) -> int:
        """Return the size of an encoded change."""

    def sum(self) -> Float32Array:
        """Return the sum of what was added."""


class TorchQuantizer:
    """`torch.quantize_per_tensor` to 8 bits, or `torch.quantize_per_channel` to 4.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Parts of the vector with a scale each: the largest element just has room.
    bits : int
        8 or 4. Torch has 4 bits per channel only, so a range is one channel.
    has_feedback : bool
        Whether the rest of a change is added to the next one.
    """

    def __init__(self, ranges: Ranges, bits: int, *, has_feedback: bool) -> None:
        function = "per_tensor to qint8" if bits == 8 else "per_channel to quint4x2"
        feedback = "with" if has_feedback else "no"
        self.name = f"torch.quantize_{function}, {feedback} error feedback"
        self._ranges = ranges
        self._bits = bits
        elements = ranges[-1][1]
        self._residual = torch.zeros(elements) if has_feedback else None
        self._total = torch.zeros(elements)

    def encode(self, change: Float32Array) -> list[Tensor]:
        """Quantize a change; return a quantized tensor for each range."""
        changed = torch.from_numpy(change)
        if self._residual is None:
            return [self._quantized(changed[start:stop]) for start, stop in self._ranges]
        encoded = []
        for start, stop in self._ranges:
            residual = self._residual[start:stop]
            residual += changed[start:stop]
            quantized = self._quantized(residual)
            residual -= quantized.dequantize().view(-1)
            encoded.append(quantized)
        return encoded

    def add(self, encoded: Sequence[Tensor]) -> None:
        """Add an encoded change to the sum."""
        for (start, stop), quantized in zip(self._ranges, encoded, strict=True):
            self._total[start:stop] += quantized.dequantize().view(-1)

    def size_bytes(self, encoded: Sequence[Tensor]) -> int:
        """Return the bytes of the elements, and of a scale for each range."""
        return sum(SCALE_BYTES + quantized.untyped_storage().nbytes() for quantized in encoded)

    def sum(self) -> Float32Array:
        """Return the sum of what was added."""
        total: Float32Array = self._total.numpy()
        return total

    def _quantized(self, part: Tensor) -> Tensor:
        low, high = torch.aminmax(part)
        most = 2 ** (self._bits - 1) - 1
        scale = max(float(high), -float(low)) / most or 1.0
        if self._bits == 8:
            return torch.quantize_per_tensor(part, scale, 0, torch.qint8)
        scales, zeros = torch.tensor([scale]), torch.tensor([most + 1.0])
        return torch.quantize_per_channel(part.view(1, -1), scales, zeros, 0, torch.quint4x2)


class HivemindQuantizer:
    """A compression of hivemind, as messages that it would send.

    Parameters
    ----------
    ranges : sequence of (int, int)
        Parts of the vector; longer ones are cut as hivemind does it.
    kind : str
        A key of `HIVEMIND`.
    """

    def __init__(self, ranges: Ranges, kind: str) -> None:
        self.name = f"hivemind's {kind}, no error feedback"
        compression = import_module("hivemind.compression")
        self._describe = compression.CompressionInfo.from_tensor
        self._compression = getattr(compression, kind)()
        self._read = import_module("hivemind.proto.runtime_pb2").Tensor.FromString
        # A byte for each element.
        part = import_module("hivemind.averaging.partition").DEFAULT_PART_SIZE_BYTES
        self._parts = [
            (low, min(low + part, stop))
            for start, stop in ranges
            for low in range(start, stop, part)
        ]
        self._total = torch.zeros(ranges[-1][1])

    def encode(self, change: Float32Array) -> list[bytes]:
        """Compress a change; return a message for each part."""
        encoded = []
        for start, stop in self._parts:
            part = torch.from_numpy(change[start:stop])
            message = self._compression.compress(part, self._describe(part))
            encoded.append(message.SerializeToString())
        return encoded

    def add(self, encoded: Sequence[bytes]) -> None:
        """Add an encoded change to the sum."""
        for (start, stop), message in zip(self._parts, encoded, strict=True):
            self._total[start:stop] += self._compression.extract(self._read(message))

    def size_bytes(self, encoded: Sequence[bytes]) -> int:
        """Return the bytes of all messages."""
        return sum(map(len, encoded))

    def sum(self) -> Float32Array:
        """Return the sum of what was added."""
        total: Float32Array = self._total.numpy()
        return total


def hivemind_quantizers(ranges: Ranges) -> list[Quantizer]:
    """Return those of `HIVEMIND` whose packages are installed."""
    if find_spec("hivemind") is None:
        return []
    kinds = [kind for kind, package in HIVEMIND.items() if find_spec(package) is not None]
    return [HivemindQuantizer(ranges, kind) for kind in kinds]
