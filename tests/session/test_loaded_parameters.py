"""A checkpoint that is loaded after joining is found before it is added up."""

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn

import gradwire
from gradwire import GradwireWarning, UsageError
from support.local_master import LocalMaster
from support.sessions import delivered, finish, join
from support.wording import naming

State = dict[str, torch.Tensor]


def net(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))


def values(module: nn.Module) -> list[float]:
    return [round(float(v), 6) for p in module.parameters() for v in p.detach().flatten()]


def train(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)


LOADS: dict[str, Callable[[nn.Module, State], object]] = {
    "copied": lambda module, state: module.load_state_dict(state),
    "assigned": lambda module, state: module.load_state_dict(state, assign=True),
    "a part": lambda module, state: module.get_submodule("1").load_state_dict(
        {"weight": state["1.weight"], "bias": state["1.bias"]}
    ),
    "in a pause": lambda module, state: module.load_state_dict(state),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("trains", [False, True])
def test_a_checkpoint_loaded_after_joining_is_not_pushed(
    master: LocalMaster, load: str, *, trains: bool
) -> None:
    model = net()
    session = join(master, model)
    train(model)
    session.step()
    delivered(session, 1)
    digest = session.digest()

    if load == "in a pause":
        with session.paused():
            LOADS[load](model, net(2).state_dict())
    else:
        LOADS[load](model, net(2).state_dict())
    if trains:
        train(model)

    for _ in range(2):  # it is not forgotten when it was said once
        with pytest.raises(UsageError, match=naming("load_state_dict()", "before join()")):
            session.step()
    assert (session.stats.updates_sent, session.digest()) == (1, digest)


def test_an_average_that_an_evaluation_puts_in_and_takes_out_is_none(master: LocalMaster) -> None:
    model = net()
    session = join(master, model)
    for _ in range(3):
        train(model)
        session.step()
        own = copy.deepcopy(model.state_dict())
        model.load_state_dict(net(2).state_dict())
        model.load_state_dict(own)

    train(model)
    session.step()

    assert session.stats.updates_sent == 4


def test_the_same_checkpoint_as_the_run_has_is_none(master: LocalMaster) -> None:
    first = join(master, net())
    model = net(2)
    late = join(master, model)

    model.load_state_dict(copy.deepcopy(net().state_dict()))
    late.step()

    assert late.digest() == first.digest()


def test_what_is_loaded_after_the_last_step_gives_way_to_the_run(master: LocalMaster) -> None:
    models = net(), net()
    one, other = (join(master, model) for model in models)
    train(models[0])
    one.step()
    delivered(one, 1)

    models[0].load_state_dict(net(2).state_dict())
    with pytest.warns(GradwireWarning, match=naming("'0.weight'", "finish()")):
        finish(one, other)

    expected = net()
    train(expected)
    assert values(models[0]) == values(models[1]) == values(expected)


def test_copies_of_a_joined_module_know_nothing_of_the_session(master: LocalMaster) -> None:
    model = net()
    session = join(master, model)
    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)

    for each in (copied, saved):
        each.load_state_dict(net(2).state_dict())
    session.step()

    assert values(copied) == values(saved) == values(net(2))


def test_after_the_session_a_module_is_loaded_as_ever(master: LocalMaster) -> None:
    model = net()
    gradwire.join(model, master=master.address).close()

    model.load_state_dict(net(2).state_dict())

    assert values(model) == values(net(2))
    assert not model._load_state_dict_pre_hooks
    assert not model._load_state_dict_post_hooks
