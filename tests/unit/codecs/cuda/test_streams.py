"""What crosses between host and device arrives whole, and the training is not waited for."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire_codecs import LocalFeedback, Replica
from gradwire_codecs.cuda.feedback import DeviceLocalFeedback
from gradwire_codecs.cuda.streams import STAGE_BYTES_MIN, STAGES, SideStream
from support.device import HAS_GPU
from support.tiers import examples


@settings(max_examples=examples(10))
@given(sizes=st.lists(st.integers(1, 3 * STAGE_BYTES_MIN), min_size=1, max_size=3 * STAGES))
def test_bytes_arrive_as_they_were_when_they_were_sent(
    device: torch.device, sizes: list[int]
) -> None:
    """Whatever becomes of the buffers they went through, and of the bytes afterwards."""
    random = np.random.default_rng(len(sizes))
    stream = SideStream(device)
    sent = []
    with stream.turn():
        for size in sizes:
            data = bytearray(random.bytes(size))
            sent.append((bytes(data), stream.send(data)))
            data[:] = bytes(size)

        for expected, tensor in sent:
            assert stream.fetch(tensor).numpy().tobytes() == expected


def test_values_of_any_type_come_back(device: torch.device) -> None:
    stream = SideStream(device)
    with stream.turn():
        for dtype in (torch.float32, torch.int32, torch.int64, torch.uint8):
            values = torch.arange(5, dtype=dtype, device=device)

            assert stream.fetch(values).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not HAS_GPU, reason="without a GPU everything is done when it is said")
def test_applying_does_not_wait_for_what_the_training_was_given(device: torch.device) -> None:
    parameters = torch.zeros(10_000, device=device)
    feedback = DeviceLocalFeedback(parameters, Replica.zeros(10_000))
    [body] = LocalFeedback(np.ones(10_000, np.float32), Replica.zeros(10_000)).encode(2**24)
    feedback.apply(body)  # what it compiles is compiled
    torch.cuda.synchronize()

    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call] # cycles: a second
    training = torch.cuda.Event()  # type: ignore[no-untyped-call]
    training.record()
    feedback.apply(body)

    assert not training.query()  # type: ignore[no-untyped-call]
    assert parameters.tolist() == [2.0] * 10_000
