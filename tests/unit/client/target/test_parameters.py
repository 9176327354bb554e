"""Targets: what can be trained, and as which flat vector."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from gradwire.errors import UsageError
from gradwire.target.adapters import parameters_of, places_of
from gradwire.target.parameters import NumpyParameters
from gradwire.target.torch_parameters import TorchParameters
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.layout import Layout, Tensor
from support.wording import naming

# Arrays.


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 1, 1), ()])
def test_an_array_and_its_vector_are_the_same_memory(shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float32)

    parameters = NumpyParameters(array)
    parameters.vector[0] = 7
    parameters.scatter()
    array *= 2
    parameters.gather()

    assert parameters.layout == Layout((Tensor("array", shape),))
    assert parameters.vector.tolist() == array.reshape(-1).tolist()
    assert parameters.vector[0] == 14


@pytest.mark.parametrize(
    ("array", "dtype", "shape"),
    [
        (np.zeros(3), "float64", "(3,)"),
        (np.zeros(3, ">f4"), ">f4", "(3,)"),
        (np.zeros(3, np.int32), "int32", "(3,)"),
        (np.zeros((4, 4), np.float32).T[:2], "float32", "(2, 4)"),
        (np.zeros(6, np.float32)[::2], "float32", "(3,)"),
        (np.broadcast_to(np.float32(0), 3), "float32", "(3,)"),
        (np.zeros((3, 0), np.float32), "float32", "(3, 0)"),
    ],
    ids=["float64", "big-endian", "int32", "transposed", "strided", "read-only", "empty"],
)
def test_an_array_that_cannot_be_trained_in_place_is_refused(
    array: Float32Array, dtype: str, shape: str
) -> None:
    must = ("float32", "C-contiguous", "writeable", "empty")

    with pytest.raises(UsageError, match=naming(*must, f"dtype {dtype}", f"shape {shape}")):
        parameters_of(array)


# Which adapter.


def test_every_kind_of_target_has_its_adapter() -> None:
    tensor = torch.zeros(3)

    assert isinstance(parameters_of(np.zeros(3, np.float32)), NumpyParameters)
    for target in (torch.nn.Linear(2, 1), [tensor], (tensor.clone(),)):
        assert isinstance(parameters_of(target), TorchParameters)


def test_a_module_s_parameters_have_their_names_and_a_list_s_their_numbers() -> None:
    module = parameters_of(torch.nn.Linear(2, 3))
    listed = parameters_of([torch.zeros(2), torch.zeros(1, 4)])

    assert module.layout == Layout((Tensor("weight", (3, 2)), Tensor("bias", (3,))))
    assert listed.layout == Layout((Tensor("0", (2,)), Tensor("1", (1, 4))))


@pytest.mark.parametrize(
    ("target", "is_"),
    [
        (3, "int"),
        ("weights", "str"),
        ([np.zeros(3, np.float32)], "list"),
        ([torch.zeros(3), 4], "list"),
        (torch.nn.Linear(2, 1).parameters(), "generator"),
        (torch.zeros(3), "Tensor"),
        (None, "NoneType"),
    ],
    ids=["number", "text", "arrays", "mixed", "generator", "tensor", "none"],
)
def test_what_cannot_be_trained_is_refused(target: object, is_: str) -> None:
    with pytest.raises(UsageError) as refused:
        parameters_of(target)
    with pytest.raises(UsageError) as refused_too:
        places_of(target)

    assert str(refused.value) == str(refused_too.value)
    assert str(refused.value) == naming(
        "target", "torch.nn.Module", "list", "float32", f"type {is_}"
    )


def test_who_trains_arrays_needs_no_torch() -> None:
    script = (
        "import sys, numpy\n"
        "from gradwire.target.adapters import parameters_of\n"
        "parameters_of(numpy.zeros(3, numpy.float32))\n"
        "assert 'torch' not in sys.modules\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
