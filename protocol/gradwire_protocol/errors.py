"""Every exception that gradwire raises on purpose.

Catch `GradwireError` for all of them. Its branches answer one question, who has to act: the
network (`TransportError`: try again later), the other side (`ProtocolError`: a mismatch of
versions, or a fault to report; `RefusedError`: it said no, and why) or the caller (`UsageError`:
fix the call).
"""


class GradwireError(Exception):
    """Base of all errors that gradwire raises on purpose."""


class TransportError(GradwireError):
    """The network or the peer did not answer; trying again later may work."""


class UnreachableError(TransportError):
    """Nobody answered at that address, or it has no address at all."""


class ConnectionLostError(TransportError):
    """The connection existed and is over. The session cannot be used any more."""


class DeadlineError(TransportError, TimeoutError):
    """What was waited for did not happen in time. The session can still be used."""


class ProtocolError(GradwireError):
    """The other side did what the protocol forbids."""


class InvalidDatagramError(ProtocolError):
    """A datagram that cannot be parsed. It is counted and dropped, never fatal."""


class InvalidMessageError(ProtocolError):
    """An application message that breaks its schema. The connection is closed."""


class VersionMismatchError(ProtocolError):
    """The two sides have no version of the protocol in common."""


class ViolationError(ProtocolError):
    """An authentic packet that breaks the rules of the transport. The connection is closed.

    Attributes
    ----------
    code : int
        The `CloseCode` to close with.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RefusedError(GradwireError):
    """The other side understood and said no; the message says why and what to do.

    Attributes
    ----------
    code : str
        One of the reasons in `messages.admission.RefusalCode`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class UsageError(GradwireError, ValueError):
    """The caller broke the contract of a function; nothing was changed."""
