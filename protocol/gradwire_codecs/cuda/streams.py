"""`SideStream`: where the codec's work on a device runs, beside the training's, and what crosses.

Only bytes cross between the memories, through pinned memory: from anything else a copy would hold
up the whole device. Whoever waits here waits for the side stream, never for what the training has
given to its own.

With tensors of the CPU, as in the tests, everything is done when it is said, and nothing waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from gradwire_codecs.arrays import Buffer

STAGES: Final = 2
"""Pinned buffers for what goes to the device: one is filled while another is under way."""

STAGE_BYTES_MIN: Final = 2**16


class SideStream:
    """One stream of a device, and pinned memory for what crosses to it and from it.

    Parameters
    ----------
    device : torch.device
        Of type ``cuda``, or ``cpu`` where the kernels are interpreted.
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
        """Run what is inside behind what the training was given, and before what it will be.

        The order holds on the device; neither here nor there does the calling thread wait. The
        parameters outlive both streams, and what is allocated inside is used inside alone, so the
        allocator need not be told (``record_stream``) who uses it.
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
        """Return a flat tensor on the CPU, once what leads to it is done; inside a `turn`.

        What is returned is valid until the next call.
        """
        if self._stream is None:
            return tensor
        host = self._fetching.first_bytes(tensor.numel() * tensor.element_size()).view(tensor.dtype)
        host.copy_(tensor, non_blocking=True)
        self._fetching.record_copy(self._stream)
        self._fetching.wait()
        return host

    def send(self, data: Buffer) -> torch.Tensor:
        """Return bytes on the device, as a tensor of dtype uint8; inside a `turn`."""
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
    """A buffer that the device copies from or to."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned
        self._memory = torch.empty(STAGE_BYTES_MIN, dtype=torch.uint8, pin_memory=pinned)
        self._copied: torch.cuda.Event | None = None

    def first_bytes(self, size: int) -> torch.Tensor:
        """Return so many bytes of it; larger memory takes its place where it is too small."""
        if size > self._memory.numel():
            # Twice what is needed, so that sizes that grow do not allocate in every step.
            self._memory = torch.empty(2 * size, dtype=torch.uint8, pin_memory=self._pinned)
        return self._memory[:size]

    def record_copy(self, stream: torch.cuda.Stream) -> None:
        """Note that a stream was given a copy."""
        if self._copied is None:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record(stream)

    def wait(self) -> None:
        """Wait until the last copy is done; other threads run meanwhile."""
        if self._copied is not None:
            self._copied.synchronize()
