"""`LoadedParameters`: finds a checkpoint that was loaded after joining, which would be added up.

What a step has changed is a change for gradwire, wherever it comes from. So where each of W workers
loads one checkpoint after `join`, the run gets W times the difference between the checkpoint and
the parameters that it had. The model says when it is loaded, by hooks. Parameters that are the same
afterwards, within a quantum, do not count: an evaluation may put an average in and take it out, and
a worker may load the very checkpoint that the run began with.
"""

import warnings
from typing import Any, Literal
from weakref import ref

import torch

from gradwire.errors import GradwireWarning, UsageError
from gradwire.participant.feature import Feature


class LoadedParameters(Feature):
    """Watches `load_state_dict` of a module and of all modules in it.

    Parameters
    ----------
    module : Module
    quantum : float
        Resolution of the run.
    """

    def __init__(self, module: torch.nn.Module, quantum: float) -> None:
        self._quantum = quantum
        self._before: dict[torch.nn.Module, dict[str, torch.Tensor]] = {}
        """What the parameters of a module were before it was loaded, since the last step."""
        self._replaced: dict[torch.nn.Module, str] = {}
        """By module: the name of a parameter that is another one since then."""
        self._hooks: list[Any] = []
        loading, loaded = _Hook(self, "loading"), _Hook(self, "loaded")
        for each in module.modules():  # torch has no types for either
            self._hooks += [
                each.register_load_state_dict_pre_hook(loading),  # type: ignore[no-untyped-call]
                each.register_load_state_dict_post_hook(loaded),  # type: ignore[no-untyped-call]
            ]
        self._names = {each: name for name, each in module.named_modules()}

    def before_push(self) -> None:
        """Refuse to push what was loaded.

        Raises
        ------
        UsageError
            Until the parameters are what they were, so that it is not pushed the next time.
        """
        if self._replaced:
            raise UsageError(
                f"load_state_dict() has replaced {self._what_was_replaced()} after join(), and "
                "every worker that does so adds the difference to the run: nothing was sent. Load "
                "a checkpoint before join(): the first worker's parameters start the run, and all "
                "others receive them"
            )
        self._before.clear()

    def before_finish(self) -> None:
        """Take back what was loaded after the last step: the run ends with what was trained."""
        if self._replaced:
            warnings.warn(
                f"load_state_dict() has replaced {self._what_was_replaced()} after the last "
                "step: finish() puts the run's parameters in their place. To end with others, "
                "load them after finish()",
                GradwireWarning,
                stacklevel=2,
            )
            for module, before in self._before.items():
                for name, parameter in module.named_parameters(recurse=False):
                    if name in before:
                        with torch.no_grad():
                            parameter.copy_(before[name])
            self._before.clear()
            self._replaced.clear()

    def on_leave(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._before.clear()

    # What the hooks call.

    def loading(self, module: torch.nn.Module) -> None:
        """Note what the module's own parameters are before they are loaded."""
        if module not in self._before:
            self._before[module] = {
                name: parameter.detach().clone()
                for name, parameter in module.named_parameters(recurse=False)
            }

    def loaded(self, module: torch.nn.Module) -> None:
        """See whether the module's own parameters are others than before they were loaded."""
        before = self._before.get(module, {})
        self._replaced.pop(module, None)
        for name, parameter in module.named_parameters(recurse=False):
            if name in before and not self._is_same(parameter.detach(), before[name]):
                self._replaced[module] = name
                break

    # Private.

    def _what_was_replaced(self) -> str:
        module, parameter = next(iter(self._replaced.items()))
        name = self._names.get(module)
        first = f"{name}.{parameter}" if name else parameter
        more = f" and those of {len(self._replaced) - 1} more modules" * (len(self._replaced) > 1)
        return f"parameter {first!r}{more}"

    def _is_same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        if one.shape != other.shape or not one.numel():
            return one.shape == other.shape
        return bool((one.to(other.device, other.dtype) - other).abs().max() <= self._quantum)


class _Hook:
    """Tells `LoadedParameters` while that exists; its copy, in a copied module, tells nobody."""

    def __init__(self, watch: LoadedParameters, what: Literal["loading", "loaded"]) -> None:
        self._watch = ref(watch)
        self._what = what

    def __call__(self, module: torch.nn.Module, *_: Any) -> None:
        watch = self._watch()
        if watch is not None:
            getattr(watch, self._what)(module)

    def __reduce__(self) -> tuple[object, tuple[object, str]]:
        """Return how its copy is made: a builtin that takes anything and returns None.

        So a module that was saved as a whole within a session is loaded where gradwire is not
        installed.
        """
        return getattr, ((), "__init__")
