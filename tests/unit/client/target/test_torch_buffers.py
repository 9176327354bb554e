"""The buffers of torch modules: which of them are averaged, and how they are read and written."""

import numpy as np
import pytest
import torch
from torch import nn

from gradwire.errors import UsageError
from gradwire.target.adapters import buffers_of
from gradwire.target.buffers import BufferValues
from gradwire.target.torch_buffers import TorchBuffers
from support.wording import naming


class Holder(nn.Module):
    """A module with the buffers that a test gives it."""

    def __init__(self, persistent: bool = True, **buffers: torch.Tensor | None) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=persistent)


def names_of(module: nn.Module) -> list[str]:
    layout = TorchBuffers(module).layout
    return [tensor.name for tensor in (*layout.floats, *layout.integers)]


# Which they are.


def test_batch_norm_has_two_statistics_and_a_count() -> None:
    layout = TorchBuffers(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))).layout

    assert [(t.name, t.shape) for t in layout.floats] == [
        ("1.running_mean", (4,)),
        ("1.running_var", (4,)),
    ]
    assert [(t.name, t.shape, t.type) for t in layout.integers] == [
        ("1.num_batches_tracked", (), "torch.int64")
    ]
    assert layout.float_bytes == 4


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, dtype=torch.bool),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3).to_sparse(),
        torch.zeros(3, dtype=torch.uint16),
        None,
    ],
    ids=["bool", "complex", "sparse", "uint16", "none"],
)
def test_what_no_mean_is_taken_of_is_left_alone(tensor: torch.Tensor | None) -> None:
    assert names_of(Holder(left=tensor, taken=torch.ones(1))) == ["taken"]


def test_what_is_no_state_is_left_alone() -> None:
    assert buffers_of(Holder(persistent=False, cache=torch.ones(3))) is None


def test_half_precision_on_one_worker_is_the_same_layout_and_float64_is_not() -> None:
    layouts = [
        TorchBuffers(nn.BatchNorm1d(4).to(dtype)).layout.digest
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    ]

    assert layouts[0] == layouts[1] == layouts[2] != layouts[3]


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.LazyBatchNorm1d(affine=False), ("running_mean", "shape", "run the model once")),
        (Holder(far=torch.ones(3, device="meta")), ("far", "meta device")),
    ],
)
def test_a_buffer_without_values_is_refused(module: nn.Module, named: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=naming("buffer", *named)):
        buffers_of(module)


# Reading and writing.


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_what_is_written_is_read_again(dtype: torch.dtype) -> None:
    module = Holder(
        a=torch.tensor([[1.5, -2.0]], dtype=dtype),
        n=torch.tensor(3, dtype=torch.int32),
        b=torch.tensor(0.25, dtype=dtype),
    )
    buffers = TorchBuffers(module)

    assert buffers.read().floats.tolist() == [1.5, -2.0, 0.25]
    buffers.write(BufferValues(np.array([4, 5, 6], np.float64), np.array([7])))

    assert (module.a.tolist(), module.b.item(), module.n.item()) == ([[4, 5]], 6, 7)  # type: ignore[operator]
    assert (module.a.dtype, module.n.dtype) == (dtype, torch.int32)
    assert buffers.read().floats.dtype == (np.float64 if dtype == torch.float64 else np.float32)


def test_a_tensor_that_holds_the_value_already_is_not_touched() -> None:
    """As a mask is, with which a gradient may still have to be computed."""
    mask, moved = torch.ones(2), torch.ones(2)
    buffers = TorchBuffers(Holder(mask=mask, moved=moved))
    weight = torch.ones(2, requires_grad=True)
    with_mask, with_moved = (weight * mask).sum(), (weight * moved).sum()

    buffers.write(BufferValues(np.array([1, 1, 2, 2], np.float32), np.zeros(0, np.int64)))

    with_mask.backward()  # type: ignore[no-untyped-call]
    assert moved.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        with_moved.backward()  # type: ignore[no-untyped-call]


def test_a_buffer_that_was_replaced_is_found_again() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))
    buffers = TorchBuffers(module)
    other = {name: tensor + 5 for name, tensor in module.state_dict().items()}

    module.load_state_dict(other, assign=True)

    assert buffers.read().floats.tolist() == [5, 5, 6, 6]
    buffers.write(BufferValues(np.zeros(4, np.float32), np.array([9])))
    assert module.state_dict()["0.running_var"].tolist() == [0, 0]
    assert module.state_dict()["0.num_batches_tracked"].item() == 9


@pytest.mark.parametrize(
    ("present", "named"),
    [
        (None, ("gone",)),
        (torch.ones(3), ("float (2,)", "torch.float32 (3,)")),
        (torch.ones(2, dtype=torch.int64), ("float (2,)", "torch.int64")),
    ],
    ids=["gone", "shape", "type"],
)
def test_a_buffer_that_is_another_one_now_is_refused(
    present: torch.Tensor | None, named: tuple[str, ...]
) -> None:
    module = Holder(a=torch.ones(2))
    buffers = TorchBuffers(module)

    module.register_buffer("a", present)

    with pytest.raises(UsageError, match=naming("buffer", "'a'", *named, "share_buffers=False")):
        buffers.read()
