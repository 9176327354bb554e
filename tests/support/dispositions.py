"""A plugin of pytest: signals do to what tests start what they do by default.

``nohup`` has a program ignore SIGHUP, and a script's ``&`` has it ignore SIGINT and SIGQUIT. Every
child inherits that, and would sleep through the signal that a test sends. What is ignored remains
so across exec, what is caught becomes the default again. So a process that runs tests catches what
it was told to ignore and does nothing about it: it stays as deaf, its children do not.

The process that only starts xdist's workers leaves everything as it is; they have to be deaf, too.
"""

import signal
from types import FrameType
from typing import Final

import pytest

IGNORED: Final = {
    number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN
} - {signal.SIGPIPE, signal.SIGXFSZ}
"""From outside. SIGPIPE and SIGXFSZ Python itself ignores, and `subprocess` takes that back."""


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Catch them, before every test: one that has run an event loop may have made them default."""
    for number in IGNORED:
        signal.signal(number, _do_nothing)
