"""What a script saves, within a session and after it, is as if nothing had been joined."""

import pickle
from pathlib import Path

import torch
from torch import nn

from support.local_master import LocalMaster
from support.saving import SAVING, Saved, outcome, with_values
from support.sessions import join


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))


def train(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)


def check(module: nn.Module, folder: Path) -> None:
    """Save in every way, and compare with a module that was never joined."""
    never = with_values(net(), module.state_dict().values())
    for way, save in SAVING.items():
        one, other = folder / f"{way} one", folder / f"{way} other"
        one.mkdir(parents=True)
        other.mkdir()
        found = outcome(save, module, one)
        assert isinstance(found, Saved), (way, found)
        wanted = outcome(save, never, other)
        assert isinstance(wanted, Saved)
        assert found.values == wanted.values, way
        # Within a session, a module that is pickled as a whole has hooks that do nothing.
        assert abs(found.nbytes - wanted.nbytes) <= 512, way


def test_each_way_saves_the_same_within_a_session_and_after_it(
    master: LocalMaster, tmp_path: Path
) -> None:
    module = net()
    session = join(master, module)
    train(module)
    session.step()
    check(module, tmp_path / "within")
    with session.paused(shared=True):
        check(module, tmp_path / "paused")

    session.finish()
    check(module, tmp_path / "finished")

    session = join(master, module, run="another")
    check(module, tmp_path / "joined again")
    session.close()
    check(module, tmp_path / "closed")


def test_a_module_that_was_pickled_within_a_session_needs_no_gradwire(master: LocalMaster) -> None:
    module = net()
    with join(master, module) as session:
        session.step()
        content = pickle.dumps(module)

    loaded = pickle.loads(content)
    loaded.load_state_dict(module.state_dict())

    assert b"gradwire" not in content
    assert loaded(torch.ones(2, 3)).tolist() == module(torch.ones(2, 3)).tolist()
