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


def test_a_module_keeps_its_values_and_the_vector_has_them() -> None:
    module = model()
    before = {name: value.clone() for name, value in module.state_dict().items()}

    parameters = attached(module)

    assert module.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert parameters.vector.tolist() == flat(module)


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


def test_an_optimizer_made_before_goes_on_as_if_nothing_had_happened() -> None:
    """Momentum and all: the same steps with and without being attached in between."""
    trained, plain = model(), model()
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in (trained, plain)]
    for module, optimizer in zip((trained, plain), optimizers, strict=True):
        train(module, optimizer, 3)

    parameters = attached(trained)
    for module, optimizer in zip((trained, plain), optimizers, strict=True):
        train(module, optimizer, 3)
    parameters.gather()

    assert flat(trained) == flat(plain)
    assert parameters.vector.tolist() == flat(plain)


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


def test_a_tied_parameter_counts_once() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    module[1].weight = module[0].weight

    parameters = attached(module)
    parameters.vector[:] = 1

    names = [tensor.name for tensor in parameters.layout.tensors]
    assert names == ["0.weight", "0.bias", "1.bias"]
    assert module[0].weight is module[1].weight
    assert flat(module) == [1.0] * 24


def test_empty_tensors_and_numbers_take_part() -> None:
    tensors = [torch.zeros(0, 3), torch.tensor(5.0), torch.ones(1)]

    parameters = TorchParameters([(str(i), t) for i, t in enumerate(tensors)])
    parameters.vector[:] += 1
    parameters.gather()
    parameters.scatter()

    assert parameters.layout == Layout((Tensor("0", (0, 3)), Tensor("1", ()), Tensor("2", (1,))))
    assert [t.tolist() for t in tensors] == [[], 6.0, [2.0]]


def test_like_tensors_is_a_tensor() -> None:
    parameters = TorchParameters([("a", torch.zeros(2))])

    like = parameters.like_target(np.array([1, 2], np.float32))

    assert isinstance(like, torch.Tensor)
    assert (like.dtype, like.tolist()) == (torch.float32, [1.0, 2.0])


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


def test_a_parameter_of_half_precision_is_trained_by_its_optimizer() -> None:
    module = model().to(torch.bfloat16)
    parameters = attached(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    before = parameters.vector.copy()

    optimizer.zero_grad()
    module(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    parameters.gather()

    assert (parameters.vector != before).any()
    assert parameters.vector.tolist() == flat(module.float())


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


def test_a_tensor_that_is_given_other_memory_is_taken_over_again() -> None:
    tensor, other = torch.zeros(3), torch.zeros(2)
    parameters = TorchParameters([("a", tensor), ("b", other)])
    tensor.data = torch.tensor([1.0, 2.0, 3.0])

    parameters.gather()
    parameters.vector[:] += 1
    parameters.scatter()

    assert tensor.tolist() == [2, 3, 4]
    assert other.tolist() == [1, 1]
    assert parameters.vector.tolist() == [2, 3, 4, 1, 1]


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_that_is_loaded_later_gets_into_the_vector(assign: bool) -> None:
    """Also where other parameters take the place of those that were there, as by assignment."""
    module, other = model(1), model(2)
    parameters = parameters_of(module)

    module.load_state_dict(other.state_dict(), assign=assign)
    parameters.gather()
    assert parameters.vector.tolist() == flat(other)
    parameters.vector[:] += 1
    parameters.scatter()

    assert flat(module) == parameters.vector.tolist()


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
        (torch.zeros(3, dtype=torch.complex64), ("torch.strided", "torch.complex64", "dense")),
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
        ([], ("parameters", 1, 16384)),
        ([("a", torch.zeros(0))], ("parameters", 1, 16384)),
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


def test_a_tensor_that_is_listed_twice_counts_once_in_the_place_of_its_first_name() -> None:
    shared, other = torch.ones(2), torch.zeros(3)

    parameters = TorchParameters([("a", shared), ("b", other), ("c", shared)])

    assert parameters.layout == Layout((Tensor("a", (2,)), Tensor("b", (3,))))
    assert parameters.vector.tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_was_not_finite_can_be_repaired(dtype: torch.dtype, value: float) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    parameters = TorchParameters([("a", tensor)])
    tensor[1] = value
    parameters.gather()
    assert not np.isfinite(parameters.vector[1])

    tensor[1] = 2.0
    parameters.gather()

    assert parameters.vector.tolist() == [0, 2, 0]


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


def test_a_tensor_that_shares_memory_with_an_array_goes_on_sharing_it() -> None:
    array = np.zeros(3, np.float32)
    parameters = parameters_of([torch.from_numpy(array)])

    parameters.vector[:] += 1
    parameters.scatter()

    assert array.tolist() == [1, 1, 1]


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
        module[0].bias.add_(1.0)
    seen = flat(module)

    parameters.gather()
    assert parameters.vector.tolist() == seen
    parameters.vector[:] += 1
    parameters.scatter()

    assert flat(module) == parameters.vector.tolist()
    assert all(parameter.is_shared() for parameter in module.parameters())


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
