"""Messages and their fragments, for tests of what receives them."""

from collections.abc import Iterable
from random import Random
from typing import Final

from gradwire_protocol.delivery.shaped_message import ShapedMessage, fragment_bytes_of
from gradwire_protocol.limits import DATAGRAM_BYTES
from gradwire_protocol.security.protection import Sealing
from gradwire_protocol.wire.frames import Data

FRAGMENT_BYTES: Final = fragment_bytes_of(DATAGRAM_BYTES)


def message_of(
    total: int,
    *,
    fragment_bytes: int = FRAGMENT_BYTES,
    stream: int = 0,
    number: int = 0,
    kind: int = 1,
    seed: int = 0,
) -> ShapedMessage:
    """Return a message of random bytes."""
    payload = Random(seed).randbytes(total)
    return ShapedMessage.of(stream, number, kind, payload, fragment_bytes)


def fragment_of(message: ShapedMessage, index: int) -> Data:
    return Data(
        message.stream,
        message.number,
        message.kind,
        message.total,
        message.fragment_bytes,
        index,
        memoryview(message.payload_of(index).tobytes()),
        message.shape,
    )


def fragments_of(message: ShapedMessage, indexes: Iterable[int] | None = None) -> list[Data]:
    """Return fragments of a message, by default all of them."""
    return [fragment_of(message, i) for i in (range(message.count) if indexes is None else indexes)]


def packets_of(
    message: ShapedMessage, first: int, stop: int, *, session_id: int, number: int, sealing: Sealing
) -> list[bytes]:
    """Return consecutive fragments as the packets that a sender makes of them."""
    run = bytes(sealing.seal_run(message, first, stop, session_id, number))
    return [run[at : at + message.stride] for at in range(0, len(run), message.stride)]
