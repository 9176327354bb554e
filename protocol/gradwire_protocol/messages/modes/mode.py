"""`Mode`: how the updates of a run's workers become one replica.

In the mode ``sharing``, each update goes to all workers at once. In all others, workers
*contribute* to *rounds*: a contribution is an update that is not relayed. A round closes when all
workers have contributed, or some time after the first one; the mean of what has come is then
relayed as an update of the master's own. So a mode says after how many steps a worker contributes,
with how many bits, and which step the mean makes.
"""

import re
from dataclasses import dataclass, fields
from typing import Annotated, Final

from gradwire_protocol.errors import UsageError
from gradwire_protocol.messages.schema import Record, choice, integer, number

SHARING: Final = "sharing"
SYNCHRONOUS: Final = "synchronous"
AVERAGING: Final = "averaging"
DILOCO: Final = "diloco"

EVERY_MAX: Final = 100_000

ROUND_TIMEOUT_SECONDS_MAX: Final = 24 * 3600

OUTER_LR_MAX: Final = 10.0

OUTER_MOMENTUM_MAX: Final = 0.999

SPARSE: Final = 0
"""In place of bits: a contribution carries what has reached the threshold."""

BITS: Final = (SPARSE, 4, 8)


@dataclass(frozen=True, slots=True)
class Mode(Record):
    """The mode of a run."""

    name: Annotated[str, choice(SHARING, SYNCHRONOUS, AVERAGING, DILOCO)] = SHARING
    every: Annotated[int, integer(1, EVERY_MAX)] = 1
    """Steps of a contribution."""
    bits: Annotated[int, choice(*BITS)] = SPARSE
    """Of each element of a dense contribution; `SPARSE` for a sparse one."""
    round_timeout_seconds: Annotated[int, integer(1, ROUND_TIMEOUT_SECONDS_MAX)] = 120
    """How long after its first contribution a round closes without those that are missing."""
    outer_lr: Annotated[float, number(0.0, OUTER_LR_MAX)] = 1.0
    """What the mean is multiplied by."""
    outer_momentum: Annotated[float, number(0.0, OUTER_MOMENTUM_MAX)] = 0.0
    """Nesterov's, of the means."""

    @property
    def has_rounds(self) -> bool:
        """Whether workers contribute to rounds."""
        return self.name != SHARING

    @property
    def has_outer_step(self) -> bool:
        """Whether the mean is a gradient of an outer optimizer, and not the step itself."""
        return self.name == DILOCO

    @property
    def magnitude_max(self) -> int | None:
        """Largest count of an element of a dense contribution; None where it is sparse."""
        return 2 ** (self.bits - 1) - 1 if self.bits else None

    def __str__(self) -> str:
        """Return the text that `parse_mode` reads: the name, and what differs from its defaults."""
        usual = USUAL[self.name]
        differing = [
            f"{name}={getattr(self, name)!r}"
            for name in _NUMBERS
            if getattr(self, name) != getattr(usual, name)
        ]
        return f"{self.name}({', '.join(differing)})" if differing else self.name


USUAL: Final = {
    SHARING: Mode(),
    SYNCHRONOUS: Mode(SYNCHRONOUS, bits=8),
    AVERAGING: Mode(AVERAGING, every=16, bits=8),
    DILOCO: Mode(DILOCO, every=64, bits=8, outer_lr=0.7, outer_momentum=0.9),
}
"""Each mode with its defaults."""

_NUMBERS: Final = tuple(each.name for each in fields(Mode) if each.name != "name")
_OUTER: Final = ("outer_lr", "outer_momentum")
_TEXT: Final = re.compile(r"\s*([a-z]+)\s*(?:\((.*)\))?\s*")
_VALUES: Final = {
    SHARING: (),
    SYNCHRONOUS: tuple(name for name in _NUMBERS if name not in ("every", *_OUTER)),
    AVERAGING: tuple(name for name in _NUMBERS if name not in _OUTER),
    DILOCO: _NUMBERS,
}
"""By name: what can be said of a mode."""


def new_mode(name: str, **values: float) -> Mode:
    """Return a mode with these values, and else its defaults.

    Raises
    ------
    UsageError
        If there is no such mode, or a value is none: with what there is.
    """
    if name not in USUAL:
        raise UsageError(f"mode {name!r}; there are {', '.join(USUAL)}")
    unknown = ", ".join(values.keys() - set(_VALUES[name]))
    if unknown:
        known = ", ".join(_VALUES[name]) or "nothing"
        raise UsageError(f"mode {name!r} has no {unknown}; what can be said of it: {known}")
    usual = USUAL[name]
    try:
        return Mode.from_plain({**usual.to_plain(), **values})
    except ValueError as error:
        raise UsageError(f"mode {name!r}: {error}") from None


def parse_mode(text: str) -> Mode:
    """Return the mode that a text stands for, such as ``averaging(every=5, bits=4)``.

    Raises
    ------
    UsageError
        If it is none.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise UsageError(f"mode {text!r}; write it as in averaging(every=5, bits=4)")
    values: dict[str, float] = {}
    for part in (found[2] or "").split(","):
        name, _, value = map(str.strip, part.partition("="))
        if not name and not value:
            continue
        try:
            values[name] = float(value) if name in _OUTER else int(value)
        except ValueError:
            raise UsageError(
                f"mode {text!r}: {part.strip()!r}; it has to be a name=number"
            ) from None
    return new_mode(found[1], **values)
