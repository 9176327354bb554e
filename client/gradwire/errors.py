"""Every exception that gradwire raises on purpose; `GradwireError` catches all of them.

- `TransportError`: the network or the master did not answer. `UnreachableError` while joining,
  `ConnectionLostError` afterwards, `DeadlineError` when something took longer than it may.
- `RefusedError`: the master said no, and why.
- `ProtocolError`: the other side broke the protocol; `VersionMismatchError` when it speaks another
  version of it.
- `UsageError`: the call cannot work; `NonFiniteError` for a NaN or an infinity in what a call is
  given or in the buffers, `OutOfRangeError` for parameters that have outgrown the run's quantum,
  `DivergedError` for a training that diverges. Nothing was changed or sent.

`GradwireWarning` is the category of what a script should do in another way, though it runs.
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
    """A NaN or an infinity stands in what was given, or in the buffers. Nothing was changed."""


class OutOfRangeError(UsageError):
    """A parameter is larger than the run's quantum can express. Nothing was changed or sent."""


class GradwireWarning(UserWarning):
    """A script runs, and does not do what was probably meant."""


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
