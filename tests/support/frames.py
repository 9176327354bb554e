"""Frames of any kind as the bytes of a packet."""

from collections.abc import Callable
from typing import Any, Final

from gradwire_protocol.wire.frames import (
    Ack,
    Challenge,
    Close,
    Credit,
    Data,
    Frame,
    Ping,
    Response,
    pack_ack,
    pack_challenge,
    pack_close,
    pack_credit,
    pack_data,
    pack_ping,
    pack_response,
)

_PACK: Final[dict[type[Frame], Callable[[Any], bytes]]] = {
    Ack: pack_ack,
    Data: pack_data,
    Ping: lambda _: pack_ping(),
    Credit: lambda frame: pack_credit(frame.credit),
    Challenge: lambda frame: pack_challenge(frame.data),
    Response: lambda frame: pack_response(frame.data),
    Close: lambda frame: pack_close(frame.code, frame.reason),
}


def pack(frame: Frame) -> bytes:
    return _PACK[type(frame)](frame)
