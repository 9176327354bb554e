"""Acknowledgements as tests write them: of what matters to them, and nothing besides."""

from gradwire_protocol.wire.frames import Ack


def ack(*ranges: tuple[int, int], delay: float = 0.0, credit: int = 0, marked: int = 0) -> Ack:
    """Return an acknowledgement of these runs, newest first."""
    return Ack([*ranges], delay, credit, marked)
