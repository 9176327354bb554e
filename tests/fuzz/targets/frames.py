"""Frames: the input is what stands in a packet.

What is accepted packs to the same frames again, and to the same bytes but for padding and for what
a CLOSE shows of its reason.
"""

from collections.abc import Iterable
from typing import Final

from gradwire_protocol.errors import ViolationError
from gradwire_protocol.limits import FRAGMENT_BYTES_MIN, MESSAGE_BYTES_MAX
from gradwire_protocol.wire.frames import (
    Ack,
    Close,
    Data,
    Frame,
    pack_ack,
    pack_challenge,
    pack_close,
    pack_credit,
    pack_ping,
    pack_response,
    parse_frames,
)
from support.acks import ack
from support.frames import pack
from support.pair import data_frame

BYTES_MAX: Final = 1_500


def check(data: bytes) -> None:
    """Read the frames of a packet."""
    try:
        frames = parse_frames(memoryview(data))
    except ViolationError:
        return
    packed = b"".join(map(pack, frames))
    if all(map(_has_text, frames)):
        assert parse_frames(memoryview(packed)) == frames, "other frames"
    if not any(isinstance(frame, Close) for frame in frames):
        assert data.startswith(packed)
        assert not any(data[len(packed) :])
    for frame in frames:
        check_bounds(frame)


def _has_text(frame: Frame) -> bool:
    """Return whether there is no reason but in UTF-8: what stands for other bytes is longer."""
    return not isinstance(frame, Close) or "\N{REPLACEMENT CHARACTER}" not in frame.reason


def check_bounds(frame: Frame) -> None:
    """Compare a frame with what whoever acts on it relies upon."""
    if isinstance(frame, Data):
        assert 0 < len(frame.payload) <= frame.total <= MESSAGE_BYTES_MAX
        offset = frame.index * frame.fragment_bytes
        fragments = -(-frame.total // frame.fragment_bytes)
        assert offset + len(frame.payload) <= frame.total
        assert fragments * FRAGMENT_BYTES_MIN < frame.total + frame.fragment_bytes
    elif isinstance(frame, Ack):
        numbers = [number for first, last in frame.ranges for number in (last, first)]
        assert numbers == sorted(numbers, reverse=True)
        assert numbers[-1] >= 0
        assert all(
            last + 1 < first
            for (first, _), (_, last) in zip(frame.ranges, frame.ranges[1:], strict=False)
        ), "ranges that touch"
    elif isinstance(frame, Close):
        assert frame.reason.isprintable()


def seeds() -> Iterable[bytes]:
    """Return a packet of each frame, and one of many."""
    small = data_frame(b"an update", stream=3, number=9)
    acks = pack_ack(ack((90, 100), (50, 80), (0, 3), delay=0.001, credit=2**24, marked=5))
    yield small
    yield data_frame(b"p" * FRAGMENT_BYTES_MIN, index=2, total=5_000,
                     fragment_bytes=FRAGMENT_BYTES_MIN, shape=3)  # fmt: skip
    yield acks
    yield pack_credit(2**40)
    yield pack_challenge(b"12345678")
    yield pack_response(b"12345678")
    yield pack_close(64, "left")
    yield pack_close(64, "k\u00f6nnte\n\0")
    yield acks + pack_ping() + small + pack_credit(1) + bytes(3)
