"""gradwire: train one model on several machines over the network you have.

Two lines in a training loop:

::

    with gradwire.join(model, master="10.0.2.4:40123") as session:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_function(model(inputs), targets).backward()
            optimizer.step()
            session.step()

`join` makes a `Session`; `load_checkpoint` gives a model what a master has written to its disk; the
errors are in `gradwire.errors`. The codec alone, on arrays and with no network, is
`gradwire_codecs`.

Each name is imported when it is first used: the codec brings a compiler along, and most commands of
the command line need none.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gradwire.checkpoints import LoadedCheckpoint, load_checkpoint
    from gradwire.errors import (
        ConnectionLostError,
        DeadlineError,
        DivergedError,
        GradwireError,
        GradwireWarning,
        NonFiniteError,
        OutOfRangeError,
        ProtocolError,
        RefusedError,
        TransportError,
        UnreachableError,
        UsageError,
        VersionMismatchError,
    )
    from gradwire.replica.pull import PeerUpdate
    from gradwire.replica.stats import SessionStats
    from gradwire.session.join import join
    from gradwire.session.session import Session
    from gradwire.settings.settings import Settings

__all__ = [
    "ConnectionLostError",
    "DeadlineError",
    "DivergedError",
    "GradwireError",
    "GradwireWarning",
    "LoadedCheckpoint",
    "NonFiniteError",
    "OutOfRangeError",
    "PeerUpdate",
    "ProtocolError",
    "RefusedError",
    "Session",
    "SessionStats",
    "Settings",
    "TransportError",
    "UnreachableError",
    "UsageError",
    "VersionMismatchError",
    "join",
    "load_checkpoint",
]

MODULES: Final = {
    "LoadedCheckpoint": "checkpoints",
    "PeerUpdate": "replica.pull",
    "Session": "session.session",
    "SessionStats": "replica.stats",
    "Settings": "settings.settings",
    "join": "session.join",
    "load_checkpoint": "checkpoints",
}
"""Where the names are; the others are errors."""

# A library says nothing unless its user has set logging up.
logging.getLogger("gradwire").addHandler(logging.NullHandler())

if not TYPE_CHECKING:  # which would take any name for one of ours

    def __getattr__(name: str) -> Any:
        """Import a name when it is first used."""
        if name == "errors":
            return import_module("gradwire.errors")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"gradwire.{MODULES.get(name, 'errors')}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({"errors", *__all__, *(name for name in globals() if name.startswith("__"))})
