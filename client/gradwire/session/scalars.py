"""What a script may log: numbers, by names."""

from collections.abc import Mapping
from typing import Any

from gradwire.errors import UsageError
from gradwire.features.own_figures import PREFIX
from gradwire_codecs.arrays import describe
from gradwire_protocol.messages.logged.scalars import SERIES_NAME_CHARACTERS_MAX, STEP_MAX


def scalars_of(values: Mapping[str, Any]) -> dict[str, float]:
    """Return values as numbers, or raise `UsageError` with what is none."""
    return {_checked_name(name): _number(name, value) for name, value in values.items()}


def step_of(step: object) -> int | None:
    """Return a step, or raise `UsageError` if it is none."""
    if step is None or (isinstance(step, int) and 0 <= step <= STEP_MAX):
        return step
    raise UsageError(f"step={step!r}; it is a whole number from 0 to {STEP_MAX}")


def _checked_name(name: object) -> str:
    if isinstance(name, str) and name.startswith(PREFIX):
        raise UsageError(
            f"log() of {name[:80]!r}: names that begin with {PREFIX} are those of figures that the "
            "session reports itself; choose another one"
        )
    if isinstance(name, str) and name.isprintable():
        if 0 < len(name) <= SERIES_NAME_CHARACTERS_MAX:
            return name
        raise UsageError(
            f"log() of {name[:80]!r}: a name has 1 to {SERIES_NAME_CHARACTERS_MAX} characters, "
            f"this one {len(name)}"
        )
    raise UsageError(f"log() of {name!r}: a name is a text that can be printed")


def _number(name: str, value: Any) -> float:
    item = getattr(value, "item", None)  # of arrays and tensors, also one that requires a gradient
    try:
        return float(item() if callable(item) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises the last one
        raise UsageError(f"log({name}=...) is {describe(value)}; it has to be one number") from None
