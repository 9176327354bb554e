"""`together`: several memberships' procedures as one, so that their waits are one wait."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from gradwire.replica.waits import Procedure, Wait
from gradwire.worker.membership import Membership

Result = TypeVar("Result")


def together(parts: Sequence[tuple[Membership, Procedure[Result]]]) -> Procedure[list[Result]]:
    """Run procedures, each with its membership; return what they return, in the same order.

    All of them begin before the first wait. The error of one ends the others. A wait is over when
    the membership of its procedure is closed, whatever other memberships the thread has.
    """
    results: dict[int, Result] = {}
    waits: dict[int, Wait] = {}
    try:
        pending = list(range(len(parts)))
        while True:
            for number in pending:
                try:
                    waits[number] = next(parts[number][1])
                except StopIteration as end:
                    results[number] = end.value
            pending = [number for number in pending if number not in results]
            if not pending:
                return [results[number] for number in range(len(parts))]
            open_waits = [(parts[number][0], waits[number]) for number in pending]
            yield Wait(
                partial(_may_go_on, open_waits),
                min(wait.deadline for _, wait in open_waits),
                open_waits[0][1].purpose,
            )
    finally:
        for _, procedure in parts:
            procedure.close()


def _may_go_on(waits: Sequence[tuple[Membership, Wait]]) -> bool:
    """Return whether one of the waits is over."""
    return any(membership.closed or wait.condition() for membership, wait in waits)
