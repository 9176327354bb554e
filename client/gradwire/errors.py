"""Every exception that gradwire raises on purpose; `GradwireError` catches all of them.

- `TransportError`: the network or the master did not answer. `UnreachableError` while joining,
  `ConnectionLostError` afterwards, `DeadlineError` when something took longer than it may.
- `RefusedError`: the master refused something; the message has its reason.
- `ProtocolError`: the other side broke the protocol; `VersionMismatchError` when it speaks another
  version of it.
- `UsageError`: the call cannot work; `NonFiniteError` for a NaN or an infinity in the parameters or
  the buffers, `OutOfRangeError` for parameters that have outgrown the run's quantum. Nothing was
  changed or sent.

`GradwireWarning` is the category of warnings about a script that runs, but should be changed.
"""

from gradwire_protocol import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    ProtocolError,
    RefusedError,
    TransportError,
    UnreachableError,
    UsageError,
    VersionMismatchError,
)


class NonFiniteError(UsageError):
    """The parameters or the buffers have a NaN or an infinity. Nothing was changed or sent."""


class OutOfRangeError(UsageError):
    """A parameter is larger than the run's quantum can express. Nothing was changed or sent."""


class GradwireWarning(UserWarning):
    """A script runs, but probably does not do what its author meant."""


__all__ = [
    "ConnectionLostError",
    "DeadlineError",
    "GradwireError",
    "GradwireWarning",
    "NonFiniteError",
    "OutOfRangeError",
    "ProtocolError",
    "RefusedError",
    "TransportError",
    "UnreachableError",
    "UsageError",
    "VersionMismatchError",
]
