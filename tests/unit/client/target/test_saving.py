"""A model whose parameters are one vector is saved and loaded as if they were not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gradwire.target.adapters import parameters_of
from support.saving import LOADING, SAVING, Load, Save, Saved, outcome, plain, with_values

FEATURES = 64


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(3, FEATURES), nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, FEATURES)
    )


def tied() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES))
    module[1].weight = module[0].weight
    return module


def tied_by_memory() -> nn.Sequential:
    module = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES))
    module[1].weight = nn.Parameter(module[0].weight.data)  # type: ignore[arg-type]
    return module


def transposed() -> nn.Sequential:
    module = net()
    module[2].weight = nn.Parameter(torch.randn(FEATURES, FEATURES).t())
    return module


def parts_of_one_storage() -> nn.Sequential:
    module = net()
    both = torch.randn(2, FEATURES, FEATURES)
    module.append(nn.Linear(FEATURES, FEATURES))
    module[2].weight, module[3].weight = map(nn.Parameter, both)
    return module


def with_nothing_and_a_number() -> nn.Sequential:
    module = net()
    module[0].register_parameter("nothing", nn.Parameter(torch.zeros(0, 3)))
    module[0].register_parameter("number", nn.Parameter(torch.tensor(2.0).view(1)))
    return module


def partly_frozen() -> nn.Sequential:
    module = net()
    module[0].requires_grad_(False)
    return module


MODELS: list[Callable[[], nn.Module]] = [
    net,
    tied,
    tied_by_memory,
    transposed,
    parts_of_one_storage,
    with_nothing_and_a_number,
    partly_frozen,
    lambda: net().to(torch.bfloat16),
    lambda: net().to(torch.float64),
    lambda: nn.Sequential(net()[0], net()[2].to(torch.bfloat16)),
    lambda: nn.Sequential(nn.Conv2d(3, 8, 3)).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    lambda: nn.Sequential(nn.LSTM(4, 8)),
    lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, FEATURES))),
]
NAMES = [
    *(make.__name__ for make in MODELS[:7]),
    *("bfloat16", "float64", "mixed", "channels_last", "lstm", "weight_norm"),
]


@pytest.mark.parametrize("save", SAVING.values(), ids=SAVING)
@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_what_is_saved_is_what_a_model_saves_that_was_never_joined(
    make: Callable[[], nn.Module], save: Save, tmp_path: Path
) -> None:
    module = make()
    parameters = parameters_of(module)
    parameters.vector[:] += 1
    parameters.scatter()
    never = with_values(make(), module.state_dict().values())
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()

    found = outcome(save, module, tmp_path / "one")

    wanted = outcome(save, never, tmp_path / "other")
    # A pickle names a string once where it is the same object, which is not the model's doing.
    if isinstance(found, Saved) and isinstance(wanted, Saved):
        assert found.values == wanted.values
        assert abs(found.nbytes - wanted.nbytes) <= 512
    else:
        assert found == wanted


@pytest.mark.parametrize("load", LOADING.values(), ids=LOADING)
@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_what_is_loaded_is_what_a_model_loads_that_was_never_joined(
    make: Callable[[], nn.Module], load: Load, tmp_path: Path
) -> None:
    module, never, source = make(), make(), make()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    parameters = parameters_of(module)

    def loaded(into: nn.Module) -> Saved:
        load(into, source, tmp_path)
        return Saved(plain(into.state_dict()), 0)

    expected = outcome(loaded, never)
    assert outcome(loaded, module) == expected
    parameters.gather()
    parameters.scatter()

    found = parameters_of(module)
    assert found.vector.tolist() == pytest.approx(parameters.vector.tolist(), rel=1e-6)
    if not isinstance(expected, str):
        wanted = parameters_of(source).vector.tolist()
        assert parameters.vector.tolist() == pytest.approx(wanted, rel=1e-6)
