"""`Keys`: the keys that people press, read one by one where stdin is a terminal."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

try:
    import termios
    import tty
except ImportError:  # a system without terminals as POSIX has them
    HAS_TERMIOS = False
else:
    HAS_TERMIOS = True

READ_BYTES_MAX: Final = 256


class Key(StrEnum):
    """What a key stands for."""

    QUIT = "quit"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    FIRST = "first"
    LAST = "last"
    NEXT = "next run"
    PREVIOUS = "previous run"


SEQUENCES: Final = {
    b"q": Key.QUIT, b"Q": Key.QUIT, b"\x03": Key.QUIT, b"\x04": Key.QUIT,
    b"k": Key.UP, b"j": Key.DOWN, b" ": Key.PAGE_DOWN, b"g": Key.FIRST, b"G": Key.LAST,
    b"\t": Key.NEXT, b"l": Key.NEXT, b"h": Key.PREVIOUS, b"\x1b[Z": Key.PREVIOUS,
    b"\x1b[A": Key.UP, b"\x1bOA": Key.UP, b"\x1b[B": Key.DOWN, b"\x1bOB": Key.DOWN,
    b"\x1b[C": Key.NEXT, b"\x1bOC": Key.NEXT, b"\x1b[D": Key.PREVIOUS, b"\x1bOD": Key.PREVIOUS,
    b"\x1b[5~": Key.PAGE_UP, b"\x1b[6~": Key.PAGE_DOWN,
    b"\x1b[H": Key.FIRST, b"\x1bOH": Key.FIRST, b"\x1b[1~": Key.FIRST,
    b"\x1b[F": Key.LAST, b"\x1bOF": Key.LAST, b"\x1b[4~": Key.LAST,
}  # fmt: skip
"""What terminals send; those with two forms have one for application mode."""

LONGEST: Final = max(map(len, SEQUENCES))

BEGINNINGS: Final = frozenset(
    sequence[:length] for sequence in SEQUENCES for length in range(1, len(sequence))
)


def keys_in(pressed: bytes) -> tuple[list[Key], bytes]:
    """Return the keys in what a terminal has sent, and the beginning of one whose end is missing.

    What stands for no key is passed over, byte by byte.
    """
    found: list[Key] = []
    while pressed:
        for length in range(min(LONGEST, len(pressed)), 0, -1):
            if (key := SEQUENCES.get(pressed[:length])) is not None:
                found.append(key)
                pressed = pressed[length:]
                break
        else:
            if pressed in BEGINNINGS:
                return found, pressed
            pressed = pressed[1:]
    return found, b""


class Keys:
    """Calls a function for each key that is pressed.

    Parameters
    ----------
    descriptor : int
        Of stdin.
    on_key : callable
    """

    def __init__(self, descriptor: int, on_key: Callable[[Key], None]) -> None:
        self._descriptor = descriptor
        self._on_key = on_key
        self._rest = b""

    @staticmethod
    def can_be_read(descriptor: int) -> bool:
        """Return whether there is a terminal that sends keys."""
        try:
            return HAS_TERMIOS and os.isatty(descriptor)
        except OSError:
            return False

    @contextmanager
    def read(self) -> Iterator[None]:
        """Read keys inside the block, in the running event loop; the terminal is as before then.

        Lines are not waited for, and nothing is echoed. Ctrl-C stays a signal.
        """
        before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, self._on_readable)
        try:
            yield
        finally:
            loop.remove_reader(self._descriptor)
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    def _on_readable(self) -> None:
        try:
            pressed = os.read(self._descriptor, READ_BYTES_MAX)
        except OSError:
            pressed = b""
        if not pressed:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._on_key(Key.QUIT)
            return
        keys, self._rest = keys_in(self._rest + pressed)
        for key in keys:
            self._on_key(key)
