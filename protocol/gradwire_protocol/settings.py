"""Settings, each declared once: its default, its limits, and what it is for.

::

    @dataclass(frozen=True, kw_only=True)
    class Config:
        workers_max: int = setting(56, "Workers at once.", least=1, most=4092)

        def __post_init__(self) -> None:
            check_settings(self)

What else there is of a setting follows from the declaration: the error for a wrong value, what a
text in the environment stands for, the option of a command line, the tables of the documentation.
"""

import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from gradwire_protocol.errors import UsageError

SWITCH_TEXTS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field says of itself besides its type and its default."""

    text: str
    """What it is for, in whole sentences."""
    least: float = -inf
    above: float = -inf
    """What it has to be above; `least` and `most` are allowed themselves."""
    most: float = inf
    below: float = inf
    or_else: Sequence[object] = ()
    """Values besides that mean something of their own, such as 0 for never."""
    characters_max: int | None = None
    """Of a printable text, which is not empty: what may be left out has None for its default."""
    accepts: Callable[[object], bool] | None = None
    """Says whether an object of another type is taken, too."""
    accepts_text: str = ""
    """What such an object is, in words."""
    is_secret: bool = False
    """Whether no message may show its value."""
    unit: int = 1
    """What an option counts in, where that is not bytes: MiB."""
    metavar: str | None = None
    """What an option calls its value in its help."""
    is_option: bool = True
    """Whether the command line has it."""


def setting(default: Any, text: str, **about: Any) -> Any:
    """Declare a field of a dataclass as a setting; `Setting` says what can be said about it."""
    declaration = Setting(text, **about)
    return field(default=default, repr=not declaration.is_secret, metadata={Setting: declaration})


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A setting with what its field says: its name, its types, its default."""

    name: str
    default: Any
    about: Setting
    annotation: Any
    choices: tuple[str, ...]
    """Names that it can have."""
    kinds: frozenset[Any]
    """The other types that it can have."""

    def check(self, value: object) -> None:
        """Refuse a value that it cannot have.

        Raises
        ------
        UsageError
            Names the setting, the value, and which values it can have.
        """
        if self.about.is_secret or (value is None and type(None) in self.kinds):
            return
        if self.about.accepts is not None and self.about.accepts(value):
            return
        problem = self._problem(value)
        if problem is not None:
            raise UsageError(f"{self.name}={value!r}; it {problem}")

    def parse(self, text: str, source: str) -> Any:
        """Return what a text stands for.

        Parameters
        ----------
        text : str
        source : str
            Where it was found, such as the name of a variable.

        Raises
        ------
        UsageError
            If it is no such value. Whether that is within the limits is not looked at.
        """
        if text in self.choices or str in self.kinds:
            return text
        if bool in self.kinds:
            if text.lower() not in SWITCH_TEXTS:
                raise UsageError(f"{source}={text!r} is neither true nor false")
            return SWITCH_TEXTS[text.lower()]
        if self.choices and not self._is_number:
            return text  # to be refused with what it can be
        try:
            if tuple in self.kinds:
                return tuple(map(float, text.split(",")))
            return int(text) if float not in self.kinds else float(text)
        except ValueError:
            raise UsageError(f"{source}={text!r} is not a number") from None

    @property
    def option(self) -> str:
        """Its name as an option: of bytes that it counts in MiB, with that in it."""
        return self.name if self.about.unit == 1 else self.name.replace("bytes", "mib")

    @property
    def _is_number(self) -> bool:
        return bool(self.kinds & {int, float})

    def _problem(self, value: object) -> str | None:
        """Return what is wrong with a value, in words that say what it can be."""
        if isinstance(value, bool) or bool in self.kinds:
            is_fine = isinstance(value, bool) and bool in self.kinds
            return None if is_fine else f"has to be {self._allowed_values}"
        if isinstance(value, str) and (self.choices or str in self.kinds):
            return self._problem_of_text(value)
        if tuple in self.kinds:
            return None if _is_pair(value) else "has to be two numbers"
        if isinstance(value, tuple(self.kinds & {Path, list})) or (
            isinstance(value, int | float) and self._is_number
        ):
            return self._problem_of_number(value)
        return f"has to be {self._allowed_values}"

    def _problem_of_text(self, value: str) -> str | None:
        most = self.about.characters_max
        if self.choices:
            return None if value in self.choices else f"is {self._allowed_values}"
        if most is not None and not (value.isprintable() and 1 <= len(value) <= most):
            what = (self.about.metavar or "a printable text").lower()
            return f"is {what} of 1 to {most} characters"
        return None

    def _problem_of_number(self, value: object) -> str | None:
        if not isinstance(value, int | float):
            return None
        if float not in self.kinds and not isinstance(value, int):
            return f"has to be {self._allowed_values}"
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            return f"has to be at most {sys.float_info.max:g}"
        about = self.about
        if value in about.or_else or (
            about.least <= value <= about.most
            and about.above < value < about.below
            and abs(value) != inf
        ):
            return None
        return f"is {self._allowed_values}" if self.choices else f"has to be {self._allowed_range}"

    @property
    def _allowed_values(self) -> str:
        """What it can be, in words."""
        if bool in self.kinds:
            return "true or false"
        words = [repr(choice) for choice in self.choices]
        if self._is_number:
            words.append("a number" if float in self.kinds else "a whole number")
            if self.choices:
                words[-1] += f" {self._allowed_range}"
        elif str in self.kinds:
            words.append("a text")
        elif Path in self.kinds:
            words.append("a path")
        elif list in self.kinds:
            words.append("a list")
        if self.about.accepts_text:
            words.append(self.about.accepts_text)
        *others, last = words
        return f"{', '.join(others)} or {last}" if others else last

    @property
    def _allowed_range(self) -> str:
        about = self.about
        if about.least > -inf and about.most < inf:
            said = f"{_format_limit(about.least)} to {_format_limit(about.most)}"
        else:
            said = " and ".join(
                f"{word} {_format_limit(limit)}"
                for word, limit in (
                    ("at least", about.least), ("above", about.above),
                    ("at most", about.most), ("below", about.below),
                )
                if abs(limit) < inf
            )  # fmt: skip
            if min(about.most, about.below) == inf:
                said += " and finite" if said else "finite"
            if about.metavar is not None:
                said += f", in {about.metavar}"
        return " or ".join([said, *map(str, about.or_else)])


@cache
def declared_settings(config: Any) -> dict[str, DeclaredSetting]:
    """Return the settings of a dataclass by name: its own ones first, then those it inherits."""
    hints = get_type_hints(config)
    found = {each.name: each for each in fields(config) if Setting in each.metadata}
    own_first = (name for part in config.__mro__[:-1] for name in part.__annotations__)
    return {
        name: _declare(name, hints[name], found[name].default, found[name].metadata[Setting])
        for name in own_first
        if name in found
    }


def check_settings(config: Any) -> None:
    """Refuse values that settings cannot have, of an object of a dataclass.

    Raises
    ------
    UsageError
        Names the first such setting, its value, and which values it can have.
    """
    kind: Any = type(config)
    for each in declared_settings(kind).values():
        each.check(getattr(config, each.name))


def _declare(name: str, annotation: Any, default: Any, about: Setting) -> DeclaredSetting:
    assert default is not MISSING, f"{name} has no default"
    choices: tuple[str, ...] = ()
    kinds = set()
    for part in _union_members(annotation):
        if get_origin(part) is Literal:
            choices += get_args(part)
        else:
            kinds.add(get_origin(part) or part)
    return DeclaredSetting(name, default, about, annotation, choices, frozenset(kinds))


def _union_members(annotation: Any) -> Sequence[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for part in get_args(annotation) for each in _union_members(part)]
    return [annotation]


def _format_limit(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
    )
