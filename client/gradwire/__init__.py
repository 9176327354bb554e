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
"""

import logging

from gradwire.applying import PeerUpdate
from gradwire.checkpoints import LoadedCheckpoint, load_checkpoint
from gradwire.errors import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    NonFiniteError,
    OutOfRangeError,
    ProtocolError,
    RefusedError,
    TransportError,
    UnreachableError,
    UsageError,
    VersionMismatchError,
)
from gradwire.joining import join
from gradwire.session import Session
from gradwire.settings import Settings
from gradwire.stats import SessionStats

__all__ = [
    "ConnectionLostError",
    "DeadlineError",
    "GradwireError",
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

# A library says nothing unless its user has set logging up.
logging.getLogger("gradwire").addHandler(logging.NullHandler())
