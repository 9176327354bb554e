"""load_checkpoint: the parameters of a file in a model, bit by bit, or an error and no change."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import gradwire
from gradwire_codecs import Replica
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol.messages.buffers.layout import BufferLayout, BufferTensor
from gradwire_protocol.messages.checkpoint.format import pieces_of
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_udp.files.checkpoints import name_of
from support.checkpointing import VERSIONS, bytes_of, checkpoint_of, written_to
from support.local_master import LocalMaster
from support.sessions import join
from support.wording import naming

ELEMENTS = 26
MODEL_LAYOUT = Layout(
    (
        Tensor("0.weight", (4, 3)),
        Tensor("0.bias", (4,)),
        Tensor("2.weight", (2, 4)),
        Tensor("2.bias", (2,)),
    )
)


def model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def of_model(seed: int = 1) -> Int32Array:
    random = np.random.default_rng(seed)
    return random.integers(-(2**24), 2**24, ELEMENTS).astype(np.int32)  # a float32 holds these


def expected(values: Int32Array, exponent: int = -24) -> list[float]:
    parameters = np.empty(len(values), np.float32)
    Replica(values.copy(), exponent).write_parameters(parameters)
    return list(parameters.tolist())


def flat(module: torch.nn.Module) -> list[float]:
    found: list[float] = torch.nn.utils.parameters_to_vector(module.parameters()).tolist()
    return found


def save(folder: Path, values: Int32Array, layout: Layout = MODEL_LAYOUT, number: int = 1) -> Path:
    return written_to(folder, number, bytes_of(checkpoint_of(values, layout=layout), values))


def refusal(path: Path, target: object) -> str:
    with pytest.raises(gradwire.UsageError) as refused:
        gradwire.load_checkpoint(path, target)
    return str(refused.value)


# Targets.


def test_a_module_has_the_parameters_and_keeps_its_memory(tmp_path: Path) -> None:
    path, module = save(tmp_path, of_model()), model()
    places = [p.data_ptr() for p in module.parameters()]
    optimizer = torch.optim.SGD(module.parameters())

    loaded = gradwire.load_checkpoint(path, module)

    assert flat(module) == expected(of_model())
    assert [p.data_ptr() for p in module.parameters()] == places
    assert all(p.requires_grad and p.grad is None for p in module.parameters())
    assert len(optimizer.param_groups[0]["params"]) == 4
    assert loaded == gradwire.LoadedCheckpoint(
        path=path,
        run="alpha",
        elements=ELEMENTS,
        quantum=2.0**-24,
        versions=VERSIONS,
        updates=4,
        finished=False,
        digest=f"{Replica(of_model()).digest():016x}",
    )


def test_a_model_that_was_loaded_can_begin_a_run(tmp_path: Path, master: LocalMaster) -> None:
    module = model()
    loaded = gradwire.load_checkpoint(save(tmp_path, of_model()), module)

    with join(master, module) as session:
        assert session.digest() == loaded.digest


# Without gradwire.


@pytest.mark.parametrize("scale", [1, 100])
def test_safetensors_loads_a_checkpoint_into_a_model(tmp_path: Path, scale: int) -> None:
    """Exactly what `load_checkpoint` loads, also where float32 lacks the integers."""
    path, module, other = save(tmp_path, scale * of_model()), model(), model()

    message = module.load_state_dict(safetensors.torch.load_file(path))
    safetensors.torch.load_model(other, path)

    assert str(message) == "<All keys matched successfully>"
    assert flat(module) == flat(other) == expected(scale * of_model())


# Buffers.


def test_a_model_with_a_buffer_of_another_shape_is_refused_and_unchanged(tmp_path: Path) -> None:
    layout = BufferLayout((), (), 4, (BufferTensor("order", (5,), "I64"),))
    of_file = replace(checkpoint_of(of_model(), layout=MODEL_LAYOUT), buffers=layout)
    pieces = pieces_of(of_file, of_model().astype("<i4").tobytes(), bytes(40))
    path = written_to(tmp_path, 1, b"".join(pieces))
    module = model()
    module.register_buffer("order", torch.arange(4))
    before = flat(module)

    assert refusal(path, module) == naming(path, "'order'", "(4,)", "(5,)")
    assert flat(module) == before


def test_buffers_that_a_model_lacks_are_not_loaded(tmp_path: Path) -> None:
    names = ("order", "mask")
    layout = BufferLayout((), (), 4, tuple(BufferTensor(name, (4,), "I64") for name in names))
    of_file = replace(checkpoint_of(of_model(), layout=MODEL_LAYOUT), buffers=layout)
    pieces = pieces_of(of_file, of_model().astype("<i4").tobytes(), bytes(64))
    module = model()
    module.register_buffer("order", torch.arange(4))

    loaded = gradwire.load_checkpoint(written_to(tmp_path, 1, b"".join(pieces)), module)

    assert loaded.buffers == ("order",)
    assert module.get_buffer("order").tolist() == [0, 0, 0, 0]


def test_buffers_that_a_checkpoint_lacks_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = model()
    module.register_buffer("order", torch.arange(4))

    loaded = gradwire.load_checkpoint(save(tmp_path, of_model()), module)

    assert loaded.buffers == ()
    assert caplog.messages == [naming(loaded.path, "order")]


# Folders.


def test_of_a_folder_the_newest_is_taken_that_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, of_model(1), number=1)
    newer = tmp_path / name_of("alpha", 2, is_over=True)
    newer.write_bytes(
        bytes_of(checkpoint_of(of_model(2), layout=MODEL_LAYOUT, finished=True), of_model(2))
    )
    damaged = written_to(tmp_path, 3, b"damaged")
    module = model()

    with caplog.at_level(logging.WARNING, "gradwire.checkpoints"):
        loaded = gradwire.load_checkpoint(tmp_path, module)

    assert (loaded.path, loaded.finished) == (newer, True)
    assert flat(module) == expected(of_model(2))
    assert caplog.messages[0] == naming(damaged)


# What is refused, and changes nothing.


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (
            torch.nn.Sequential(torch.nn.Linear(3, 5)),
            ("'0.weight'", "(5, 3)", "(4, 3)"),
        ),
        (
            torch.nn.Sequential(torch.nn.Linear(3, 4)),
            (2, 16, 4, 26),
        ),
        (
            np.zeros(26, np.float32),
            ("'array'", "(26,)", "'0.weight'", "(4, 3)"),
        ),
    ],
)
def test_of_another_model_the_first_difference_is_named(
    tmp_path: Path, other: object, named: tuple[object, ...]
) -> None:
    path = save(tmp_path, of_model())

    assert refusal(path, other) == naming(path, "alpha", *named)


def test_a_file_that_is_damaged_changes_nothing(tmp_path: Path) -> None:
    path, module = save(tmp_path, of_model()), model()
    before = flat(module)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)

    assert refusal(path, module) == naming(path, "checksum", "damaged")
    path.write_bytes(bytes_of(checkpoint_of(of_model(), layout=MODEL_LAYOUT, digest=7), of_model()))
    assert refusal(path, module) == naming(path, "digest", f"{7:016x}")
    assert flat(module) == before
