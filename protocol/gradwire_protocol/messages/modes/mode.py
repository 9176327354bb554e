"""`Mode`: how the updates of a run's workers become one replica.

In the mode ``sharing``, each update goes to all workers at once. In all others, workers
*contribute* to *rounds*: a contribution is an update that is not relayed. A round closes when all
workers have contributed, or some time after the first one; the mean of what has come is then
relayed as an update of the master's own. So a mode says after how many steps a worker contributes,
which of its elements and with how many bits, and which step the mean makes. In the mode
``central``, contributions are gradients, and the mean makes a step of an `Optimizer` that the
master has.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Annotated, Final, Self

from gradwire_protocol.errors import UsageError
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import (
    ANY,
    NUMBERS_MAX,
    SLOTS_MAX,
    STATE,
    KeptState,
)
from gradwire_protocol.messages.modes.optimizer import (
    OPTIMIZERS,
    SGD,
    Optimizer,
    changed,
    usual_optimizer,
    values_of,
)
from gradwire_protocol.messages.schema import Record, choice, integer, number

SHARING: Final = "sharing"
SYNCHRONOUS: Final = "synchronous"
AVERAGING: Final = "averaging"
DILOCO: Final = "diloco"
CENTRAL: Final = "central"

EVERY_MAX: Final = 100_000

ROUND_TIMEOUT_SECONDS_MAX: Final = 24 * 3600

OUTER_LR_MAX: Final = 10.0

OUTER_MOMENTUM_MAX: Final = 0.999

STREAMS_MAX: Final = 64

DENSITY_MAX: Final = 0.5
"""Of a sparse contribution: denser ones take fewer bytes with 4 bits for every element."""

LAST_STEP: Final = STATE + "last_step"
"""The tensor with the outer optimizer's last step, in checkpoints of `DILOCO`."""

ROUNDS: Final = STATE + "rounds"
"""The tensor with the number of rounds that a replica contains, where they take turns."""

SPARSE: Final = 0
"""In place of bits: a contribution carries what has reached the threshold."""

BITS: Final = (SPARSE, 4, 8)

GRADIENTS_MAX: Final = 4_000

NONE: Final = "none"
INVERSE: Final = "inverse"


@dataclass(frozen=True, slots=True)
class Mode(Record):
    """The mode of a run."""

    name: Annotated[str, choice(SHARING, SYNCHRONOUS, AVERAGING, DILOCO, CENTRAL)] = SHARING
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
    optimizer: Optimizer | None = None
    """The master's, in `CENTRAL`."""
    gradients_per_update: Annotated[int, integer(1, GRADIENTS_MAX)] = 1
    """In `CENTRAL`: a round closes with so many contributions, or with those of all workers."""
    staleness: Annotated[str, choice(NONE, INVERSE)] = NONE
    """In `CENTRAL`: what a gradient is divided by. With `INVERSE`, by how many steps the master has
    made since the parameters that it is of."""
    optimizer_state: KeptState | None = None
    """In `AVERAGING`: what of the workers' optimizers is averaged along with the parameters."""
    streams: Annotated[int, integer(1, STREAMS_MAX)] = 1
    """In `DILOCO`: into how many parts the parameters are cut, of which each round has the next."""
    sparse: Annotated[float, number(0.0, DENSITY_MAX)] = 0.0
    """Part of the elements that a contribution carries, the largest ones of each range; 0 where
    `bits` says what it carries. See `gradwire_codecs.replica.sparse_sum`."""
    waits: bool = False
    """In `AVERAGING` and `DILOCO`: whether a round waits for all workers, and not only for those
    that should be here soon after half of them. In other modes it does."""

    @classmethod
    def from_plain(cls, plain: object) -> Self:
        """Make a mode from a map after checking every field, and that they fit each other."""
        mode = super(Mode, cls).from_plain(plain)  # a dataclass with slots is a new class
        if (mode.name == CENTRAL) is (mode.optimizer is None):
            raise ValueError(f"optimizer: {mode.optimizer} with name {mode.name!r}")
        if mode.optimizer_state is not None and (mode.name != AVERAGING or not mode.bits):
            raise ValueError(f"optimizer_state with name {mode.name!r} and bits={mode.bits}")
        if mode.sparse:
            mode._check_sparse()
        if mode.waits and mode.name not in (AVERAGING, DILOCO):
            raise ValueError(f"waits with name {mode.name!r}")
        if mode.streams > 1 and (mode.name != DILOCO or mode.every % mode.streams):
            raise ValueError(
                f"streams: {mode.streams}, with every={mode.every}; it has to divide that"
            )
        return mode

    def _check_sparse(self) -> None:
        """Raise `ValueError` for what does not go with contributions of the largest elements."""
        if self.name not in (AVERAGING, DILOCO):
            raise ValueError(f"sparse: {_fraction(self.sparse)} with name {self.name!r}")
        if self.bits or self.outer_momentum or self.streams > 1:
            raise ValueError(
                f"sparse: {_fraction(self.sparse)}, with bits={self.bits}, "
                f"outer_momentum={self.outer_momentum:g} and streams={self.streams}; it has "
                "bits=0, outer_momentum=0 and streams=1: what is not sent yet takes the place of "
                "the momentum"
            )

    @property
    def waits_for_all(self) -> bool:
        """Whether a round waits for all workers."""
        return self.waits or self.name not in (AVERAGING, DILOCO)

    @property
    def has_rounds(self) -> bool:
        """Whether workers contribute to rounds."""
        return self.name != SHARING

    @property
    def has_outer_step(self) -> bool:
        """Whether the mean is a gradient of an outer optimizer, and not the step itself."""
        return self.name == DILOCO and not self.sparse

    @property
    def magnitude_max(self) -> int | None:
        """Largest count of an element of a dense contribution; None where it is sparse."""
        return 2 ** (self.bits - 1) - 1 if self.bits else None

    @property
    def has_state(self) -> bool:
        """Whether a replica has an optimizer's state behind the parameters."""
        return self.optimizer is not None or self.optimizer_state is not None or self.streams > 1

    @property
    def steps_between(self) -> int:
        """Steps between two contributions of a worker."""
        return self.every // self.streams

    @property
    def results_kept(self) -> int:
        """How many of the last results the next step of the outer optimizer follows from."""
        return self.streams if self.has_outer_step else 0

    def allows(self, other: "Mode") -> bool:
        """Return whether another mode is this one, or says more exactly what this one does."""
        if self.optimizer_state == ANY and other.optimizer_state is not None:
            return replace(other, optimizer_state=ANY) == self
        return other == self

    def __str__(self) -> str:
        """Return the text that `parse_mode` reads: the name, and what differs from its defaults."""
        usual = usual_mode(self.name, is_sparse=bool(self.sparse))
        differing = [
            f"{name}={_shown(name, getattr(self, name))}"
            for name in _VALUES[self.name]
            if getattr(self, name) != getattr(usual, name) or (name == "sparse" and self.sparse)
        ]
        if self.optimizer is not None:
            differing = [*self.optimizer.parts(), *differing]
        return f"{self.name}({', '.join(differing)})" if differing else self.name


def elements_max(model: Layout) -> int:
    """Return how many elements a replica of a model has at most, whatever the mode."""
    return model.elements * (1 + SLOTS_MAX) + len(model.tensors) * NUMBERS_MAX


def model_of(layout: Layout) -> Layout:
    """Return the part of a replica's layout that is the model."""
    return replace(layout, tensors=tuple(t for t in layout.tensors if not t.name.startswith(STATE)))


USUAL: Final = {
    SHARING: Mode(),
    SYNCHRONOUS: Mode(SYNCHRONOUS, bits=8),
    AVERAGING: Mode(AVERAGING, every=16, bits=8),
    DILOCO: Mode(DILOCO, every=64, bits=8, outer_lr=0.7, outer_momentum=0.9),
    CENTRAL: Mode(CENTRAL, bits=8, optimizer=OPTIMIZERS[SGD]),
}
"""Each mode with its defaults."""

USUAL_SPARSE: Final = {
    AVERAGING: Mode(AVERAGING, every=8, sparse=1 / 64),
    DILOCO: Mode(DILOCO, every=8, sparse=1 / 64),
}
"""Those of which contributions carry the largest elements only."""


def usual_mode(name: str, *, is_sparse: bool) -> Mode:
    """Return a mode with its defaults."""
    return USUAL_SPARSE[name] if is_sparse and name in USUAL_SPARSE else USUAL[name]


_OF_CENTRAL: Final = ("optimizer", "gradients_per_update", "staleness")
_OF_AVERAGING: Final = ("optimizer_state", "sparse", "waits")
_OF_DILOCO: Final = ("outer_lr", "outer_momentum", "sparse", "streams", "waits")
_COMMON: Final = tuple(
    each.name
    for each in fields(Mode)
    if each.name not in ("name", "every", *_OF_AVERAGING, *_OF_DILOCO, *_OF_CENTRAL)
)
_TEXT: Final = re.compile(r"\s*([a-z]+)\s*(?:\((.*)\))?\s*")
_VALUES: Final = {
    SHARING: (),
    SYNCHRONOUS: _COMMON,
    AVERAGING: ("every", *_COMMON, *_OF_AVERAGING),
    DILOCO: ("every", *_COMMON, *_OF_DILOCO),
    CENTRAL: (*_OF_CENTRAL[1:], *_COMMON),
}
"""By name: what can be said of a mode, besides its optimizer."""


def new_mode(name: str, **values: object) -> Mode:
    """Return a mode with these values, and else its defaults.

    For `CENTRAL`, `optimizer` is the name of an `Optimizer`, and values are also its settings.
    `optimizer_state` can be a `KeptState`, its text, or whether there is any.

    Raises
    ------
    UsageError
        If there is no such mode, or a value is none: with what there is.
    """
    if name not in USUAL:
        raise UsageError(f"mode {name!r}; there are {', '.join(USUAL)}")
    usual, known = usual_mode(name, is_sparse=bool(values.get("sparse"))), _VALUES[name]
    its: tuple[str, ...] = ()
    optimizer = usual.optimizer
    try:
        if optimizer is not None:
            optimizer = usual_optimizer(values.pop("optimizer", SGD))
            its = values_of(optimizer)
        _check_known(values, (*its, *known), optimizer)
        kept = _kept_state(values.pop("optimizer_state", False))
        if optimizer is not None:
            optimizer = changed(optimizer, **{key: values.pop(key) for key in its if key in values})
        mode = Mode.from_plain({**usual.to_plain(), **values})
        _check_dense(mode, optimizer_state=kept is not None)
        return replace(mode, optimizer=optimizer, optimizer_state=kept)
    except ValueError as error:
        raise UsageError(f"mode {name!r}: {error}") from None


def _kept_state(said: object) -> KeptState | None:
    if isinstance(said, KeptState):
        return said
    if isinstance(said, bool):
        return ANY if said else None
    return KeptState.of_text(str(said))


def _check_dense(mode: Mode, *, optimizer_state: bool) -> None:
    """Refuse what needs dense contributions where a mode has others."""
    wants = "optimizer_state" if optimizer_state else f"streams={mode.streams}"
    if not mode.bits and (optimizer_state or mode.streams > 1):
        raise ValueError(f"{wants} with bits={mode.bits}: choose bits=8 or bits=4")


def _shown(name: str, value: object) -> object:
    """Return what the text of a mode has for a value."""
    if name == "sparse":
        return _fraction(float(str(value)))
    return True if value == ANY else value


def _fraction(density: float) -> str:
    """Return a density as ``1/64``, where it is such a one."""
    whole = round(1 / density) if density else 0
    return f"1/{whole}" if whole and 1 / whole == density else f"{density:g}"


def _check_known(
    values: Mapping[str, object], known: Sequence[str], optimizer: Optimizer | None
) -> None:
    unknown = ", ".join(sorted(values.keys() - set(known)))
    if unknown:
        of = "" if optimizer is None else f" with {optimizer.name}"
        can = ", ".join(known) or "nothing"
        raise ValueError(f"it has no {unknown}{of}; what can be said of it: {can}")


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
    values: dict[str, object] = {}
    for part in (found[2] or "").split(","):
        name, _, value = map(str.strip, part.partition("="))
        if not name and not value:
            continue
        if not name or not value:
            raise UsageError(f"mode {text!r}: {part.strip()!r}; it has to be a name=value")
        values[name] = _value_of(value)
    return new_mode(found[1], **values)


def _value_of(text: str) -> object:
    """Return what a text says of a mode: a number, yes or no, or a word."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    with suppress(ValueError, ZeroDivisionError):
        return float(Fraction(text))
    return text
