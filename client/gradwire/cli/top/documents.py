"""`Documents`: what a master says of itself, as its JSON API has it; a `Reader` gets them."""

from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeGuard

Document = dict[str, Any]

RUNS_MAX: Final = 16
"""Runs that are looked at: as many as a master serves unless told otherwise. Others are counted."""


@dataclass(slots=True)
class Documents:
    """The answers of a master, which may have anything in them."""

    overview: Document
    """``/api/v1/overview``."""
    runs: dict[str, Document] = field(default_factory=dict)
    """``/api/v1/runs/NAME`` by name, of the first `RUNS_MAX` or of the one that was asked for."""
    events: dict[str, Document] = field(default_factory=dict)
    """``/api/v1/runs/NAME/events``."""
    series: dict[str, Document] = field(default_factory=dict)
    """``/api/v1/runs/NAME/series``."""


class Reader(Protocol):
    """Asks a master."""

    place: str
    """Where the master is, for people."""
    every_seconds: float
    """How often it is right to ask."""

    async def read(self, run: str | None, *, details: bool = True) -> Documents:
        """Ask for everything about one run, or all; `details` are events and curves.

        Raises
        ------
        TransportError
            If there is no answer in time.
        RefusedError
            If the master does not tell.
        UsageError
            If what answers is no master.
        """
        ...


def as_document(value: Any) -> Document:
    """Return an object of JSON; an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def as_documents(value: Any) -> list[Document]:
    """Return the objects in a list of JSON; none for everything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def run_names(overview: Document) -> list[str]:
    """Return the names of the runs in progress."""
    names = (run.get("name") for run in as_documents(overview.get("runs")))
    return [name for name in names if is_name(name)]


def is_name(value: Any) -> TypeGuard[str]:
    """Return whether a value is a text that can be sent: JSON may have halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
