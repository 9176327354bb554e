"""`CloseCode`: why connections end."""

from enum import IntEnum


class CloseCode(IntEnum):
    """Why a connection ended, as far as the transport knows. Applications use 64 and above."""

    NONE = 0
    """Nothing more to say."""
    VIOLATION = 1
    """The peer broke a rule of the transport."""
    FLOW_CONTROL = 2
    """The peer sent more than it had credit for."""
    IDLE = 3
    """Nothing was heard for the idle timeout; never sent, only reported."""
    UNREACHABLE = 4
    """Nobody answered the INIT; never sent, only reported."""
    VERSION = 5
    """No version in common; never sent, only reported."""
    INVALID_MESSAGE = 6
    """The peer sent an application message that breaks its schema."""
    STALLED = 7
    """Nothing more of a message arrived, although the peer is there."""
    FULL = 8
    """The peer has as many connections as it wants."""
    LOST = 9
    """What carried the packets, a TCP connection, is gone; never sent, only reported."""
    RESET = 10
    """The peer does not know this connection any more; never sent, only reported."""
    DENIED = 11
    """The key that the peer came in with is not accepted any more."""
    REPLACED = 12
    """Somebody else came in with the same key."""
    FORGERIES = 13
    """So many packets were forged that no further one would be believed."""
