"""`Wait`: what the training half of a worker waits for, without waiting itself.

What may have to wait is a `Procedure`, a generator that yields each `Wait`. A thread sleeps then
until it is over and resumes the procedure; a simulator lets time pass.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias, TypeVar

from gradwire.worker.membership import Membership

Result = TypeVar("Result")


class Wait(NamedTuple):
    """A wait for a condition on what the network half notes."""

    condition: Callable[[], bool]
    """Whether it is over; looked at whenever a `Membership` notifies of something."""
    deadline: float
    """When it is over in any case, on the clock of the `Participant`."""


Procedure: TypeAlias = Generator[Wait, None, Result]
"""Waits at each `yield`, and then looks itself at what has become true: it may be resumed early,
and is when the membership is closed."""


def until(
    membership: Membership,
    condition: Callable[[], bool],
    deadline: float,
    clock: Callable[[], float],
) -> Procedure[bool]:
    """Wait until a condition holds, at most until the deadline; return whether it does.

    A membership that is closed is not waited for.
    """
    while not condition():
        if membership.closed or clock() >= deadline:
            return condition()
        yield Wait(condition, deadline)
    return True
