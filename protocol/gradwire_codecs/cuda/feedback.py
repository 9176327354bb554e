"""Residual feedback over vectors in the memory of a device: the same bits as on the CPU.

What is done in every step, and for every peer's update, runs on the device. What a session does
seldom goes through copies on the host: `residual` and `restore_residual` for a checkpoint, the
`values` of the replica when all of it is given away or compared with the master's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch

from gradwire_codecs.arrays import Buffer, Float32Array, Int32Array, UInt32Array
from gradwire_codecs.cuda import lattice
from gradwire_codecs.cuda.decoding import changes_of
from gradwire_codecs.cuda.encoding import encode_hits
from gradwire_codecs.cuda.replica import DeviceReplica
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.cuda.threshold import tiles_of
from gradwire_codecs.cuda.threshold_pass import TILE, DevicePass
from gradwire_codecs.errors import CodecError, NonFiniteError
from gradwire_codecs.feedback.feedback import EVERYWHERE, Feedback, checked_portion
from gradwire_codecs.format.header import START
from gradwire_codecs.format.reading import read_encoded
from gradwire_codecs.format.update import Update
from gradwire_codecs.replica.replica import Replica


class DeviceFeedback(Feedback):
    """What all kinds have in common.

    See `DeviceLocalFeedback`, `DeviceSharedFeedback` and `DevicePartialFeedback`.

    Parameters
    ----------
    parameters : Tensor of shape (N,), dtype float32
        The model's parameters on a device, kept and changed in place.
    replica : Replica
        Of the same length; copied to the device.
    """

    replica: DeviceReplica

    _keeps_apart: ClassVar[bool] = False
    """Whether the residual waits in a vector of its own."""

    _contained: float = 1.0
    """How much of the residual is in the parameters or waits."""

    _times: float = 1.0
    """What that is multiplied by for all of it."""

    def __init__(self, parameters: torch.Tensor, replica: Replica) -> None:
        if (
            parameters.dtype != torch.float32
            or parameters.shape != (len(replica),)
            or not parameters.is_contiguous()
        ):
            raise CodecError(
                f"parameters have to be a flat float32 tensor of {len(replica)} elements, not one "
                f"of {parameters.dtype} and shape {tuple(parameters.shape)}"
            )
        self.parameters = parameters
        self._quantum = float(replica.quantum)
        self._stream = SideStream(parameters.device)
        self.replica = DeviceReplica(replica, self._stream)
        self._kept = torch.zeros_like(parameters) if self._keeps_apart else None
        self._device_pass = DevicePass(
            parameters, self._kept, self.replica.tensor, self._quantum, self._stream,
            self._contained,
        )  # fmt: skip

    @torch.no_grad()
    def _encode(
        self, start: int, stop: int, multiple: int, magnitude_max: int, bytes_max: int
    ) -> list[bytes]:
        parts: list[bytes] = []
        with self._stream.turn():
            ranges = self._device_pass.look(start, stop, multiple, magnitude_max)
            self._absorb(start, stop)
            for low, high in ranges:
                hits = self._device_pass.take(low, high)
                index, count = self._device_pass.index[:hits], self._device_pass.count[:hits]
                parts += encode_hits(self._stream, low, high, multiple, index, count, bytes_max)
                change = self._device_pass.change[:hits]
                magnitude = change.abs().sum(dtype=torch.int64).view(1)
                self.quanta_sent += int(self._stream.fetch(magnitude).item())
                self._device_pass.commit(hits)
        return parts

    @torch.no_grad()
    def check(self) -> None:
        """Raise what `encode` would raise for a parameter, and change nothing."""
        with self._stream.turn():
            self._device_pass.check(0, len(self.replica), 1)

    @torch.no_grad()
    def apply(self, update: Update | Buffer) -> int:
        """Add a peer's update; return how many elements it changes."""
        if isinstance(update, Update):
            update.check_fits(len(self.replica))
            with self._stream.turn():
                self._add(self._sent(update.change), self._sent(update.index))
            return len(update.index)
        if not len(update):
            return 0  # `NOTHING`
        encoded = read_encoded(update, len(self.replica))
        with self._stream.turn():
            change, index = changes_of(encoded, self._stream)
            if index is None:
                self._add_sum(change, int(encoded.header[START]))
            else:
                self._add(change, index)
        return encoded.hits

    @torch.no_grad()
    def apply_sum(self, total: Int32Array, start: int = 0) -> None:
        """Add a sum of updates, in quanta per element."""
        with self._stream.turn():
            self._add_sum(self._sent(total), start)

    @torch.no_grad()
    def mend(self, error: Int32Array, start: int = 0) -> None:
        """Correct the replica where it was damaged; replica plus residual stay what they are."""
        with self._stream.turn():
            span = slice(start, start + len(error))
            before = self._stands_for(span)
            self.replica.tensor[span] += self._sent(error)
            if self._kept is not None:
                after = self._stands_for(span)
                self._kept[span] += before - after
                self.parameters[span] = after + (self.parameters[span] - before)

    @torch.no_grad()
    def residual(self, where: slice = EVERYWHERE) -> Float32Array:
        """Return a copy of the residual on the host, or of some elements of it."""
        with self._stream.turn():
            found = self.parameters[where] - self._stands_for(where)
            if self._kept is not None:
                found += self._kept[where]
            found *= self._times
            copy: Float32Array = self._stream.fetch(found).numpy().copy()
            return copy

    @torch.no_grad()
    def clip(self, limit: np.float32) -> tuple[int, float]:
        """Cut the residual to plus or minus `limit`."""
        most = float(limit * np.float32(self._contained))
        with self._stream.turn():
            shared = self._stands_for(EVERYWHERE)
            before = self.parameters - shared
            if self._kept is not None:
                before += self._kept
            over = before.abs() > most
            cut = torch.where(before > 0, most, -most).to(torch.float32)
            if self._kept is not None:
                self._kept.copy_(torch.where(over, cut, self._kept))
                self.parameters.copy_(torch.where(over, shared, self.parameters))
            else:
                self.parameters.copy_(torch.where(over, cut + shared, self.parameters))
                cut = cut + shared - shared  # what is there now: the sum was rounded
            lost = torch.where(over, (before.double() - cut.double()).abs(), 0.0)
            elements, magnitude = self._stream.fetch(torch.stack([over.sum(), lost.sum()])).tolist()
            return int(elements), magnitude / self._contained

    @torch.no_grad()
    def check_finite(self) -> None:
        """Raise `NonFiniteError` for the first parameter that is NaN or infinite."""
        with self._stream.turn():
            finite = self.parameters.isfinite()
            first = int(self._stream.fetch(finite.to(torch.uint8).argmin().view(1)).item())
            if not finite[first]:
                raise NonFiniteError(first, float(self.parameters[first]))

    @torch.no_grad()
    def add_change(self, change: Float32Array) -> None:
        """Add to the parameters what no optimizer has added."""
        with self._stream.turn():
            self.parameters += self._sent(change)

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Put the parameters back to what they were before, where the block raises."""
        before = self.parameters.detach().clone()
        try:
            yield
        except BaseException:
            with torch.no_grad():
                self.parameters.copy_(before)
            raise

    @torch.no_grad()
    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual, and the parameters by the replica plus what belongs into them."""
        self.check_residual(residual)
        with self._stream.turn():
            restored = self._sent(residual)
            self.parameters.copy_(self._stands_for(EVERYWHERE))
            if self._kept is None:
                self.parameters += restored * self._contained
            else:
                self._kept.copy_(restored)

    @torch.no_grad()
    def settle(self) -> None:
        """Forget the residual: the parameters become what the replica says, bit by bit."""
        with self._stream.turn():
            self.parameters.copy_(self._stands_for(EVERYWHERE))
            if self._kept is not None:
                self._kept.zero_()

    @torch.no_grad()
    def absorb(self) -> None:
        """Bring what the optimizer has changed to where the residual waits."""
        with self._stream.turn():
            self._absorb(0, len(self.replica))

    def close(self) -> None:
        """Do nothing: there are no threads."""

    def _absorb(self, start: int, stop: int) -> None:
        if self._kept is not None:
            self._device_pass.absorb(start, stop)

    def _add(self, change: torch.Tensor, index: torch.Tensor) -> None:
        hits = len(index)
        lattice.add[tiles_of(hits, TILE),](
            self.parameters, self.replica.tensor, self._quantum, index, change, hits, TILE=TILE
        )

    def _add_sum(self, total: torch.Tensor, start: int) -> None:
        elements = len(total)
        span = slice(start, start + elements)
        lattice.add_sum[tiles_of(elements, TILE),](
            self.parameters[span],
            self.replica.tensor[span],
            self._quantum,
            total,
            elements,
            TILE=TILE,
        )

    def _stands_for(self, span: slice) -> torch.Tensor:
        """Return what some elements of the replica stand for."""
        return self.replica.tensor[span].to(torch.float32) * self._quantum

    def _sent(self, array: Float32Array | Int32Array | UInt32Array) -> torch.Tensor:
        """Return an array on the device; what is unsigned is below 2^31."""
        dtype = torch.float32 if array.dtype == np.float32 else torch.int32
        return self._stream.send(np.ascontiguousarray(array).view(np.uint8).data).view(dtype)


class DeviceLocalFeedback(DeviceFeedback):
    """The residual stays in the parameters, as with `LocalFeedback`."""

    moves_parameters = False
    portion = 1.0


class DeviceSharedFeedback(DeviceFeedback):
    """The residual waits in a vector of its own, as with `SharedFeedback`."""

    moves_parameters = True
    portion = 0.0
    _keeps_apart = True


class DevicePartialFeedback(DeviceFeedback):
    """A portion of the residual is in the parameters, as with `PartialFeedback`."""

    moves_parameters = True

    def __init__(self, parameters: torch.Tensor, replica: Replica, portion: float) -> None:
        self.portion = checked_portion(portion)
        self._contained = float(np.float32(portion))
        self._times = float(np.float32(1.0 / portion))
        super().__init__(parameters, replica)

    def add_growth(self, before: Float32Array, factor: np.float32) -> None:
        """Let what the residual has grown by have grown by `factor` times as much besides."""
        super().add_growth(before, factor * np.float32(self._contained))
