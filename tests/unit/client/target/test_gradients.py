"""Gradients of torch targets, and targets beside a state that they do not have."""

import numpy as np
import pytest
import torch
from torch import nn

from gradwire import UsageError
from gradwire.target.parameters import NumpyParameters
from gradwire.target.torch_parameters import TorchParameters
from gradwire.target.with_state import WithState
from gradwire_codecs import Replica
from gradwire_protocol.messages.layout import Layout, Tensor


def parameters_of(module: nn.Module) -> TorchParameters:
    return TorchParameters(list(module.named_parameters()), module)


def backward(value: torch.Tensor) -> None:
    value.backward()  # type: ignore[no-untyped-call]


def test_a_gradient_is_flat_in_the_order_of_the_layout_and_cleared() -> None:
    module = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 1))
    parameters = parameters_of(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(2.0)
    backward(module(torch.tensor([[1.0, 3.0]])).sum())

    gradient = parameters.take_gradient()

    assert gradient is not None
    assert gradient.dtype == np.float32
    assert gradient.tolist() == [2.0, 6.0, 8.0, 1.0]
    assert all(parameter.grad is None for parameter in module.parameters())
    assert parameters.take_gradient() is None


def test_sparse_and_half_precision_gradients_become_dense_float32() -> None:
    embedding = nn.Embedding(3, 2, sparse=True)
    half = nn.Parameter(torch.ones(2, dtype=torch.float16))
    parameters = TorchParameters([("embedding", embedding.weight), ("half", half)])
    backward(embedding(torch.tensor([1])).sum() + (half * 0.5).sum().float())

    gradient = parameters.take_gradient()

    assert gradient is not None
    assert gradient.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.5, 0.5]


def test_an_array_has_none() -> None:
    with pytest.raises(UsageError, match="no gradient"):
        NumpyParameters(np.zeros(2, np.float32)).take_gradient()


def with_state(target: NumpyParameters | TorchParameters, more: int) -> WithState:
    state = Tensor("__optimizer__.sum", (more,))
    return WithState(target, Layout((*target.layout.tensors, state)))


def test_a_target_beside_a_state_keeps_its_own_part() -> None:
    array = np.array([1.0, 2.0], np.float32)
    parameters = with_state(NumpyParameters(array), 3)
    assert parameters.vector.tolist() == [1.0, 2.0, 0.0, 0.0, 0.0]

    array[0] = 5.0
    parameters.gather()
    assert parameters.vector.tolist() == [5.0, 2.0, 0.0, 0.0, 0.0]

    parameters.set(np.arange(5, dtype=np.float32))
    assert array.tolist() == [0.0, 1.0]
    assert parameters.like_target(parameters.vector).tolist() == [0.0, 1.0]


def test_a_replica_with_state_reaches_a_module() -> None:
    module = nn.Linear(1, 1)
    parameters = with_state(parameters_of(module), 2)
    replica = Replica(np.array([2**24, 2**23, 7, 9], np.int32))

    feedback = parameters.feedback(replica, kind="local")
    feedback.drop_residual()
    parameters.scatter()

    assert (module.weight.item(), module.bias.item()) == (1.0, 0.5)
    backward(module(torch.ones(1, 1)).sum())
    gradient = parameters.take_gradient()
    assert gradient is not None
    assert gradient.tolist() == [1.0, 1.0]
