"""gradwire's protocol without any I/O: datagrams and the time in, datagrams and events out.

The way of a message through the modules: `outgoing` cuts it into fragments and `sender` puts them
into packets. `recovery` and `congestion` decide when packets leave and whether they arrived.
`received_packets` records what came in, and `incoming` reassembles the message. `handshake` and
`responder` establish the identity of both sides; `protection` seals and opens packets. `connection`
joins these into one peer, `endpoint` joins many peers on one socket. `packets` and `frames` hold
the wire format, `messages` the messages between master and workers.
"""

from gradwire_protocol.connection.config import ConnectionConfig
from gradwire_protocol.connection.connection import Connection
from gradwire_protocol.connection.endpoint import Endpoint
from gradwire_protocol.connection.states import State
from gradwire_protocol.connection.train import Train
from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.crypto.keys import (
    Identity,
    IssuingKey,
    KeyFormatError,
    Keyring,
    Role,
    RunKey,
    WorkerKey,
)
from gradwire_protocol.crypto.suites import Credentials, Suite
from gradwire_protocol.delivery.events import (
    Address,
    AddressChanged,
    Connected,
    Disconnected,
    Event,
    MessageDelivered,
    MessageReceived,
)
from gradwire_protocol.delivery.ordering import InOrder
from gradwire_protocol.delivery.outgoing import Priority
from gradwire_protocol.delivery.shaped_message import ShapedMessage
from gradwire_protocol.errors import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    InvalidDatagramError,
    InvalidMessageError,
    ProtocolError,
    RefusedError,
    TransportError,
    UnreachableError,
    UsageError,
    VersionMismatchError,
    ViolationError,
)
from gradwire_protocol.wire.frames import CloseCode

__all__ = [
    "Address",
    "AddressChanged",
    "CloseCode",
    "Connected",
    "Connection",
    "ConnectionConfig",
    "ConnectionLostError",
    "Counters",
    "Credentials",
    "DeadlineError",
    "Disconnected",
    "Drop",
    "Endpoint",
    "Event",
    "GradwireError",
    "Identity",
    "InOrder",
    "InvalidDatagramError",
    "InvalidMessageError",
    "IssuingKey",
    "KeyFormatError",
    "Keyring",
    "MessageDelivered",
    "MessageReceived",
    "Priority",
    "ProtocolError",
    "RefusedError",
    "Role",
    "RunKey",
    "ShapedMessage",
    "State",
    "Suite",
    "Train",
    "TransportError",
    "UnreachableError",
    "UsageError",
    "VersionMismatchError",
    "ViolationError",
    "WorkerKey",
]
