"""gradwire's protocol, without any I/O: datagrams and the time in, datagrams and events out.

The way of a message through the modules: `outgoing` cuts it into fragments, `sender` puts them into
packets, `recovery` and `congestion` decide when they leave and whether they arrived; `received`
notes what came, `incoming` puts it together. `handshake` and `responder` let two sides find out
whom they talk to, `protection` seals and opens packets. `connection` ties these into one peer,
`endpoint` many peers into one socket. `packets` and `frames` hold the wire format, `messages` what
master and workers say to each other with it.
"""

from gradwire_protocol.connection.config import ConnectionConfig
from gradwire_protocol.connection.connection import Connection
from gradwire_protocol.connection.endpoint import Endpoint
from gradwire_protocol.connection.session_ids import SessionIds
from gradwire_protocol.connection.states import State
from gradwire_protocol.connection.train import Train
from gradwire_protocol.counters import Counters, Drop
from gradwire_protocol.crypto.credentials import Credentials
from gradwire_protocol.crypto.keys import Identity, KeyFormatError, Keyring, Role, RunKey, WorkerKey
from gradwire_protocol.crypto.suites import Suite
from gradwire_protocol.delivery.events import (
    Address,
    AddressChanged,
    Connected,
    Disconnected,
    Event,
    MessageDelivered,
    MessageReceived,
)
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
from gradwire_protocol.messages.ordering import InOrder
from gradwire_protocol.wire.close_codes import CloseCode

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
    "KeyFormatError",
    "Keyring",
    "MessageDelivered",
    "MessageReceived",
    "Priority",
    "ProtocolError",
    "RefusedError",
    "Role",
    "RunKey",
    "SessionIds",
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
