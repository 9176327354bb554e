"""Settings, each declared once with its default, its limits and its purpose.

::

    @dataclass(frozen=True, kw_only=True)
    class Config:
        workers_max: int = setting(56, "Workers at once.", least=1, most=4092)

        def __post_init__(self) -> None:
            check_settings(self)

Everything else follows from the declaration: the error for a wrong value, the meaning of a text in
the environment, the command-line option, the tables of the documentation.
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
    """The declaration of a setting, besides the type and the default of its field."""

    text: str
    """Its purpose, in whole sentences."""
    least: float = -inf
    above: float = -inf
    """Exclusive lower limit; `least` and `most` are inclusive."""
    most: float = inf
    below: float = inf
    or_else: Sequence[object] = ()
    """Values outside the limits with a meaning of their own, such as 0 for never."""
    characters_max: int | None = None
    """Longest printable text. It is not empty: a text that may be left out defaults to None."""
    accepts: Callable[[object], bool] | None = None
    """Returns whether an object of another type is allowed, too."""
    accepts_text: str = ""
    """Describes such an object, for error messages."""
    is_secret: bool = False
    """Whether messages have to hide its value."""
    unit: int = 1
    """Bytes per unit of the command-line option, such as 2**20 for MiB."""
    metavar: str | None = None
    """Placeholder for the value in the option's help."""
    is_option: bool = True
    """Whether it is a command-line option."""


def setting(default: Any, text: str, **about: Any) -> Any:
    """Declare a field of a dataclass as a setting; `about` holds further fields of `Setting`."""
    declaration = Setting(text, **about)
    return field(default=default, repr=not declaration.is_secret, metadata={Setting: declaration})


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A setting together with the name, types and default of its field."""

    name: str
    default: Any
    about: Setting
    annotation: Any
    choices: tuple[str, ...]
    """Its allowed texts."""
    kinds: frozenset[Any]
    """Its other allowed types."""

    def check(self, value: object) -> None:
        """Refuse a value that is not allowed.

        Raises
        ------
        UsageError
            Names the setting, the value and the allowed values.
        """
        if self.about.is_secret or (value is None and type(None) in self.kinds):
            return
        if self.about.accepts is not None and self.about.accepts(value):
            return
        problem = self._problem(value)
        if problem is not None:
            raise UsageError(f"{self.name}={value!r}; it {problem}")

    def parse(self, text: str, source: str) -> Any:
        """Return the value that a text stands for.

        Parameters
        ----------
        source : str
            Where the text was found, such as the name of a variable.

        Raises
        ------
        UsageError
            If the text is no value of the setting's type. The limits are not checked here.
        """
        if text in self.choices or str in self.kinds:
            return text
        if bool in self.kinds:
            if text.lower() not in SWITCH_TEXTS:
                raise UsageError(f"{source}={text!r} is neither true nor false")
            return SWITCH_TEXTS[text.lower()]
        if self.choices and not self._is_number:
            return text  # `check` refuses it and names the allowed values
        try:
            if tuple in self.kinds:
                return tuple(map(float, text.split(",")))
            return int(text) if float not in self.kinds else float(text)
        except ValueError:
            raise UsageError(f"{source}={text!r} is not a number") from None

    @property
    def option(self) -> str:
        """Its name as an option; bytes counted in MiB are named so."""
        return self.name if self.about.unit == 1 else self.name.replace("bytes", "mib")

    @property
    def _is_number(self) -> bool:
        return bool(self.kinds & {int, float})

    def _problem(self, value: object) -> str | None:
        """Return what is wrong with a value, or None, in words that name the allowed values."""
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
        elif tuple in self.kinds:
            words.append("two numbers")
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
    """Return the settings of a dataclass by name: its own first, then inherited ones."""
    hints = get_type_hints(config)
    found = {each.name: each for each in fields(config) if Setting in each.metadata}
    own_first = (name for part in config.__mro__[:-1] for name in part.__annotations__)
    return {
        name: _declare(name, hints[name], found[name].default, found[name].metadata[Setting])
        for name in own_first
        if name in found
    }


def check_settings(config: Any) -> None:
    """Check every setting of a dataclass instance.

    Raises
    ------
    UsageError
        Names the first wrong setting, its value and the allowed values.
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
