"""`SideStream`: runs the codec's work on a device beside the training, and copies to and from it.

Copies go through pinned memory: others would block the whole device. A wait here is for the side
stream only, never for the work that the training has queued on its own stream.

With tensors of the CPU, as in the tests, every operation is done when its call returns.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from gradwire_codecs.arrays import Buffer

STAGES: Final = 2
"""Pinned buffers for copies to the device: one is filled while another is copied."""

STAGE_BYTES_MIN: Final = 2**16


class SideStream:
    """One stream of a device, and pinned memory for copies.

    The device is of type ``cuda``, or ``cpu`` if the kernels are interpreted.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._fetching = _PinnedBuffer(pinned=self._stream is not None)
        self._sending = [_PinnedBuffer(pinned=self._stream is not None) for _ in range(STAGES)]
        self._turn = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block after the work queued by the training, and before what it queues later.

        The order holds on the device; the calling thread does not wait. The parameters outlive both
        streams, and memory allocated in the block is used only there, so that no tensor needs
        ``record_stream``.
        """
        if self._stream is None:
            yield
            return
        training = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(training)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            training.wait_stream(self._stream)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Wait for a flat tensor, and return it on the CPU, valid until the next call.

        Call it inside a `turn`.
        """
        if self._stream is None:
            return tensor
        host = self._fetching.first_bytes(tensor.numel() * tensor.element_size()).view(tensor.dtype)
        host.copy_(tensor, non_blocking=True)
        self._fetching.record_copy(self._stream)
        self._fetching.wait()
        return host

    def send(self, data: Buffer) -> torch.Tensor:
        """Copy bytes to a tensor of dtype uint8 on the device; call it inside a `turn`."""
        stage = self._sending[self._turn % STAGES]
        self._turn += 1
        stage.wait()
        host = stage.first_bytes(len(data))
        host.numpy()[:] = memoryview(data).cast("B")
        if self._stream is None:
            return host.clone()
        sent = torch.empty(len(data), dtype=torch.uint8, device=self.device)
        sent.copy_(host, non_blocking=True)
        stage.record_copy(self._stream)
        return sent


class _PinnedBuffer:
    """A pinned buffer that the device copies from or to."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(STAGE_BYTES_MIN, dtype=torch.uint8, pin_memory=pinned)
        self._copied: torch.cuda.Event | None = None

    def first_bytes(self, size: int) -> torch.Tensor:
        """Return the first `size` bytes; a buffer that is too small is replaced."""
        if size > self._memory.numel():
            # Twice the size, so as not to allocate in every step while sizes grow.
            self._memory = torch.empty(2 * size, dtype=torch.uint8, pin_memory=self._pinned)
        return self._memory[:size]

    def record_copy(self, stream: torch.cuda.Stream) -> None:
        """Note that a copy was queued on a stream."""
        if self._copied is None:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record(stream)

    def wait(self) -> None:
        """Wait until the last copy is done; other threads run meanwhile."""
        if self._copied is not None:
            self._copied.synchronize()
