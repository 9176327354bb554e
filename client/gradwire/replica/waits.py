"""`Wait`: what the training half of a worker waits for, without blocking.

Whatever may have to wait is a `Procedure`, a generator that yields each `Wait`. A thread sleeps
until the wait is over and resumes the procedure; a simulator lets time pass.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias, TypeVar

from gradwire.worker.membership import Membership

Result = TypeVar("Result")


class Wait(NamedTuple):
    """A wait for a condition that the network half makes true."""

    condition: Callable[[], bool]
    """Whether the wait is over; checked whenever a `Membership` notifies."""
    deadline: float
    """When the wait is over in any case, on the clock of the `Participant`."""
    purpose: Callable[[], str]
    """Returns what it waits for, as a noun: people read it where the wait is long."""


Procedure: TypeAlias = Generator[Wait, None, Result]
"""Waits at each `yield` and then checks its condition itself: it may be resumed early, and is when
the membership is closed."""


def until(
    membership: Membership,
    condition: Callable[[], bool],
    deadline: float,
    clock: Callable[[], float],
    purpose: Callable[[], str],
) -> Procedure[bool]:
    """Wait for a condition, at most until the deadline; return whether it holds.

    A closed membership ends the wait.
    """
    while not condition():
        if membership.closed or clock() >= deadline:
            return condition()
        yield Wait(condition, deadline, purpose)
    return True
