"""Every exception that gradwire raises on purpose.

Catch `GradwireError` for all of them. Its branches say which side has to act. `TransportError`: the
network; try again later. `ProtocolError`: the other side; the versions differ, or there is a fault
to report. `RefusedError`: the other side said no, and why. `UsageError`: the caller; fix the call.
"""


class GradwireError(Exception):
    """Base of all errors that gradwire raises on purpose."""


class TransportError(GradwireError):
    """The network or the peer did not answer; trying again later may work."""


class UnreachableError(TransportError):
    """No answer came from that address, or it cannot be resolved."""


class ConnectionLostError(TransportError):
    """The connection existed and is over. The session is unusable from then on."""


class DeadlineError(TransportError, TimeoutError):
    """The awaited condition did not occur in time. The session can still be used."""


class ProtocolError(GradwireError):
    """The other side broke the protocol."""


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
        The `CloseCode` to close with: 1, VIOLATION, unless it is a more specific one.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type["ViolationError"], tuple[str, int]]:
        return type(self), (str(self), self.code)


class RefusedError(GradwireError):
    """The other side refused; the message says why and what to do.

    Attributes
    ----------
    code : str
        One of the reasons in `messages.admission.RefusalCode`.
    master : str or None
        Addresses of masters to try instead, separated by commas.
    """

    def __init__(self, code: str, message: str, master: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.master = master

    def __reduce__(self) -> tuple[type["RefusedError"], tuple[str, str, str | None]]:
        return type(self), (self.code, str(self), self.master)


class UsageError(GradwireError, ValueError):
    """The caller broke the contract of a function; nothing was changed."""
