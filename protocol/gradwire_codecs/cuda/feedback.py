"""Residual feedback over vectors in the memory of a device: the same bits as on the CPU.

The work of every step, and of every peer's update, runs on the device. What a session does rarely
copies vectors to or from the host: `residual` and `restore_residual` for a checkpoint, and `values`
of the replica to send all of it or to compare it with the master's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from gradwire_codecs.arrays import Buffer, Float32Array, Int8Array, Int32Array, UInt32Array
from gradwire_codecs.cuda import lattice
from gradwire_codecs.cuda.decoding import changes_of, counts_to_device
from gradwire_codecs.cuda.encoding import encode_hits
from gradwire_codecs.cuda.replica import DeviceReplica
from gradwire_codecs.cuda.streams import SideStream
from gradwire_codecs.cuda.threshold import tiles_of
from gradwire_codecs.cuda.threshold_pass import TILE, DevicePass
from gradwire_codecs.errors import CodecError, NonFiniteError
from gradwire_codecs.feedback.feedback import (
    EVERYWHERE,
    Feedback,
    dense_multiple,
)
from gradwire_codecs.format.header import START
from gradwire_codecs.format.reading import read_encoded
from gradwire_codecs.format.update import DenseUpdate, Update
from gradwire_codecs.replica.replica import Replica


class DeviceFeedback(Feedback):
    """The base of both kinds whose vectors are tensors on a device.

    Parameters
    ----------
    parameters : Tensor of shape (N,), dtype float32
        The model's parameters on a device; changed in place.
    replica : Replica
        Of the same length; copied to the device.
    """

    replica: DeviceReplica

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
        self._stored = torch.zeros_like(parameters) if self.stores_residual else None
        self._pass = DevicePass(
            parameters, self._stored, self.replica.tensor, self._quantum, self._stream
        )

    @torch.no_grad()
    def _encode(
        self, start: int, stop: int, multiple: int, magnitude_max: int, bytes_max: int
    ) -> list[bytes]:
        parts: list[bytes] = []
        with self._stream.turn():
            ranges = self._pass.scan(start, stop, multiple, magnitude_max)
            self._absorb(start, stop)
            for low, high in ranges:
                hits = self._pass.collect_hits(low, high)
                index, count = self._pass.index[:hits], self._pass.count[:hits]
                parts += encode_hits(self._stream, low, high, multiple, index, count, bytes_max)
                change = self._pass.change[:hits]
                magnitude = change.abs().sum(dtype=torch.int64).view(1)
                self.quanta_sent += int(self._stream.fetch(magnitude).item())
                self._pass.commit(hits)
        return parts

    @torch.no_grad()
    def check(self) -> None:
        """Raise the error that `encode` would raise for a parameter; change nothing."""
        with self._stream.turn():
            self._pass.check(0, len(self.replica), 1)

    @torch.no_grad()
    def take(self, start: int, stop: int, magnitude_max: int) -> DenseUpdate | None:
        """Take all elements of a range out of the residual, each rounded to whole thresholds."""
        span = slice(start, stop)
        with self._stream.turn():
            self._absorb(start, stop)
            shared = self._replica_values(span)
            if self._stored is None:
                residual = self.parameters[span] - shared
            else:
                residual = self._stored[span]
            peak = float(self._stream.fetch(residual.abs().max().view(1)).item())
            if not peak:
                return None
            multiple = dense_multiple(peak, self._quantum, magnitude_max)
            tau = multiple * self._quantum
            # By a tensor: by a number, torch would multiply with its reciprocal on a GPU.
            exact = torch.full((1,), tau, dtype=torch.float32, device=residual.device)
            count = torch.round(residual / exact).clamp(-magnitude_max, magnitude_max)
            left = (residual.double() - count.double() * tau).float()
            if self._stored is None:
                self.parameters[span] = shared + left
            else:
                self._stored[span] = left
            counts: Int8Array = self._stream.fetch(count.to(torch.int8)).numpy().copy()
        return DenseUpdate(start, stop, multiple, counts)

    @torch.no_grad()
    def apply(self, update: Update | Buffer) -> int:
        """Add a peer's update; return how many elements it changes."""
        if isinstance(update, Update):
            update.check_fits(len(self.replica))
            with self._stream.turn():
                if isinstance(update, DenseUpdate):
                    self._add_sum(
                        counts_to_device(update.counts, update.multiple, self._stream), update.start
                    )
                else:
                    self._add(self._to_device(update.change), self._to_device(update.index))
            return update.hits
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
        """Add a sum of updates to the elements from `start` on."""
        with self._stream.turn():
            self._add_sum(self._to_device(total), start)

    @torch.no_grad()
    def correct_replica(self, error: Int32Array, start: int = 0) -> None:
        """Correct damaged elements of the replica; replica plus residual stays the same."""
        with self._stream.turn():
            span = slice(start, start + len(error))
            before = self._replica_values(span)
            self.replica.tensor[span] += self._to_device(error)
            if self._stored is not None:
                after = self._replica_values(span)
                self._stored[span] += before - after
                self.parameters[span] = after + (self.parameters[span] - before)

    @torch.no_grad()
    def residual(self, where: slice = EVERYWHERE) -> Float32Array:
        """Return a copy of the residual on the host, or of a slice of it."""
        with self._stream.turn():
            found = self.parameters[where] - self._replica_values(where)
            if self._stored is not None:
                found += self._stored[where]
            copy: Float32Array = self._stream.fetch(found).numpy().copy()
            return copy

    @torch.no_grad()
    def check_finite(self) -> None:
        """Raise `NonFiniteError` for the first parameter that is NaN or infinite."""
        with self._stream.turn():
            finite = self.parameters.isfinite()
            first = int(self._stream.fetch(finite.to(torch.uint8).argmin().view(1)).item())
            if not finite[first]:
                raise NonFiniteError(first, float(self.parameters[first]))

    @torch.no_grad()
    def add_change(self, change: Float32Array, start: int = 0) -> None:
        """Add a change to the parameters, as an optimizer would."""
        with self._stream.turn():
            self.parameters[start : start + len(change)] += self._to_device(change)

    @contextmanager
    def restoring_on_error(self) -> Iterator[None]:
        """Restore the parameters if the block raises."""
        before = self.parameters.detach().clone()
        try:
            yield
        except BaseException:
            with torch.no_grad():
                self.parameters.copy_(before)
            raise

    @torch.no_grad()
    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual, and compute the parameters from the replica and it."""
        self.check_residual(residual)
        with self._stream.turn():
            restored = self._to_device(residual)
            self.parameters.copy_(self._replica_values(EVERYWHERE))
            if self._stored is None:
                self.parameters += restored
            else:
                self._stored.copy_(restored)

    @torch.no_grad()
    def drop_residual(self) -> None:
        """Set the residual to zero: the parameters become those of the replica, bit by bit."""
        with self._stream.turn():
            self.parameters.copy_(self._replica_values(EVERYWHERE))
            if self._stored is not None:
                self._stored.zero_()

    @torch.no_grad()
    def absorb(self) -> None:
        """Move what the optimizer has changed to the residual, if that has a vector of its own."""
        with self._stream.turn():
            self._absorb(0, len(self.replica))

    def close(self) -> None:
        """Do nothing: there are no threads."""

    def _absorb(self, start: int, stop: int) -> None:
        if self._stored is not None:
            self._pass.absorb(start, stop)

    def _add(self, change: torch.Tensor, index: torch.Tensor) -> None:
        hits = len(index)
        lattice.add_to_both[tiles_of(hits, TILE),](
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

    def _replica_values(self, span: slice) -> torch.Tensor:
        """Return a slice of the replica in units of the parameters."""
        return self.replica.tensor[span].to(torch.float32) * self._quantum

    def _to_device(self, array: Float32Array | Int32Array | UInt32Array) -> torch.Tensor:
        """Copy an array to the device; unsigned numbers have to be below 2^31."""
        dtype = torch.float32 if array.dtype == np.float32 else torch.int32
        return self._stream.send(np.ascontiguousarray(array).view(np.uint8).data).view(dtype)


class DeviceLocalFeedback(DeviceFeedback):
    """The residual stays in the parameters, as with `LocalFeedback`."""

    stores_residual = False


class DeviceSharedFeedback(DeviceFeedback):
    """The residual has a vector of its own, as with `SharedFeedback`."""

    stores_residual = True
