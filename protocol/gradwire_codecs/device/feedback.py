"""Residual feedback over vectors in the memory of a device: what is sent is what the host sends.

A pass compares all residuals with the threshold, in float32 as on the host: the quantum is a power
of two, so every product with it is exact. `nonzero` collects the hits. It is where the host waits
for the device, once in a step, since only then is known how many there are; then all that the host
needs of them comes in one copy. The host counts their thresholds, encodes them, and returns the
counts.

What a session does rarely copies vectors to or from the host, such as `residual` and
`restore_residual` for a checkpoint.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradwire_codecs.arrays import Buffer, Float32Array, Int8Array, Int32Array, UInt32Array
from gradwire_codecs.errors import CodecError, NonFiniteError, OutOfRangeError
from gradwire_codecs.feedback.feedback import EVERYWHERE, Feedback, dense_multiple
from gradwire_codecs.feedback.threshold_pass import MARGIN, capacity_of, ranges_of
from gradwire_codecs.format.update import DenseUpdate, Update, decode, split_update
from gradwire_codecs.kernels.threshold import CHUNK, thresholds_of
from gradwire_codecs.replica.replica import Replica


class DeviceReplica(Replica):
    """A replica in the memory of a device, copied from `replica`; a `DeviceFeedback` changes it.

    What is rare copies all of it to the host: sending it, comparing it, its digest.
    """

    def __init__(self, replica: Replica, device: torch.device) -> None:
        self.quantum_exponent = replica.quantum_exponent
        self.tensor = to_device(replica.values, device)
        """Shape (N,), dtype int32."""

    def __len__(self) -> int:
        """Return N."""
        return self.tensor.numel()

    @property
    def values(self) -> Int32Array:  # type: ignore[override]
        """A read-only copy on the host."""
        values = self.values_at(slice(None))
        values.flags.writeable = False
        return values

    def values_at(self, where: slice) -> Int32Array:
        """Return a copy of some elements, shape (n,), in the memory of the host."""
        values: Int32Array = self.tensor[where].to("cpu", copy=True).numpy()
        return values


def to_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device."""
    copy = torch.tensor(array)
    if device.type == "cuda":
        # From other memory, the copy would wait for all that the device has been given to do.
        copy = copy.pin_memory()
    return copy.to(device, non_blocking=True)


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
        self.replica = DeviceReplica(replica, parameters.device)
        self._quantum = float(replica.quantum)
        self._limit = 2.0**31 * self._quantum
        self._stored = torch.zeros_like(parameters) if self.stores_residual else None

    def _encode(
        self, start: int, stop: int, multiple: int, magnitude_max: int, bytes_max: int
    ) -> list[bytes]:
        span = slice(start, stop)
        residual, values = self._residual(span), self.replica.tensor[span]
        place, index, hits = self._find_hits(residual, span, multiple)
        thresholds = hits.astype(np.float64) / (multiple * self._quantum)
        count: Int32Array = thresholds.clip(-magnitude_max, magnitude_max).astype(np.int32)
        parts: list[bytes] = []
        # Cut where the host's buffers would be full, so that the updates are the same bytes.
        chunks = -(-(stop - start) // CHUNK)
        in_chunks = np.bincount((index - np.uint32(start)) // CHUNK, minlength=chunks)
        room = capacity_of(len(self.replica))
        for low, high in ranges_of(start, stop, in_chunks.astype(np.int32), room):
            part = Update(start, stop, multiple, index, count).within(low, high)
            parts += split_update(part, bytes_max)
        self.quanta_sent = multiple * thresholds_of(count)
        change = to_device(count * np.int32(multiple), residual.device)
        values.index_add_(0, place, change)
        if self._stored is not None:
            left = residual[place].double() - change.double() * self._quantum
            residual[place] = left.float()
            self._set_residual(span, residual)
        return parts

    def check(self) -> None:
        """Raise the error that `encode` would raise for a parameter; change nothing."""
        # Sending all of an element would lead to the sum of what both vectors hold.
        largest = self.parameters.abs().max()
        if self._stored is not None:
            largest += self._stored.abs().max()
        if not float(largest) < self._limit * (1 - MARGIN):
            self._find_hits(self._residual(EVERYWHERE), EVERYWHERE, 1)

    def take(self, start: int, stop: int, magnitude_max: int) -> DenseUpdate | None:
        """Take all elements of a range out of the residual, each rounded to whole thresholds."""
        span = slice(start, stop)
        residual = self._residual(span)
        peak = float(residual.abs().max())
        if not peak:
            return None
        multiple = dense_multiple(peak, self._quantum, magnitude_max)
        tau = multiple * self._quantum
        # By a tensor: by a number, torch would multiply with its reciprocal on a GPU.
        count = torch.round(residual / torch.full_like(residual[:1], tau))
        count.clamp_(-magnitude_max, magnitude_max)
        self._set_residual(span, (residual.double() - count.double() * tau).float())
        counts: Int8Array = count.to(torch.int8).numpy(force=True)
        return DenseUpdate(start, stop, multiple, counts)

    def apply(self, update: Update | Buffer) -> int:
        """Add a peer's update; return how many elements it changes."""
        if not isinstance(update, Update):
            update = decode(update, len(self.replica))
        update.check_fits(len(self.replica))
        device = self.parameters.device
        if isinstance(update, DenseUpdate):
            change = to_device(update.counts, device).to(torch.int32) * update.multiple
            self._add(slice(update.start, update.stop), change)
        else:
            index = to_device(update.index.view(np.int32), device)
            self._add(index.long(), to_device(update.change, device))
        return update.hits

    def apply_sum(self, total: Int32Array, start: int = 0) -> None:
        """Add a sum of updates to the elements from `start` on."""
        self._add(slice(start, start + len(total)), to_device(total, self.parameters.device))

    def correct_replica(self, error: Int32Array, start: int = 0) -> None:
        """Correct damaged elements of the replica; replica plus residual stays the same."""
        span = slice(start, start + len(error))
        residual, before = self._residual(span), self._shared(span)
        self.replica.tensor[span] += to_device(error, residual.device)
        if self._stored is not None:
            self._set_residual(span, residual + (before - self._shared(span)))

    def decay(self, factor: float) -> None:
        """Multiply the residual by `factor`, but for what the optimizer has changed since."""
        assert self._stored is not None
        self._stored *= factor

    def residual(self, where: slice = EVERYWHERE) -> Float32Array:
        """Return a copy of the residual on the host, or of a slice of it."""
        residual: Float32Array = self._residual(where).numpy(force=True)
        return residual

    def check_finite(self) -> None:
        """Raise `NonFiniteError` for the first parameter that is NaN or infinite."""
        faults = torch.nonzero(~self.parameters.isfinite())
        if len(faults):
            first = int(faults[0])
            raise NonFiniteError(first, float(self.parameters[first]))

    def add_change(self, change: Float32Array, start: int = 0) -> None:
        """Add a change to the parameters, as an optimizer would."""
        span = slice(start, start + len(change))
        self.parameters[span] += to_device(change, self.parameters.device)

    @contextmanager
    def restoring_on_error(self) -> Iterator[None]:
        """Restore the parameters if the block raises."""
        before = self.parameters.clone()
        try:
            yield
        except BaseException:
            self.parameters.copy_(before)
            raise

    def restore_residual(self, residual: Float32Array) -> None:
        """Replace the residual, and compute the parameters from the replica and it."""
        self.check_residual(residual)
        self._set_residual(EVERYWHERE, to_device(residual, self.parameters.device))

    def drop_residual(self) -> None:
        """Set the residual to zero: the parameters become those of the replica, bit by bit."""
        self._set_residual(EVERYWHERE, torch.zeros_like(self.parameters))

    def absorb(self) -> None:
        """Move what the optimizer has changed to the residual, if that has a vector of its own."""
        if self._stored is not None:
            self._set_residual(EVERYWHERE, self._residual(EVERYWHERE))

    def _find_hits(
        self, residual: torch.Tensor, span: slice, multiple: int
    ) -> tuple[torch.Tensor, UInt32Array, Float32Array]:
        """Find the elements of a range whose residual has reached the threshold.

        Returns
        -------
        place : Tensor of shape (hits,), dtype int64
            Their places in the range, on the device.
        index : ndarray of shape (hits,), dtype uint32
            Their positions in the whole vector.
        residual : ndarray of shape (hits,), dtype float32

        Raises
        ------
        NonFiniteError, OutOfRangeError
            For the first such element among them.
        """
        # A NaN is not below the threshold, and so it is found like a hit.
        place = torch.nonzero(~(residual.abs() < multiple * self._quantum)).view(-1)
        parts = place.int(), residual[place].view(torch.int32), self.replica.tensor[span][place]
        at, bits, values = torch.stack(parts).numpy(force=True)
        index = at.view(np.uint32) + np.uint32(span.start or 0)
        hits: Float32Array = bits.view(np.float32)
        # The replica moves towards this and never past it, so it stays in range too.
        target = values * np.float64(self._quantum) + hits
        fits = np.abs(target) < self._limit
        if not fits.all():
            first = int(np.argmin(fits))
            raise self._fault_of(int(index[first]), finite=bool(np.isfinite(hits[first])))
        return place, index, hits

    def _fault_of(self, element: int, *, finite: bool) -> NonFiniteError | OutOfRangeError:
        value = float(self.parameters[element])
        if self._stored is not None:
            value += float(self._stored[element])
        if finite:
            return OutOfRangeError(element, value, self._limit)
        return NonFiniteError(element, value)

    def _add(self, where: slice | torch.Tensor, change: torch.Tensor) -> None:
        """Add changes, in quanta, to elements of replica and parameters; 0 changes nothing."""
        values, parameters = self.replica.tensor[where], self.parameters[where]
        after = values + change
        # The parameter stays as far from the replica as it was: see `kernels.lattice.add_to_both`.
        moved = after.float() * self._quantum + (parameters - values.float() * self._quantum)
        self.parameters[where] = torch.where(change != 0, moved, parameters)
        self.replica.tensor[where] = after

    def _residual(self, where: slice) -> torch.Tensor:
        parameters, values = self.parameters[where], self.replica.tensor[where]
        residual = torch.sub(parameters, values, alpha=self._quantum)
        if self._stored is not None:
            residual += self._stored[where]
        return residual

    def _set_residual(self, where: slice, residual: torch.Tensor) -> None:
        """Replace the residual of a range, and compute its parameters from the replica."""
        shared = self._shared(where)
        if self._stored is None:
            self.parameters[where] = shared + residual
        else:
            self.parameters[where] = shared
            self._stored[where] = residual

    def _shared(self, where: slice) -> torch.Tensor:
        """Return a slice of the replica in units of the parameters."""
        return self.replica.tensor[where].float() * self._quantum


class DeviceLocalFeedback(DeviceFeedback):
    """The residual stays in the parameters, as with `LocalFeedback`."""

    stores_residual = False


class DeviceSharedFeedback(DeviceFeedback):
    """The residual has a vector of its own, as with `SharedFeedback`."""

    stores_residual = True
