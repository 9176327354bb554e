"""gradwire: train one model on several machines over the network you have.

Two lines in a training loop:

::

    with gradwire.join(model, master="10.0.2.4:40123") as session:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_function(model(inputs), targets).backward()
            optimizer.step()
            session.step()

`join` returns a `Session`; `load_checkpoint` loads parameters that a master has saved to its disk;
the errors are in `gradwire.errors`. The codec alone, for arrays and without a network, is
`gradwire_codecs`.

Each name is imported when it is first used: the codec loads a compiler, and most commands of the
command line need none.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gradwire.cli.launch.local_master import LocalMaster, local_master
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
    from gradwire.participant.items import Item
    from gradwire.replica.pull import PeerUpdate
    from gradwire.replica.stats import SessionStats
    from gradwire.session.checkpoints import LoadedCheckpoint, load_checkpoint
    from gradwire.session.early_stopping import EarlyStopping
    from gradwire.session.join import join
    from gradwire.session.session import Session
    from gradwire.settings.modes import Averaging, Central, DiLoCo, Mode, Sharing, Synchronous
    from gradwire.settings.settings import Settings

__all__ = [
    "Averaging",
    "Central",
    "ConnectionLostError",
    "DeadlineError",
    "DiLoCo",
    "DivergedError",
    "EarlyStopping",
    "GradwireError",
    "GradwireWarning",
    "Item",
    "LoadedCheckpoint",
    "LocalMaster",
    "Mode",
    "NonFiniteError",
    "OutOfRangeError",
    "PeerUpdate",
    "ProtocolError",
    "RefusedError",
    "Session",
    "SessionStats",
    "Settings",
    "Sharing",
    "Synchronous",
    "TransportError",
    "UnreachableError",
    "UsageError",
    "VersionMismatchError",
    "join",
    "load_checkpoint",
    "local_master",
]

MODULES: Final = {
    "Averaging": "settings.modes",
    "Central": "settings.modes",
    "DiLoCo": "settings.modes",
    "EarlyStopping": "session.early_stopping",
    "LoadedCheckpoint": "session.checkpoints",
    "Item": "participant.items",
    "LocalMaster": "cli.launch.local_master",
    "Mode": "settings.modes",
    "PeerUpdate": "replica.pull",
    "Session": "session.session",
    "SessionStats": "replica.stats",
    "Settings": "settings.settings",
    "Sharing": "settings.modes",
    "Synchronous": "settings.modes",
    "join": "session.join",
    "load_checkpoint": "session.checkpoints",
    "local_master": "cli.launch.local_master",
}
"""Modules of the names; all others are errors."""

# A library logs nothing unless its user has set up logging.
logging.getLogger("gradwire").addHandler(logging.NullHandler())

if not TYPE_CHECKING:  # a type checker would accept any name

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
