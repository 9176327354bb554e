"""Every exception that gradwire raises on purpose; `GradwireError` catches all of them.

- `TransportError`: the network or the master did not answer. `UnreachableError` while joining,
  `ConnectionLostError` afterwards, `DeadlineError` when something took longer than it may.
- `RefusedError`: the master refused something; the message has its reason.
- `ProtocolError`: the other side broke the protocol; `VersionMismatchError` when it speaks another
  version of it.
- `UsageError`: the call cannot work; `NonFiniteError` for a NaN or an infinity in what a call is
  given or in the buffers, `OutOfRangeError` for parameters that have outgrown the run's quantum,
  `DivergedError` for a training that diverges. Nothing was changed or sent.

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


class DivergedError(UsageError):
    """Training diverges: a parameter became NaN or infinite, or left the range of the run.

    The message says which parameter, in what step, and at what learning rate, scale and staleness.
    """


class NonFiniteError(UsageError):
    """What was given, or a buffer, has a NaN or an infinity. Nothing was changed or sent."""


class OutOfRangeError(UsageError):
    """A parameter is larger than the run's quantum can express. Nothing was changed or sent."""


class GradwireWarning(UserWarning):
    """A script runs, but probably does not do what its author meant."""


__all__ = [
    "ConnectionLostError",
    "DeadlineError",
    "DivergedError",
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
