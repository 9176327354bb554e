"""Torch tensors as one vector: in place where that can be, and without a trace of rounding."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from gradwire.errors import UsageError
from gradwire.target.adapters import parameters_of
from gradwire.target.torch_parameters import TorchParameters
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX, Layout, Tensor
from support.wording import naming


def model(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def attached(module: torch.nn.Module) -> TorchParameters:
    return TorchParameters(list(module.named_parameters()))


def flat(module: torch.nn.Module) -> list[float]:
    """Return all parameters of a module, as its own methods give them."""
    values: list[float] = torch.nn.utils.parameters_to_vector(module.parameters()).tolist()
    return values


def train(module: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    random = torch.Generator().manual_seed(3)
    for _ in range(steps):
        optimizer.zero_grad()
        module(torch.randn(8, 3, generator=random)).pow(2).mean().backward()
        optimizer.step()


# In place.


def test_a_module_s_parameters_stay_the_same_objects() -> None:
    module = model()
    before = list(module.parameters())
    before[1].requires_grad_(False)
    before[0].grad = torch.ones_like(before[0])

    attached(module)

    assert all(one is other for one, other in zip(module.parameters(), before, strict=True))
    assert [p.requires_grad for p in before] == [True, False, True, True]
    assert before[0].grad is not None
    assert all(p.is_leaf for p in before)


def test_neither_way_copies_anything() -> None:
    module = model()
    parameters = attached(module)
    places = [p.data_ptr() for p in module.parameters()]
    block = range(parameters.vector.ctypes.data, parameters.vector.ctypes.data + 4 * 21)

    train(module, torch.optim.SGD(module.parameters(), lr=0.1), 1)
    parameters.gather()
    parameters.scatter()

    assert [p.data_ptr() for p in module.parameters()] == places
    assert all(place in block for place in places)


# Copied.


def transposed() -> torch.Tensor:
    return torch.zeros(3, 2).t()


def part_of_a_larger_one() -> torch.Tensor:
    return torch.zeros(4, 3)[:2]


def shared_with_processes() -> torch.Tensor:
    tensor = torch.zeros(2, 3)
    tensor.untyped_storage().share_memory_()
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        transposed,
        part_of_a_larger_one,
        shared_with_processes,
        *(
            partial(torch.zeros, 2, 3, dtype=dtype)
            for dtype in (torch.float64, torch.bfloat16, torch.float16)
        ),
    ],
)
def test_tensors_of_another_dtype_or_that_have_to_keep_their_memory_are_copied_to_and_fro(
    make: Callable[[], torch.Tensor],
) -> None:
    tensor = make()
    place, dtype = tensor.data_ptr(), tensor.dtype
    parameters = TorchParameters([("a", tensor)])

    tensor += torch.arange(6.0).view(2, 3)
    parameters.gather()
    assert parameters.vector.tolist() == [0, 1, 2, 3, 4, 5]
    parameters.vector[:] *= 2
    parameters.scatter()

    assert tensor.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert (tensor.data_ptr(), tensor.dtype) == (place, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rounding_to_a_tensor_s_dtype_never_gets_into_the_vector(dtype: torch.dtype) -> None:
    """A bfloat16 near 1 cannot show a thousandth; the vector keeps every one of them."""
    tensor = torch.ones(2, dtype=dtype)
    parameters = TorchParameters([("a", tensor)])

    for _ in range(100):
        parameters.vector[:] += np.float32(2.0**-10)
        parameters.scatter()
        parameters.gather()

    assert parameters.vector.tolist() == [1 + 100 * 2.0**-10] * 2
    assert tensor.tolist() == pytest.approx([1 + 100 * 2.0**-10] * 2, rel=2.0**-8)


# What changes later.


def test_a_module_that_is_converted_later_is_taken_over_again() -> None:
    module = model()
    parameters = attached(module)
    module.to(torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    expected = flat(module.float())
    module.to(torch.float64)

    parameters.gather()
    parameters.vector[:] *= 2
    parameters.scatter()

    assert parameters.vector.tolist() == [2 * value for value in expected]
    assert flat(module) == [2 * value for value in expected]
    assert next(module.parameters()).dtype == torch.float64


@pytest.mark.parametrize(
    ("dtype", "elements"), [(torch.float32, 4), (torch.float64, 1), (torch.float64, 4)]
)
def test_a_tensor_that_changes_its_shape_is_refused(dtype: torch.dtype, elements: int) -> None:
    """Whether the vector is its memory, or a copy."""
    tensor = torch.zeros(3, dtype=dtype)
    parameters = TorchParameters([("a", tensor)])
    tensor.data = torch.ones(elements, dtype=dtype)

    with pytest.raises(UsageError, match=naming("'a'", "shape", "(3,)", f"({elements},)")):
        parameters.gather()

    assert parameters.vector.tolist() == [0, 0, 0]


# What is refused.


@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (torch.zeros(3, dtype=torch.int64), ("torch.strided", "torch.int64", "dense")),
        (torch.zeros(3, dtype=torch.bool), ("torch.strided", "torch.bool", "dense")),
        (torch.zeros(3, dtype=torch.complex64), ("torch.complex64", "torch.view_as_complex")),
        (torch.zeros(3).to_sparse(), ("torch.sparse_coo", "torch.float32", "dense")),
        (torch.zeros(3, device="meta"), ("meta device",)),
        (torch.nn.LazyLinear(3).weight, ("shape", "run the model once")),
        (torch.nn.Parameter(torch.zeros(1).expand(4)), ("expanded",)),
    ],
    ids=["int64", "bool", "complex64", "sparse", "meta", "lazy", "expanded"],
)
def test_only_dense_floating_point_tensors_with_memory_of_their_own_can_be_trained(
    tensor: torch.Tensor, named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match=naming("'layer.weight'", *named)):
        TorchParameters([("layer.weight", tensor)])


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ([], ("nothing to train", "no parameters")),
        ([("a", torch.zeros(0))], ("nothing to train", "empty")),
        ([("n" * (NAME_CHARACTERS_MAX + 1), torch.zeros(3))], ("name", 257, 256)),
    ],
    ids=["none", "empty", "name"],
)
def test_a_model_without_parameters_or_with_too_long_a_name_is_refused(
    tensors: list[tuple[str, torch.Tensor]], named: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError, match=naming(*named)):
        TorchParameters(tensors)


def test_what_is_refused_is_left_as_it_was() -> None:
    good = torch.ones(3)
    place = good.data_ptr()

    with pytest.raises(UsageError):
        TorchParameters([("a", good), ("b", torch.zeros(3, dtype=torch.int64))])

    assert good.data_ptr() == place


@pytest.mark.parametrize(
    "tensors_of",
    [
        lambda module: [p.data for p in module.parameters()],
        lambda module: [p.detach() for p in module.parameters()],
        lambda module: list(module.state_dict().values()),
        lambda module: list(module.parameters()),
    ],
    ids=["data", "detach", "state_dict", "parameters"],
)
def test_a_list_of_a_module_s_tensors_trains_the_module(
    tensors_of: Callable[[torch.nn.Module], list[torch.Tensor]],
) -> None:
    """Also where the listed tensors are others than those that the module computes with."""
    module = model()
    parameters = parameters_of(tensors_of(module))

    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    parameters.gather()
    seen = parameters.vector.tolist()
    parameters.vector[:] += 1
    parameters.scatter()

    assert flat(module) == pytest.approx([value + 1 for value in seen])


def test_parameters_tied_by_their_memory_count_once_and_stay_tied() -> None:
    one, other = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    other.weight = torch.nn.Parameter(one.weight.data)

    parameters = TorchParameters([("one", one.weight), ("other", other.weight)])
    parameters.vector[:] = 5
    parameters.scatter()

    assert parameters.layout == Layout((Tensor("one", (2, 2)),))
    assert one.weight.tolist() == other.weight.tolist() == [[5, 5], [5, 5]]


def test_memory_that_processes_share_from_now_on_is_that_of_the_parameters_alone() -> None:
    """As of `share_memory`, and of the queues of torch.multiprocessing."""
    module = model()
    parameters = attached(module)
    module.share_memory()
    with torch.no_grad():
        next(module.parameters()).add_(1.0)
    seen = flat(module)

    parameters.gather()
    assert parameters.vector.tolist() == seen
    parameters.vector[:] += 1
    parameters.scatter()

    assert flat(module) == parameters.vector.tolist()
    assert all(each.is_shared() for each in module.parameters())  # type: ignore[no-untyped-call]


def test_each_parameter_has_a_storage_of_its_own_bytes() -> None:
    module = model()
    attached(module)

    storages = [parameter.untyped_storage() for parameter in module.parameters()]

    assert [storage.nbytes() for storage in storages] == [48, 16, 16, 4]
    assert len({storage.data_ptr() for storage in storages}) == 4


def test_a_model_that_was_attached_before_is_trained_in_place_again() -> None:
    module = model()
    attached(module)

    parameters = attached(module)
    parameters.vector[:] = 1

    assert flat(module) == [1.0] * 21
