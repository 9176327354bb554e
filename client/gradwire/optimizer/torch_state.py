"""`TorchOptimizer`: the state of a `torch.optim.Optimizer`, copied out of it and put into it.

A state fits an optimizer if it has, for each parameter, what that optimizer would keep for it, or
nothing: Adam with ``amsgrad=True`` would fail in its next step with the state of one without. What
it would keep, a twin with the same settings shows, in one step on a parameter of one element.
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

Kept: TypeAlias = Mapping[str, Any]
"""What an optimizer keeps for one parameter, by name."""

GroupKey: TypeAlias = tuple[int, int, torch.dtype, torch.device]
"""Parameters of one group, and with as many dimensions, are treated alike."""

PROBE_ERRORS: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
                       ValueError)  # fmt: skip
"""What an optimizer may raise that we know nothing about."""


class Expected(NamedTuple):
    """What an optimizer keeps for a parameter under one name."""

    is_slot: bool | None
    example: object


class TorchOptimizer:
    """An optimizer, and the tensors of a session in the order of their layout.

    Parameters
    ----------
    optimizer : Optimizer
    tensors : sequence of Tensor
    layout : Layout
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor], layout: Layout
    ) -> None:
        self._optimizer = optimizer
        self._tensors = tensors
        self._layout = layout
        self._expected: dict[int, dict[str, Expected]] = {}
        """By place in the layout: what the optimizer keeps."""

    @property
    def name(self) -> str:
        """The name of its class."""
        return type(self._optimizer).__name__

    @property
    def is_cold(self) -> bool:
        """Whether it has made no step yet, nor was given a state."""
        return not any(map(_is_warm, self._optimizer.state.values()))

    # Out of it.

    @torch.no_grad()
    def capture(self) -> PackedState:
        """Return a copy of the state, as the optimizer would save it.

        Whoever has changed it for the time being, or says that it is shown otherwise, has hooks on
        that: the momentum may be lowered while there are delays, and the state with it.

        Raises
        ------
        UnfitStateError
            If it cannot be given away: there is none, or it is more than numbers.
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
        _tell_apart(self._tensors, slots, numbers)
        header = header_of(self.name, [*map(frozenset, slots)], [*map(frozenset, numbers)])
        packed = PackedState(header, self._layout)
        for i, (tensor, state) in enumerate(zip(self._tensors, kept, strict=True)):
            for key in slots[i]:
                into = torch.from_numpy(packed.slot(i, key)).view(tensor.shape)
                into.copy_(state[key])
            for key in numbers[i]:
                packed.set_number(i, key, float(state[key]))
        return packed

    # Into it.

    def prepare(self) -> None:
        """Find out what would fit.

        Raises
        ------
        UnfitStateError
            If that cannot be found out.
        """
        probed: dict[GroupKey, dict[str, Expected]] = {}
        group_of = {
            id(parameter): (at, group)
            for at, group in enumerate(self._optimizer.param_groups)
            for parameter in group["params"]
        }
        for i, tensor in enumerate(self._tensors):
            if id(tensor) not in group_of:
                continue
            kept = self._kept(tensor)
            if kept:  # Adagrad has it from the beginning
                self._expected[i] = _expected(kept, tensor)
                continue
            at, group = group_of[id(tensor)]
            key = (at, tensor.dim(), tensor.dtype, tensor.device)
            if key not in probed:
                probed[key] = self._probe(group, tensor)
            self._expected[i] = probed[key]

    def check(self, header: StateHeader) -> None:
        """Refuse a state that does not fit, by what it is made of.

        Raises
        ------
        UnfitStateError
            Which says what differs.
        """
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
        """Take over a state that `check` has let pass; torch decides on dtypes and devices.

        Raises
        ------
        UnfitStateError
            If a value is none that an optimizer has, or it does not take them. Nothing is changed.
        """
        packed.check_values()
        plain = self._optimizer.state_dict()
        places = self._places(plain)
        # What is there stays the optimizer's own, should it be refused.
        plain["state"] = dict(plain["state"])
        for i, tensor in enumerate(self._tensors):
            state = packed.tensor(i)
            if state.slots or state.numbers:
                plain["state"][places[id(tensor)]] = self._state_of(i, state)
        try:
            self._optimizer.load_state_dict(plain)
        except PROBE_ERRORS as error:
            raise UnfitStateError(f"{self.name} does not take it: {error}") from None

    @torch.no_grad()
    def _state_of(self, i: int, state: TensorState) -> dict[str, Any]:
        """Return what an optimizer keeps for a parameter, as it would keep it on the CPU."""
        tensor, expected = self._tensors[i], self._expected[i]
        kept: dict[str, Any] = {}
        for key, values in state.slots.items():
            # With the strides of the parameter, which is what fused kernels ask for.
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
        """Return what a saved state calls the parameters, by their identity."""
        places: dict[int, int] = {}
        groups = self._optimizer.param_groups
        for numbered, group in zip(saved["param_groups"], groups, strict=True):
            places |= dict(zip(map(id, group["params"]), numbered["params"], strict=True))
        return places

    def _kept(self, tensor: torch.Tensor) -> Kept:
        """Return what the optimizer keeps for a parameter by now."""
        state = self._optimizer.state
        return _present(state[tensor]) if tensor in state else {}

    def _probe(self, group: Mapping[str, Any], tensor: torch.Tensor) -> dict[str, Expected]:
        """Return what an optimizer with the same settings keeps after one step."""
        parameter = torch.nn.Parameter(
            torch.zeros((1,) * tensor.dim(), dtype=tensor.dtype, device=tensor.device)
        )
        errors = []
        for is_sparse in (False, True):
            gradient = torch.ones_like(parameter)
            parameter.grad = gradient.to_sparse() if is_sparse else gradient
            try:
                return _expected(self._step_of_twin(group, parameter), parameter)
            except PROBE_ERRORS as error:
                errors.append(error)  # SparseAdam takes sparse gradients only
        raise UnfitStateError(f"what {self.name} keeps is not known: {errors[0]!r}")

    def _step_of_twin(self, group: Mapping[str, Any], parameter: torch.nn.Parameter) -> Kept:
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


def _expected(kept: Kept, parameter: torch.Tensor) -> dict[str, Expected]:
    return {key: Expected(_is_slot(value, parameter), value) for key, value in kept.items()}


def _present(state: Kept) -> Kept:
    """Leave out what is not there, as SGD's momentum without momentum."""
    return {key: value for key, value in state.items() if value is not None}


def _is_slot(value: object, parameter: torch.Tensor) -> bool | None:
    """Return whether there is a value for each element, or one number; None for something else."""
    if isinstance(value, torch.Tensor):
        if not value.dtype.is_floating_point or value.layout is not torch.strided:
            return None
        if not value.dim():
            return False
        return True if value.shape == parameter.shape else None
    return False if type(value) in (int, float) else None


def _tell_apart(
    tensors: Sequence[torch.Tensor], slots: Sequence[set[str]], numbers: Sequence[set[str]]
) -> None:
    """Count what a parameter without dimensions has among the slots, where others have it there."""
    known: set[str] = set().union(*slots)
    for tensor, its_slots, its_numbers in zip(tensors, slots, numbers, strict=True):
        if not tensor.dim():
            its_slots |= its_numbers & known
            its_numbers -= known


def _is_warm(state: Kept) -> bool:
    """Return whether a step was made with what is kept for a parameter."""
    if "step" in state:
        return float(state["step"]) > 0
    return any(isinstance(value, torch.Tensor) for value in state.values())


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"
