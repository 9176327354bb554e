"""The optimizer of a run: its rule where the master steps, and its state's place in the replica."""

from gradwire_codecs.replica.optimizer_rules import Rule
from gradwire_protocol import UsageError
from gradwire_protocol.messages.layout import ELEMENTS_MAX, Layout, Tensor
from gradwire_protocol.messages.modes.kept_state import STATE, STEP
from gradwire_protocol.messages.modes.mode import LAST_STEP, ROUNDS, Mode, model_of
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


def saved_layout(layout: Layout, mode: Mode) -> Layout:
    """Return the layout of a checkpoint of a run whose replica has this layout.

    The last step of a model that is too large for it is not saved.
    """
    parameters = model_of(layout).elements
    if not mode.has_outer_step or layout.elements + parameters > ELEMENTS_MAX:
        return layout
    return Layout((*layout.tensors, Tensor(LAST_STEP, (parameters,))))


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
    elif mode.streams > 1:
        state = (Tensor(ROUNDS, (1,)),)
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
    kept = mode.optimizer_state
    return "the outer optimizer" if kept is None else kept.optimizer
