"""The optimizer of a run: its rule where the master steps, and its state's place in the replica."""

from typing import Final

from gradwire_codecs.replica.optimizer_rules import Rule
from gradwire_protocol import UsageError
from gradwire_protocol.messages.layout import ELEMENTS_MAX, Layout, Tensor
from gradwire_protocol.messages.modes.kept_state import STATE, STEP
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_protocol.messages.modes.optimizer import Optimizer


def rule_of(optimizer: Optimizer) -> Rule:
    """Return the rule of an optimizer."""
    return Rule(
        name=optimizer.name,
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
    )


LAST_STEP: Final = STATE + "last_step"
"""In checkpoints of DiLoCo: the tensor with the outer optimizer's last step."""


def saved_layout(layout: Layout, mode: Mode) -> Layout:
    """Return the layout of a checkpoint of a run whose replica has this layout.

    The last step of a model that is too large for it is not saved.
    """
    if not mode.has_outer_step or 2 * layout.elements > ELEMENTS_MAX:
        return layout
    return Layout((*layout.tensors, Tensor(LAST_STEP, (layout.elements,))))


def layout_of(model: Layout, mode: Mode) -> Layout:
    """Return the layout of a run's replica: that of the model, and of the optimizer's state.

    Raises
    ------
    UsageError
        If that is too large.
    """
    state: tuple[Tensor, ...] = ()
    if mode.optimizer is not None:
        slots = rule_of(mode.optimizer).slots
        state = (*(Tensor(STATE + slot, (model.elements,)) for slot in slots),
                 Tensor(STATE + STEP, (1,)))  # fmt: skip
    elif mode.optimizer_state is not None:
        state = mode.optimizer_state.tensors(model)
    if not state:
        return model
    layout = Layout((*model.tensors, *state))
    try:
        return Layout.from_plain(layout.to_plain())
    except ValueError as error:
        raise UsageError(f"the parameters and what {keeper_of(mode)} keeps: {error}") from None


def keeper_of(mode: Mode) -> str:
    """Return the name of the optimizer whose state the replica has."""
    if mode.optimizer is not None:
        return mode.optimizer.name
    assert mode.optimizer_state is not None
    return mode.optimizer_state.optimizer
