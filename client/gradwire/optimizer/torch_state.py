"""`TorchOptimizer`: copies the state of a `torch.optim.Optimizer` out of it, and into it.

A state fits an optimizer if each parameter has either no state or all the values that this
optimizer keeps: Adam with ``amsgrad=True`` would fail in its next step with the state of an Adam
without. To find out what an optimizer keeps, a twin with the same settings makes one step on a
parameter with two elements in each dimension.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from gradwire.optimizer.state import (
    PackedState,
    StateHeader,
    TensorState,
    UnfitStateError,
    header_of,
)
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import KeptState

ParameterState: TypeAlias = Mapping[str, Any]
"""What an optimizer keeps for one parameter, by name."""

GroupKey: TypeAlias = tuple[int, int, torch.dtype, torch.device]
"""Group, dimensions, dtype and device: an optimizer treats parameters with the same ones alike."""

PROBE_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
                       ValueError)  # fmt: skip
"""What an unknown optimizer may raise."""


class Expected(NamedTuple):
    """What an optimizer keeps for a parameter under one name: a slot, or a number."""

    is_slot: bool | None
    example: object


class TorchOptimizer:
    """An optimizer, and the tensors of a session in the order of their layout."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor], layout: Layout
    ) -> None:
        self._optimizer = optimizer
        self._tensors = tensors
        self._layout = layout
        self._expected: dict[int, dict[str, Expected]] = {}
        """What the optimizer keeps, by place in the layout."""

    @property
    def name(self) -> str:
        """Name of the optimizer's class."""
        return type(self._optimizer).__name__

    @property
    def is_cold(self) -> bool:
        """Whether the optimizer has neither made a step nor been given a state."""
        return not any(map(_is_warm, self._optimizer.state.values()))

    @property
    def is_empty(self) -> bool:
        """Whether the optimizer keeps nothing yet."""
        return not any(map(_present, self._optimizer.state.values()))

    # Out of the optimizer.

    @torch.no_grad()
    def capture(self) -> PackedState:
        """Return a copy of the state, as the optimizer would save it.

        Delays may have lowered the momentum, and rescaled the state with it. The hooks of
        `OptimizerControl` on ``state_dict`` undo that, as for any checkpoint. `UnfitStateError` if
        there is no state, or it has more than numbers.
        """
        saved = self._optimizer.state_dict()
        places = self._places(saved)
        states = [saved["state"].get(places.get(id(tensor)), {}) for tensor in self._tensors]
        kept = [_present(state) for state in states]
        slots: list[set[str]] = []
        numbers: list[set[str]] = []
        for name, tensor, state in zip(self._names, self._tensors, kept, strict=True):
            kinds = {key: _is_slot(value, tensor) for key, value in state.items()}
            for key, kind in kinds.items():
                if kind is None:
                    raise UnfitStateError(
                        f"{self.name} keeps {key!r} for {name!r}, which is neither a number nor "
                        "one for each element"
                    )
            slots.append({key for key, kind in kinds.items() if kind})
            numbers.append(kinds.keys() - slots[-1])
        _move_scalars_to_slots(self._tensors, slots, numbers)
        header = header_of(self.name, [*map(frozenset, slots)], [*map(frozenset, numbers)])
        packed = PackedState(header, self._layout)
        for i, (tensor, state) in enumerate(zip(self._tensors, kept, strict=True)):
            for key in slots[i]:
                into = torch.from_numpy(packed.slot(i, key)).view(tensor.shape)
                into.copy_(state[key])
            for key in numbers[i]:
                packed.set_number(i, key, float(state[key]))
        return packed

    # Into the optimizer.

    def prepare(self) -> None:
        """Find out which states would fit; `UnfitStateError` if the twin's step fails."""
        probed: dict[GroupKey, dict[str, Expected]] = {}
        group_of = {
            id(parameter): (at, group)
            for at, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        for i, tensor in enumerate(self._tensors):
            if id(tensor) not in group_of:
                continue
            kept = self._state_now(tensor)
            if kept:  # Adagrad has a state before its first step
                self._expected[i] = _expected(kept, tensor)
                continue
            at, group = group_of[id(tensor)]
            key = (at, tensor.dim(), tensor.dtype, tensor.device)
            if key not in probed:
                probed[key] = self._probe(group, tensor)
            self._expected[i] = probed[key]

    def kept(self) -> KeptState:
        """Return the names of what it keeps, once it is prepared.

        `UnfitStateError` if there is nothing, or something that is neither a number nor a value for
        each element.
        """
        slots: set[str] = set()
        numbers: set[str] = set()
        for i, expected in self._expected.items():
            for key, (is_slot, _) in expected.items():
                if is_slot is None:
                    raise UnfitStateError(
                        f"{self.name} keeps {key!r} for {self._names[i]!r}, which is neither a "
                        "number nor one for each element"
                    )
                (slots if is_slot else numbers).add(key)
        if not slots | numbers:
            raise UnfitStateError(f"{self.name} keeps no state for any parameter")
        names = {"slots": sorted(slots), "numbers": sorted(numbers - slots)}
        try:
            return KeptState.from_plain({"optimizer": self.name, **names})
        except ValueError as error:
            raise UnfitStateError(str(error)) from None

    def names_of(self, i: int) -> frozenset[str]:
        """Return the names of what it keeps for a tensor of the layout, once it is prepared."""
        return frozenset(self._expected.get(i, ()))

    def check(self, header: StateHeader) -> None:
        """Refuse a state whose parts do not fit; `UnfitStateError` names the difference."""
        if header.optimizer != self.name:
            raise UnfitStateError(f"it is of {header.optimizer}; ours is {self.name}")
        for i, (name, tensor) in enumerate(zip(self._names, self._tensors, strict=True)):
            slots, numbers = set(header.slots_of(i)), set(header.numbers_of(i))
            if not slots and not numbers:
                continue
            if i not in self._expected:
                raise UnfitStateError(f"it has {name!r}, which our {self.name} does not change")
            ours = self._expected[i]
            if slots | numbers != ours.keys():
                raise UnfitStateError(
                    f"for {name!r} it has {_listed(slots | numbers)}; our {self.name} keeps "
                    f"{_listed(ours.keys())}"
                )
            for key, expected in ours.items():
                if tensor.dim() and expected.is_slot is not (key in slots):
                    raise UnfitStateError(f"{key!r} of {name!r} is not of the size that ours has")

    def restore(self, packed: PackedState) -> None:
        """Take over a state that `check` has passed; torch converts dtypes and devices.

        `UnfitStateError` if a value is not valid, or the optimizer refuses the state. Nothing is
        changed then.
        """
        packed.check_values()
        plain = self._optimizer.state_dict()
        places = self._places(plain)
        # The optimizer's own dictionary must not change, should it refuse the new state.
        plain["state"] = dict(plain["state"])
        for i, tensor in enumerate(self._tensors):
            state = packed.tensor(i)
            if state.slots or state.numbers:
                plain["state"][places[id(tensor)]] = self._state_of(i, state)
        try:
            self._optimizer.load_state_dict(plain)
        except PROBE_ERRORS as error:
            raise UnfitStateError(f"{self.name} refuses it: {error}") from None

    @torch.no_grad()
    def _state_of(self, i: int, state: TensorState) -> dict[str, Any]:
        """Return the state of a parameter, as the optimizer would keep it on the CPU."""
        tensor, expected = self._tensors[i], self._expected[i]
        kept: dict[str, Any] = {}
        for key, values in state.slots.items():
            # With the strides of the parameter, as fused kernels require.
            kept[key] = torch.empty_like(tensor, dtype=torch.float32, device="cpu")
            kept[key].copy_(torch.from_numpy(values).view(tensor.shape))
        for key, value in state.numbers.items():
            example: Any = expected[key].example
            if isinstance(example, torch.Tensor):
                kept[key] = torch.tensor(value, dtype=example.dtype)
            else:
                kept[key] = type(example)(value)
        return kept

    # Private.

    @property
    def _names(self) -> list[str]:
        return [tensor.name for tensor in self._layout.tensors]

    def _places(self, saved: Mapping[str, Any]) -> dict[int, int]:
        """Return the keys of the parameters in a saved state, by their `id`."""
        places: dict[int, int] = {}
        groups = self._optimizer.param_groups
        for numbered, group in zip(saved["param_groups"], groups, strict=True):
            places |= dict(zip(map(id, group["params"]), numbered["params"], strict=True))
        return places

    def _state_now(self, tensor: torch.Tensor) -> ParameterState:
        """Return what the optimizer keeps for a parameter now."""
        state = self._optimizer.state
        return _present(state[tensor]) if tensor in state else {}

    def _probe(self, group: Mapping[str, Any], tensor: torch.Tensor) -> dict[str, Expected]:
        """Return what an optimizer with the same settings keeps after one step."""
        parameter = torch.nn.Parameter(
            torch.zeros((2,) * tensor.dim(), dtype=tensor.dtype, device=tensor.device)
        )
        errors = []
        for is_sparse in (False, True):
            gradient = torch.ones_like(parameter)
            parameter.grad = gradient.to_sparse() if is_sparse else gradient
            try:
                return _expected(self._step_of_twin(group, parameter), parameter)
            except PROBE_ERRORS as error:
                errors.append(error)  # SparseAdam takes sparse gradients only
        raise UnfitStateError(f"the trial step of a new {self.name} failed: {errors[0]!r}")

    def _step_of_twin(
        self, group: Mapping[str, Any], parameter: torch.nn.Parameter
    ) -> ParameterState:
        kind = type(self._optimizer)
        twin = kind.__new__(kind)
        twin.__setstate__(
            {
                "defaults": self._optimizer.defaults,
                "state": defaultdict(dict),
                "param_groups": [{**group, "params": [parameter]}],
            }
        )
        kind.step(twin)
        return _present(twin.state[parameter])


def _expected(kept: ParameterState, parameter: torch.Tensor) -> dict[str, Expected]:
    return {key: Expected(_is_slot(value, parameter), value) for key, value in kept.items()}


def _present(state: ParameterState) -> ParameterState:
    """Leave out values that are None, as the buffer of SGD without momentum."""
    return {key: value for key, value in state.items() if value is not None}


def _is_slot(value: object, parameter: torch.Tensor) -> bool | None:
    """Return True for a value for each element, False for one number, None for anything else."""
    if isinstance(value, torch.Tensor):
        if not value.dtype.is_floating_point or value.layout is not torch.strided:
            return None
        if not value.dim():
            return False
        return True if value.shape == parameter.shape else None
    return False if type(value) in (int, float) else None


def _move_scalars_to_slots(
    tensors: Sequence[torch.Tensor], slots: Sequence[set[str]], numbers: Sequence[set[str]]
) -> None:
    """Move the numbers of 0-dimensional parameters that others have as slots to the slots."""
    known: set[str] = set().union(*slots)
    for tensor, its_slots, its_numbers in zip(tensors, slots, numbers, strict=True):
        if not tensor.dim():
            its_slots |= its_numbers & known
            its_numbers -= known


def _is_warm(state: ParameterState) -> bool:
    """Return whether a step has changed the state of a parameter."""
    if "step" in state:
        return float(state["step"]) > 0
    return any(isinstance(value, torch.Tensor) for value in state.values())


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"
