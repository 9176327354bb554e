"""Every way that torch and safetensors have to save a model, and to load one.

Tests save a joined model and one that was never joined in the same way, and compare the results:
the values, the bytes, or the error.
"""

import copy
import io
import pickle
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import safetensors.torch
import torch
from torch import nn

State: TypeAlias = dict[str, torch.Tensor]


class Saved(NamedTuple):
    """What came of saving a model."""

    values: dict[str, object]
    nbytes: int


Save: TypeAlias = Callable[[nn.Module, Path], Saved]
Load: TypeAlias = Callable[[nn.Module, nn.Module, Path], object]


def plain(state: State) -> dict[str, object]:
    """Return tensors as what `==` compares."""
    return {name: (str(each.dtype), each.tolist()) for name, each in state.items()}


def saved_by_torch(what: object, **options: Any) -> Saved:
    content = io.BytesIO()
    torch.save(what, content, **options)
    content.seek(0)
    state = state_in(torch.load(content, weights_only=False))
    # The old format names storages by their addresses.
    return Saved(plain(state), len(re.sub(rb"\d{9,}", b"", content.getvalue())))


def state_in(what: object) -> State:
    """Return the tensors of what was loaded, by name."""
    if isinstance(what, nn.Module):
        return what.state_dict()
    if isinstance(what, dict):
        return what
    assert isinstance(what, list)
    return {str(i): tensor.detach() for i, tensor in enumerate(what)}


def of_folder(folder: Path, state: State) -> Saved:
    written = (path for path in folder.rglob("*") if path.is_file())
    return Saved(plain(state), sum(path.stat().st_size for path in written))


def memory_mapped(module: nn.Module, folder: Path) -> Saved:
    torch.save(module.state_dict(), folder / "model.pt")
    return of_folder(folder, torch.load(folder / "model.pt", mmap=True))


def pickled(module: nn.Module, _: Path) -> Saved:
    content = pickle.dumps(module)
    return Saved(plain(pickle.loads(content).state_dict()), len(content))


def copied(module: nn.Module, _: Path) -> Saved:
    state = copy.deepcopy(module).state_dict()
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage() for each in state.values()
    }
    return Saved(plain(state), sum(storage.nbytes() for storage in storages.values()))


def safe_bytes(module: nn.Module, _: Path) -> Saved:
    content = safetensors.torch.save(module.state_dict())
    return Saved(plain(safetensors.torch.load(content)), len(content))


def safe_file(module: nn.Module, folder: Path) -> Saved:
    safetensors.torch.save_file(module.state_dict(), folder / "model.safetensors")
    return of_folder(folder, safetensors.torch.load_file(folder / "model.safetensors"))


def safe_model(module: nn.Module, folder: Path) -> Saved:
    safetensors.torch.save_model(module, str(folder / "model.safetensors"))
    return of_folder(folder, safetensors.torch.load_file(folder / "model.safetensors"))


def by_distributed(saved: State, loaded: State, folder: Path) -> None:
    """Save by `torch.distributed.checkpoint`, and load into tensors in place."""
    from torch.distributed import checkpoint  # seconds of a processor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of being one process
        checkpoint.save(saved, checkpoint_id=folder, no_dist=True)  # type: ignore[attr-defined]
        checkpoint.load(loaded, checkpoint_id=folder, no_dist=True)  # type: ignore[attr-defined]


def distributed(module: nn.Module, folder: Path) -> Saved:
    state = {name: torch.zeros_like(each) for name, each in module.state_dict().items()}
    by_distributed(module.state_dict(), state, folder)
    # Its metadata has the folder's name and the time.
    sizes = (path.stat().st_size // 1024 for path in folder.glob("*.distcp"))
    return Saved(plain(state), sum(sizes))


def part_of(module: nn.Module) -> nn.Module:
    return list(module.children())[-1]


SAVING: dict[str, Save] = {
    "torch.save of a state": lambda module, _: saved_by_torch(module.state_dict()),
    "torch.save of a part's state": lambda module, _: saved_by_torch(part_of(module).state_dict()),
    "torch.save of the module": lambda module, _: saved_by_torch(module),
    "torch.save of parameters": lambda module, _: saved_by_torch(list(module.parameters())),
    "torch.save of slices": lambda module, _: saved_by_torch([p[:1] for p in module.parameters()]),
    "torch.save as before zip files": lambda module, _: saved_by_torch(
        module.state_dict(), _use_new_zipfile_serialization=False
    ),
    "torch.load of mapped memory": memory_mapped,
    "torch.distributed.checkpoint": distributed,
    "pickle": pickled,
    "copy.deepcopy": copied,
    "safetensors.torch.save": safe_bytes,
    "safetensors.torch.save_file": safe_file,
    "safetensors.torch.save_model": safe_model,
}


def load_safe_model(module: nn.Module, source: nn.Module, folder: Path) -> None:
    safetensors.torch.save_model(source, str(folder / "source.safetensors"))
    safetensors.torch.load_model(module, folder / "source.safetensors")


def load_safe_file(module: nn.Module, source: nn.Module, folder: Path, **options: Any) -> None:
    safetensors.torch.save_file(source.state_dict(), folder / "source.safetensors")
    module.load_state_dict(safetensors.torch.load_file(folder / "source.safetensors"), **options)


def load_mapped(module: nn.Module, source: nn.Module, folder: Path) -> None:
    torch.save(source.state_dict(), folder / "source.pt")
    module.load_state_dict(torch.load(folder / "source.pt", mmap=True), assign=True)


def load_distributed(module: nn.Module, source: nn.Module, folder: Path) -> None:
    by_distributed(source.state_dict(), module.state_dict(), folder)


LOADING: dict[str, Load] = {
    "load_state_dict": lambda module, source, _: module.load_state_dict(source.state_dict()),
    "load_state_dict by assignment": lambda module, source, _: module.load_state_dict(
        copy.deepcopy(source.state_dict()), assign=True
    ),
    "assignment of mapped memory": load_mapped,
    "torch.distributed.checkpoint": load_distributed,
    "safetensors.torch.load_model": load_safe_model,
    "safetensors.torch.load_file": load_safe_file,
    "assignment of safetensors": lambda module, source, folder: load_safe_file(
        module, source, folder, assign=True
    ),
}


def outcome(save: Callable[..., Saved], *given: Any) -> Saved | str:
    """Return what comes of saving, or the class of the error."""
    try:
        return save(*given)
    except Warning:
        raise
    except Exception as error:
        return type(error).__name__


def with_values(fresh: nn.Module, values: Iterable[torch.Tensor]) -> nn.Module:
    """Return a module that was never joined, with the values of parameters and buffers."""
    with torch.no_grad():
        for each, value in zip(fresh.state_dict().values(), values, strict=True):
            each.copy_(value)
    return fresh
