"""`ModuleTree`: the parameters of a module by all their names, and whether they are still the same.

The session looks in every step. So this does not walk the module: it compares the objects in the
modules' own dictionaries, which is many times faster, and needs no hooks in the modules.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any, Final

import torch

from gradwire.errors import UsageError
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX

COMPILED: Final = "_orig_mod."
"""`torch.compile` puts this before the names of what it wraps."""

ADVICE: Final = (
    "joining; a session keeps the parameters it began with: change the module before join(), or "
    "join with a list of the parameters to share"
)


class ModuleTree:
    """A module as it is when a session begins.

    `held` has the parameters of the session, each once, with its first name.
    """

    def __init__(self, module: torch.nn.Module, held: Sequence[tuple[str, torch.Tensor]]) -> None:
        self._module = module
        first = {memory_of(tensor): name for name, tensor in held}
        self._first = {
            name: first[memory_of(p)] for name, p in named_parameters(module, every_name=True)
        }
        """The session's name of a parameter, by each of its names."""
        self._note()

    def is_unchanged(self) -> bool:
        """Return whether the modules still have the same parameter objects."""
        if any(self._empty) or sum(map(len, self._filled)) != len(self._objects):
            return False
        return all(map(is_, _values_of(self._filled), self._objects))

    def take_over(self, held: Mapping[str, torch.Tensor]) -> dict[str, list[torch.Tensor]]:
        """Return the parameters that the module has now, by the session's names.

        A list has several tensors where a parameter of several names was replaced by several
        tensors of the same memory. `held` has the session's parameters by name. `UsageError` if a
        parameter was added or removed, or ties have changed; the next call then checks again.
        """
        present = dict(named_parameters(self._module, every_name=True))
        names = {id(tensor): name for name, tensor in held.items()}
        first = {
            name: self._first.get(name) or names.get(id(tensor)) for name, tensor in present.items()
        }
        found: dict[str, list[torch.Tensor]] = {}
        for name, known_as in first.items():
            if known_as is None:
                raise UsageError(f"parameter {name!r} was added to the module after {ADVICE}")
            objects = found.setdefault(known_as, [])
            if all(present[name] is not each for each in objects):
                objects.append(present[name])
        self._check(present, found)
        self._first = {name: known_as for name, known_as in first.items() if known_as is not None}
        self._note()
        return found

    def _check(
        self, present: Mapping[str, torch.Tensor], found: Mapping[str, list[torch.Tensor]]
    ) -> None:
        for name in self._first.values():
            if name not in found:
                raise UsageError(f"parameter {name!r} was removed from the module after {ADVICE}")
        owners: dict[object, str] = {}
        for name, objects in found.items():
            if len({memory_of(tensor) for tensor in objects}) > 1:
                others = [n for n, f in self._first.items() if f == name and n in present]
                raise UsageError(
                    f"the parameters {', '.join(map(repr, others))} were one when the session "
                    "began, and are not any more: tie them again"
                )
            other = owners.setdefault(memory_of(objects[0]), name)
            if other != name:
                raise UsageError(
                    f"the parameters {other!r} and {name!r} have become one after joining: tie "
                    "them before join()"
                )

    def _note(self) -> None:
        modules = list(self._module.modules())
        dictionaries: list[dict[str, Any]] = [m._parameters for m in modules]
        dictionaries += [m._modules for m in modules]
        self._empty = [each for each in dictionaries if not each]
        self._filled = [each for each in dictionaries if each]
        self._objects = list(_values_of(self._filled))


def _values_of(dictionaries: Iterable[dict[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, dictionaries))


def check_values(what: str, name: str, tensor: torch.Tensor) -> None:
    """Refuse a parameter or buffer that has no values yet, or whose name is too long."""
    if torch.nn.parameter.is_lazy(tensor):
        raise UsageError(f"{what} {name!r} has no shape yet: run the model once before")
    if tensor.is_meta:
        raise UsageError(f"{what} {name!r} is on the meta device and has no values")
    if len(name) > NAME_CHARACTERS_MAX:
        raise UsageError(
            f"{what} {name!r} has a name of {len(name)} characters; the limit is "
            f"{NAME_CHARACTERS_MAX}"
        )


def memory_of(tensor: torch.Tensor) -> object:
    """Return a key that two tensors share only if they are the same values in the same memory."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta or not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def named_parameters(
    module: torch.nn.Module, *, every_name: bool = False
) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters of a module, by their names without any wrapper.

    So some workers of a run may compile their modules, and others not. With `every_name`, a
    parameter is returned once for each of its names, and otherwise once.
    """
    return [
        (name.replace(COMPILED, ""), parameter)
        for name, parameter in unwrapped(module).named_parameters(remove_duplicate=not every_name)
    ]


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module without `DataParallel` and `DistributedDataParallel` around it."""
    while isinstance(module, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        module = module.module
    return module
