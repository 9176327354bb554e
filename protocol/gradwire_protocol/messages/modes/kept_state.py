"""`KeptState`: what the workers' optimizers keep, in a mode that averages it with the parameters.

It is part of the replica, behind the parameters: a value of each slot for each parameter, then a
value of each number for each tensor. So it is in every round, snapshot and checkpoint. The master
knows names only; what an element of the replica means is up to the workers.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final, Self

from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.schema import Check, Record, listing, text

STATE: Final = "__optimizer__."
"""Begins the names of the tensors with the state of an optimizer."""

SLOTS_MAX: Final = 4
"""Most values that an optimizer keeps for each parameter; Adam has three with ``amsgrad``."""

NUMBERS_MAX: Final = 4
"""Most values that it keeps for each tensor."""

STEP: Final = "step"
"""The number of steps. Workers take the largest of all, and not the mean."""

NAME_CHARACTERS_MAX: Final = 64

_NAME: Final = re.compile(r"\w+")
_TEXT: Final = re.compile(r"(\w+)\[([\w ]*)(?:;([\w ]+))?\]")


def _name() -> Check:
    check = text(NAME_CHARACTERS_MAX)

    def check_name(value: object) -> str:
        name: str = check(value)
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name of letters, digits and underscores")
        return name

    return check_name


@dataclass(frozen=True, slots=True)
class KeptState(Record):
    """The names of what an optimizer keeps.

    As text: ``AdamW[exp_avg exp_avg_sq; step]``.
    """

    optimizer: Annotated[str, _name()]
    """Name of the optimizer's class."""
    slots: Annotated[tuple[str, ...], listing(_name(), SLOTS_MAX)]
    """Names of the values for each parameter."""
    numbers: Annotated[tuple[str, ...], listing(_name(), NUMBERS_MAX)]
    """Names of the values for each tensor."""

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Make a record from a map after checking every field."""
        kept = super(KeptState, cls).from_plain(plain)  # a dataclass with slots is a new class
        names = (*kept.slots, *kept.numbers)
        if not names or len(set(names)) < len(names):
            raise ValueError(f"slots: {names} of {kept.optimizer}: no name, or one occurs twice")
        return kept

    @classmethod
    def of_text(cls, shown: str) -> Self:
        """Return what a text stands for; `ValueError` if it is none."""
        found = _TEXT.fullmatch(shown)
        if found is None:
            raise ValueError(
                f"optimizer_state={shown!r}; it is True, False, or as in AdamW[exp_avg; step]"
            )
        slots, numbers = ((names or "").split() for names in found.groups()[1:])
        return cls.from_plain({"optimizer": found[1], "slots": slots, "numbers": numbers})

    def __str__(self) -> str:
        """Return the text."""
        numbers = f"; {' '.join(self.numbers)}" if self.numbers else ""
        return f"{self.optimizer}[{' '.join(self.slots)}{numbers}]"

    def tensors(self, model: Layout) -> tuple[Tensor, ...]:
        """Return what is behind the parameters of a model in its replica."""
        slots = (Tensor(STATE + name, (model.elements,)) for name in self.slots)
        numbers = (Tensor(STATE + name, (len(model.tensors),)) for name in self.numbers)
        return (*slots, *numbers)


ANY: Final = KeptState("", (), ())
"""Where a mode says that state is averaged, and no worker has said yet what its optimizer keeps."""
