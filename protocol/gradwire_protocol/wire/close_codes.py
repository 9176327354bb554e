"""`CloseCode`: why connections end."""

from enum import IntEnum


class CloseCode(IntEnum):
    """The transport's reason for the end of a connection. Applications use codes from 64 on."""

    NONE = 0
    """No reason given."""
    VIOLATION = 1
    """The peer broke a rule of the transport."""
    FLOW_CONTROL = 2
    """The peer declared more message bytes than its credit."""
    IDLE = 3
    """The peer was silent for the idle timeout; never sent, only reported."""
    UNREACHABLE = 4
    """The INIT was not answered; never sent, only reported."""
    VERSION = 5
    """No version in common; never sent, only reported."""
    INVALID_MESSAGE = 6
    """The peer sent an application message that breaks its schema."""
    STALLED = 7
    """A message made no progress, although the peer answers."""
    FULL = 8
    """The peer has reached its limit of connections."""
    LOST = 9
    """The TCP connection below was lost; never sent, only reported."""
    RESET = 10
    """The peer no longer knows this connection; never sent, only reported."""
    DENIED = 11
    """The peer's key is no longer accepted."""
    REPLACED = 12
    """Another peer connected with the same key."""
    FORGERIES = 13
    """The limit of forged packets was reached."""
