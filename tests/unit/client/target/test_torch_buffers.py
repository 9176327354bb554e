"""The buffers of torch modules: which of them are averaged, and how they are read and written."""

import numpy as np
import pytest
import torch
from torch import nn

from gradwire.errors import UsageError
from gradwire.target.adapters import buffers_of
from gradwire.target.torch_buffers import TorchBuffers
from gradwire_protocol.messages.buffers.layout import Buffers, BufferValues
from support.wording import naming


class Holder(nn.Module):
    """A module with the buffers that a test gives it."""

    def __init__(self, persistent: bool = True, **buffers: torch.Tensor | None) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=persistent)


def names_of(module: nn.Module) -> list[str]:
    return [tensor.name for tensor in TorchBuffers(module).layout.tensors]


def averaging(module: nn.Module) -> TorchBuffers:
    """Return the buffers of a module of which all are averaged."""
    return TorchBuffers(module, ["*"])


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
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3).to_sparse(),
        None,
    ],
    ids=["complex", "sparse", "none"],
)
def test_what_does_not_travel_is_left_alone(tensor: torch.Tensor | None) -> None:
    assert names_of(Holder(left=tensor, taken=torch.ones(1))) == ["taken"]


def test_what_is_no_state_is_left_alone() -> None:
    assert buffers_of(Holder(persistent=False, cache=torch.ones(3))) is None


def test_half_precision_on_one_worker_is_the_same_layout_and_float64_is_not() -> None:
    layouts = [
        TorchBuffers(nn.BatchNorm1d(4).to(dtype)).layout.packed
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
    buffers = averaging(module)

    assert buffers.read().floats.tolist() == [1.5, -2.0, 0.25]
    buffers.write(BufferValues(np.array([4, 5, 6], np.float64), np.array([7])))

    assert (module.a.tolist(), module.b.item(), module.n.item()) == ([[4, 5]], 6, 7)  # type: ignore[operator]
    assert (module.a.dtype, module.n.dtype) == (dtype, torch.int32)
    assert buffers.read().floats.dtype == (np.float64 if dtype == torch.float64 else np.float32)


def test_a_tensor_that_holds_the_value_already_is_not_touched() -> None:
    """As a mask is, with which a gradient may still have to be computed."""
    mask, moved = torch.ones(2), torch.ones(2)
    buffers = averaging(Holder(mask=mask, moved=moved))
    weight = torch.ones(2, requires_grad=True)
    with_mask, with_moved = (weight * mask).sum(), (weight * moved).sum()

    buffers.write(BufferValues(np.array([1, 1, 2, 2], np.float32), np.zeros(0, np.int64)))

    with_mask.backward()  # type: ignore[no-untyped-call]
    assert moved.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        with_moved.backward()  # type: ignore[no-untyped-call]


def test_a_buffer_that_was_replaced_is_found_again() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))
    buffers = averaging(module)
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
    buffers = averaging(module)

    module.register_buffer("a", present)

    with pytest.raises(UsageError, match=naming("buffer", "'a'", *named, "share_buffers=False")):
        buffers.read()


# What is not averaged.


OTHERS = [
    torch.tensor([3, 1, 2]),
    torch.tensor([[True, False, True]] * 3),
    torch.tensor([0.0, -torch.inf, torch.nan]),
    torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    torch.tensor([1 / 3], dtype=torch.float64),
    torch.tensor([-3], dtype=torch.int8),
    torch.tensor(2**16 - 1, dtype=torch.uint16),
    torch.zeros(0),
]


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: f"{value.dtype} {tuple(value.shape)}")
def test_each_kind_of_buffer_is_written_as_it_was_read_elsewhere(value: torch.Tensor) -> None:
    one = TorchBuffers(Holder(a=torch.zeros(2), b=value, c=torch.ones(1)))
    module = Holder(a=torch.ones(2), b=torch.zeros_like(value), c=torch.zeros(1))
    other = TorchBuffers(module)
    assert one.layout == other.layout
    assert not one.layout.floats + one.layout.integers

    sent = Buffers.parse(one.layout.pack_values(1, one.read(), final=False).pack())
    values = other.layout.unpack(sent)
    assert values is not None
    other.write(values)

    for name, expected in (("a", torch.zeros(2)), ("b", value), ("c", torch.ones(1))):
        torch.testing.assert_close(module.get_buffer(name), expected, equal_nan=True)
    assert one.layout.from_file(memoryview(one.layout.to_file(values))).equals(values)


def test_running_statistics_are_averaged_and_what_a_script_names() -> None:
    module = nn.Sequential(
        nn.InstanceNorm2d(3, track_running_stats=True),
        Holder(perm=torch.arange(3), ema=torch.ones(1), count=torch.zeros(1, dtype=torch.int64)),
        nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
    )

    plain = TorchBuffers(module).layout
    named = TorchBuffers(module, ["1.ema", "*.count"]).layout

    norm = ["0.running_mean", "0.running_var"]
    assert [tensor.name for tensor in plain.floats] == norm
    assert [tensor.name for tensor in plain.integers] == ["0.num_batches_tracked"]
    power = [f"2.parametrizations.weight.0.{name}" for name in ("_u", "_v")]
    assert [tensor.name for tensor in plain.others] == ["1.perm", "1.ema", "1.count", *power]
    assert [tensor.name for tensor in named.floats] == [*norm, "1.ema"]
    assert [tensor.name for tensor in named.integers] == ["0.num_batches_tracked", "1.count"]


def test_a_name_that_no_buffer_has_is_refused() -> None:
    with pytest.raises(UsageError, match=naming("averaged_buffers", "'emma.*'", "running_mean")):
        buffers_of(nn.BatchNorm1d(2), ["emma.*"])


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_what_has_no_mean_is_refused_where_it_is_named(dtype: torch.dtype) -> None:
    module = Holder(mask=torch.zeros(2, dtype=dtype), ema=torch.ones(2))

    with pytest.raises(UsageError, match=naming("averaged_buffers", "'mask'", str(dtype))):
        buffers_of(module, ["mask"])
    assert [tensor.name for tensor in averaging(module).layout.others] == ["mask"]


def test_a_wrapper_is_no_part_of_a_name() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4))

    assert names_of(nn.DataParallel(module)) == names_of(module)
