"""`Beginning`: what a training begins with beside parameters, where it goes on from another one.

Workers take over buffers and the state of the optimizer before they join. It is no secret, and may
be large: it comes to tasks as data, not in their closure.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

STATE_BYTES_MAX: Final = 64 << 20
"""Of all states of optimizers that the workers of a training report."""


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """What one optimizer has kept."""

    kind: str
    """What has to be the same for another optimizer to take it over."""
    content: bytes
    """By place of the parameter, as torch saves it."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Buffers by name, and what an optimizer has kept, if that is known."""

    buffers: dict[str, torch.Tensor]
    optimizer: OptimizerState | None

    def packed(self) -> bytes:
        """Return it as bytes, without code."""
        kept = self.optimizer
        file = io.BytesIO()
        torch.save(
            {
                "buffers": self.buffers,
                "kind": None if kept is None else kept.kind,
                "content": None if kept is None else kept.content,
            },
            file,
        )
        return file.getvalue()

    def give(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
        """Have a model and its optimizer begin with it; return whether the optimizer does."""
        model.load_state_dict(self.buffers, strict=False)
        return self.optimizer is not None and restored(optimizer, self.optimizer)


def beginning_of(content: bytes) -> Beginning:
    """Return what `Beginning.packed` was made of."""
    found = torch.load(io.BytesIO(content), weights_only=True)
    has_state = found["kind"] is not None
    return Beginning(
        found["buffers"], OptimizerState(found["kind"], found["content"]) if has_state else None
    )


def buffers_of_state(
    model: nn.Module, state: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the part of a model's state that is no parameter."""
    names = {name for name, _ in model.named_buffers()}
    return {name: each for name, each in state.items() if name in names}


def kept_state(optimizer: torch.optim.Optimizer, bytes_max: int) -> OptimizerState | None:
    """Return what an optimizer has kept; None where that is nothing, or more than so many bytes."""
    state = optimizer.state_dict()["state"]
    if not state or _size(state) > bytes_max:
        return None
    file = io.BytesIO()
    torch.save(state, file)
    return OptimizerState(_kind(optimizer), file.getvalue())


def restored(optimizer: torch.optim.Optimizer, kept: OptimizerState) -> bool:
    """Have an optimizer begin with a state; return False where it is one of another kind."""
    if kept.kind != _kind(optimizer):
        return False
    plain = optimizer.state_dict()
    plain["state"] = torch.load(io.BytesIO(kept.content), weights_only=True)
    optimizer.load_state_dict(plain)
    return True


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Return class and switches: ``amsgrad=True`` has Adam keep something more."""
    switches = {name: on for name, on in optimizer.defaults.items() if isinstance(on, bool)}
    return f"{type(optimizer).__name__} {sorted(switches.items())}"


def _size(state: Mapping[Any, Mapping[str, Any]]) -> int:
    tensors = [v for each in state.values() for v in each.values() if isinstance(v, torch.Tensor)]
    return sum(each.nbytes for each in tensors)
