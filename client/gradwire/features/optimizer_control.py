"""`OptimizerControl`: adapts an optimizer's momentum and learning rate while it steps.

Hooks before and after each of its steps put the adapted values into its groups and take them out
again. So what a script sees in `param_groups`, what schedulers read and multiply, and what is
saved, are always the optimizer's own values. No hook follows a step that raises: its values are
taken out before the next one, or in the session's next step.

The learning rate also carries the session's `scale`, if steps are in proportion to it. A decoupled
weight decay, as AdamW's, is in proportion to it as well, and has to be: with "mean", for example,
all workers together decay as much as one would.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Final, NamedTuple, cast

import torch

from gradwire.errors import UsageError
from gradwire.optimizer.momentum import Lag, approach
from gradwire.optimizer.torch_momentum import Kind, Present, rescale, restored
from gradwire.participant.feature import Feature
from gradwire.replica.stats import Tally

logger = logging.getLogger("gradwire.session")

HANDING_ON: Final = frozenset({"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"})
"""Packages whose wrappers of an optimizer add nothing to its steps."""

BY_RATE: Final = tuple(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad",
                 "Adadelta", "SparseAdam", "Muon")
    if hasattr(torch.optim, name)
)  # fmt: skip
"""Optimizers whose steps are in proportion to the learning rate of their groups. LBFGS with a line
search ignores it, Rprop only begins with it, ASGD has another one in its state, and Adafactor
takes the smaller one of two. Unknown optimizers count as one of these."""


class _Override(NamedTuple):
    """A value that is in a group while the optimizer steps."""

    group: dict[str, Any]
    key: str
    own: Any
    value: Any


class OptimizerControl(Feature):
    """Adapts one optimizer.

    Parameters
    ----------
    lag : callable, optional
        Returns how late changes are, as measured; without it, momentum stays.
    factors : sequence of callable
        Each returns a factor of the learning rate.
    trains_all : bool
        Whether only this optimizer trains, so that nothing has to be sent if it made no step.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        lag: Callable[[], Lag] | None,
        factors: Sequence[Callable[[], float]] = (),
        tally: Tally,
        trains_all: bool = True,
    ) -> None:
        self._optimizer = optimizer
        self._measured_lag = lag
        self._factors = factors
        self._tally = tally
        self._lag = Lag()
        self._overrides: list[_Override] = []
        self._adapted: dict[int, Present] = {}
        """By group: the momentum that its state suits, if that is not its own."""
        self._settled: dict[int, int] = {}
        """By group: how many states it had when none had to be rescaled any more."""
        self._trains_all = trains_all
        self._sees_steps = False
        """Whether a step of the optimizer was seen here."""
        self._gave_up = False
        self._steps = 0
        """Since the session's last step."""
        self._trained = True
        self._hooks = [
            optimizer.register_step_pre_hook(_untraced(self._before_step)),
            optimizer.register_step_post_hook(_untraced(self._after_step)),
            optimizer.register_state_dict_post_hook(self._on_state_dict),
            optimizer.register_load_state_dict_post_hook(self._on_load_state_dict),
        ]

    # Hooks of the session.

    def before_push(self) -> None:
        """Note whether the optimizer has made a step since the last call."""
        self._put_own_values_back()
        knows = self._sees_steps and self._trains_all and not self._gave_up
        self._trained = self._steps > 0 or not knows
        self._steps = 0

    def has_trained(self) -> bool:
        """Return whether it has; True if that is unknown."""
        return self._trained

    def on_leave(self) -> None:
        """Give the optimizer back its own values and state."""
        for hook in self._hooks:
            hook.remove()
        self._restore_all()

    # Hooks of the optimizer.

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._put_own_values_back()
        if self._gave_up:
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._give_up()
            return
        if self._measured_lag is not None:
            self._lag = approach(self._lag, self._measured_lag())
        factor = prod(factor() for factor in self._factors)
        for number, group in enumerate(optimizer.param_groups):
            rate = factor * self._adapt(number, group)
            if rate != 1.0:
                self._override(group, "lr", group["lr"] * rate)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._put_own_values_back()
        # A GradScaler calls a fused optimizer also for a step that it then skips.
        infinite = getattr(optimizer, "found_inf", None)
        if infinite is None or not float(infinite):
            self._sees_steps = True
            self._steps += 1

    def _on_state_dict(
        self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Save the state that suits the optimizer's own momentum."""
        if not self._adapted:
            return None
        states: dict[Any, Any] = dict(saved["state"])
        for number, held in self._adapted.items():
            kind = Kind.of(optimizer, optimizer.param_groups[number])
            for key in saved["param_groups"][number]["params"]:
                if kind is not None and key in states:
                    states[key] = restored(kind, states[key], held)
        return {**saved, "state": states}

    def _on_load_state_dict(self, optimizer: torch.optim.Optimizer) -> None:
        """Assume that the loaded state suits the optimizer's own momentum."""
        self._adapted.clear()
        self._settled.clear()

    # Private.

    def _adapt(self, number: int, group: dict[str, Any]) -> float:
        """Set the momentum of a group; return what to multiply the learning rate by for it."""
        kind = Kind.of(self._optimizer, group)
        if kind is None:
            return 1.0
        now = kind.lowered(kind.own(group), self._lag)
        if number == 0:
            self._tally.momentum = now.put
        if now.put == now.own and number not in self._adapted:
            return 1.0
        self._adapt_state(number, group, kind, now)
        if now.put != now.own:
            self._override(group, kind.key, kind.in_place_of(group[kind.key], now.put))
        return kind.rate_factor(now)

    def _adapt_state(self, number: int, group: dict[str, Any], kind: Kind, now: Present) -> None:
        """Make the state of a group suit a momentum."""
        before = self._adapted.get(number, Present(now.own, now.own))
        states = self._optimizer.state
        if before != now and self._settled.get(number) != len(states):
            own = (states[parameter] for parameter in group["params"] if parameter in states)
            if rescale(kind, own, before, now):
                self._settled[number] = len(states)
        self._adapted[number] = now
        if now.put == now.own:
            del self._adapted[number]

    def _override(self, group: dict[str, Any], key: str, value: Any) -> None:
        self._overrides.append(_Override(group, key, group[key], value))
        group[key] = value

    def _put_own_values_back(self) -> None:
        """Put the optimizer's own values back, unless a script has set others since."""
        for put in self._overrides:
            if put.group[put.key] is put.value:
                put.group[put.key] = put.own
        self._overrides.clear()

    def _restore_all(self) -> None:
        self._put_own_values_back()
        groups = self._optimizer.param_groups
        for number in list(self._adapted):
            kind = Kind.of(self._optimizer, groups[number])
            if kind is not None:
                own = kind.own(groups[number])
                self._adapt_state(number, groups[number], kind, Present(own, own))
        self._adapted.clear()

    def _give_up(self) -> None:
        """Leave the optimizer alone: replays of the CUDA graph being recorded call no hook."""
        self._restore_all()
        self._gave_up = True
        logger.warning(
            "the optimizer's step is recorded into a CUDA graph: its momentum and learning rate "
            "stay as they are, and are not adapted to delays and workers"
        )


def torch_optimizer(optimizer: object, target: object) -> torch.optim.Optimizer:
    """Return the optimizer whose steps are adapted, if it changes the target and nothing else.

    Of wrappers that only hand on, Accelerate's and Lightning's, it is the wrapped one. Any other
    optimizer that holds one does something of its own to the parameters, as Lookahead does, and is
    taken as it is.

    Parameters
    ----------
    optimizer : object
        With `param_groups` and `step`, as torch's.
    target : object
        What is trained.

    Raises
    ------
    UsageError
        If it is no optimizer, or has parameters that are not the target's.
    """
    found: Any = optimizer
    while type(found).__module__.partition(".")[0] in HANDING_ON and hasattr(found, "optimizer"):
        found = found.optimizer
    if not hasattr(found, "param_groups") or not callable(getattr(found, "step", None)):
        lacks = "step" if hasattr(found, "param_groups") else "param_groups"
        raise UsageError(
            f"optimizer={type(optimizer).__name__}, which has no {lacks}; it has to be a "
            "torch.optim.Optimizer, or like one. Join without it, set its momentum low yourself, "
            "and scale multiplies the changes"
        )
    known = {id(parameter) for parameter in _tensors_of(target)}
    foreign = [
        f"parameter {place} of group {number}, of shape {tuple(parameter.shape)}"
        for number, group in enumerate(found.param_groups)
        for place, parameter in enumerate(group["params"])
        if id(parameter) not in known
    ]
    if foreign:
        raise UsageError(
            f"the optimizer has {len(foreign)} parameters that are not the target's, the first one "
            f"is {foreign[0]}: join what the optimizer changes, and make the optimizer with the "
            "parameters that the target has now"
        )
    return cast(torch.optim.Optimizer, found)


def has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has the hooks by which its steps are adapted."""
    found: object = optimizer
    return isinstance(found, torch.optim.Optimizer) and hasattr(found, "_optimizer_step_pre_hooks")


def learning_rates(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the distinct learning rates of an optimizer's groups, the highest one first."""
    rates = {float(group["lr"]) for group in optimizer.param_groups if "lr" in group}
    return sorted(rates, reverse=True)


def scales_by_rate(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether all steps of an optimizer are in proportion to its learning rates."""
    return isinstance(optimizer, BY_RATE) and all("lr" in g for g in optimizer.param_groups)


def trains_all(optimizer: torch.optim.Optimizer, target: object) -> bool:
    """Return whether an optimizer changes every parameter of the target that is not frozen."""
    changed = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return all(id(tensor) in changed or not tensor.requires_grad for tensor in _tensors_of(target))


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that torch.compile does not trace in a compiled step.

    It would compile again for every value of a momentum, and give up after a few.
    """
    untraced: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return untraced


def _tensors_of(target: object) -> Iterable[torch.Tensor]:
    if isinstance(target, torch.nn.Module):
        return target.parameters()
    return target if isinstance(target, Sequence) else ()
