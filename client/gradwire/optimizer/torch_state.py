"""`TorchOptimizer`: copies the state of a `torch.optim.Optimizer` out of it, and into it.

To find out what an optimizer keeps before its first step, a twin with the same settings makes one
on a parameter with two elements in each dimension. torch's `load_state_dict` would take anything,
and the step after it fail.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from gradwire.errors import UsageError
from gradwire_codecs.arrays import Float32Array
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


class TensorState(NamedTuple):
    """What an optimizer keeps for one tensor, by name."""

    slots: Mapping[str, Float32Array]
    """A value for each element; flat."""
    numbers: Mapping[str, float]
    """Values for the tensor as a whole."""


class TorchOptimizer:
    """An optimizer, and the tensors of a session in the order of their layout.

    Raises
    ------
    UsageError
        If it keeps nothing, or something that is neither a number nor a value for each element, or
        the twin's step fails.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, tensors: Sequence[torch.Tensor], layout: Layout
    ) -> None:
        self._optimizer = optimizer
        self._tensors = tensors
        self._layout = layout
        self._expected = self._found()
        """What the optimizer keeps, by place in the layout."""
        self.kept = self._names_kept()
        """The names of that."""

    @property
    def name(self) -> str:
        """Name of the optimizer's class."""
        return type(self._optimizer).__name__

    @property
    def is_empty(self) -> bool:
        """Whether the optimizer keeps nothing yet."""
        return not any(map(_present, self._optimizer.state.values()))

    def names_of(self, i: int) -> frozenset[str]:
        """Return the names of what it keeps for a tensor of the layout."""
        return frozenset(self._expected.get(i, ()))

    def capture(self) -> list[TensorState]:
        """Return what it keeps for each tensor, as it would save it: views, until its next step.

        Delays may have lowered the momentum, and rescaled the state with it. The hooks of
        `OptimizerControl` on ``state_dict`` undo that, as for any checkpoint. `UsageError` if it
        keeps something else than at first.
        """
        saved = self._optimizer.state_dict()
        places = self._places(saved)
        return [
            self._captured(i, tensor, _present(saved["state"].get(places.get(id(tensor)), {})))
            for i, tensor in enumerate(self._tensors)
        ]

    def restore(self, states: Sequence[TensorState]) -> None:
        """Take over a state with the names of `names_of`; torch converts dtypes and devices.

        A tensor without any keeps what it has. `UsageError` if the optimizer refuses the state;
        nothing is changed then.
        """
        plain = self._optimizer.state_dict()
        places = self._places(plain)
        # The optimizer's own dictionary must not change, should it refuse the new state.
        plain["state"] = dict(plain["state"])
        for i, (tensor, state) in enumerate(zip(self._tensors, states, strict=True)):
            if state.slots or state.numbers:
                plain["state"][places[id(tensor)]] = self._state_of(i, state)
        try:
            self._optimizer.load_state_dict(plain)
        except PROBE_ERRORS as error:
            raise self._unfit(f"refuses the state of the run: {error}") from None

    # Private.

    def _found(self) -> dict[int, dict[str, Expected]]:
        """Return what it keeps, by place in the layout."""
        found: dict[int, dict[str, Expected]] = {}
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
                found[i] = _expected(kept, tensor)
                continue
            at, group = group_of[id(tensor)]
            key = (at, tensor.dim(), tensor.dtype, tensor.device)
            if key not in probed:
                probed[key] = self._probe(group, tensor)
            found[i] = probed[key]
        return found

    def _names_kept(self) -> KeptState:
        slots: set[str] = set()
        numbers: set[str] = set()
        for i, expected in self._expected.items():
            for key, (is_slot, _) in expected.items():
                if is_slot is None:
                    raise self._unfit(
                        f"keeps {key!r} for {self._layout.tensors[i].name!r}, which is neither "
                        "a number nor one for each element"
                    )
                (slots if is_slot else numbers).add(key)
        if not slots | numbers:
            raise self._unfit("keeps no state for any parameter")
        # A parameter without dimensions has numbers where others have slots.
        names = {"slots": sorted(slots), "numbers": sorted(numbers - slots)}
        try:
            return KeptState.from_plain({"optimizer": self.name, **names})
        except ValueError as error:
            raise self._unfit(f"keeps what has no place in a run: {error}") from None

    def _captured(self, i: int, tensor: torch.Tensor, kept: ParameterState) -> TensorState:
        slots: dict[str, Float32Array] = {}
        numbers: dict[str, float] = {}
        for key, value in kept.items():
            kind = _is_slot(value, tensor)
            if key in self.kept.slots and kind is (tensor.dim() > 0):
                values = torch.as_tensor(value, dtype=torch.float32, device="cpu")
                slots[key] = values.detach().flatten().numpy()
            elif key in self.kept.numbers and kind is False:
                numbers[key] = float(value)
            else:
                raise self._unfit(
                    f"keeps {key!r} for {self._layout.tensors[i].name!r}, which it did not when "
                    "this worker joined"
                )
        return TensorState(slots, numbers)

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

    def _unfit(self, reason: str) -> UsageError:
        return UsageError(f"optimizer_state=True: {self.name} {reason}")

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
        raise self._unfit(f"failed in a trial step: {errors[0]!r}")

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
