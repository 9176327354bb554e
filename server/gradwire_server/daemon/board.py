"""`Board`: where a master's announcement is put up, and what stands there already.

An announcement that another master has put up is never taken down while that master lives. After
its death it stands for a while, for as long as it says itself: so long a new master waits.
"""

from collections.abc import Mapping
from time import monotonic
from typing import Final, Protocol

from gradwire_protocol import GradwireError, UsageError
from gradwire_udp.discovery.announcement import Announcement

MARGIN_SECONDS: Final = 3.0
"""How much longer than it says another announcement is given: an ensemble ends sessions in steps of
some seconds."""


class TakenError(UsageError):
    """Another master is announced at this place, and lives."""


class AwaitedError(GradwireError):
    """Another master is announced at this place, and may be dead: its announcement may end."""


class Board(Protocol):
    """Where a master's announcement is put up. Everything blocks, but no longer than some seconds.

    It has one user at a time, on any thread.
    """

    def post(self, announcement: Announcement, workers: Mapping[str, bytes]) -> None:
        """Put up an announcement and the workers, or what has changed in them.

        Parameters
        ----------
        workers : mapping
            What to say of each, by its name there.

        Raises
        ------
        AwaitedError, TakenError
            If another master is announced.
        UnreachableError
            If the place does not answer.
        UsageError
            If it takes none from us.
        """

    def withdraw(self) -> None:
        """Take down what this master has put up, if anything."""

    def close(self) -> None:
        """Do the same, and let go of what this holds."""


class Standing:
    """How long the announcement of another master has stood."""

    def __init__(self) -> None:
        self._mark: object = None
        self._since = 0.0

    def check(self, other: Announcement, mark: object, place: str) -> None:
        """Raise `AwaitedError` while another announcement may be that of a dead master.

        Parameters
        ----------
        mark : object
            Equal as long as it is the same one.
        """
        now = monotonic()
        if mark != self._mark:
            self._mark, self._since = mark, now
        lasts = other.lasts_seconds + MARGIN_SECONDS
        if now - self._since < lasts:
            raise AwaitedError(
                f"{place} has the announcement of a master at {other.master} on "
                f"{other.host or 'another machine'}: waiting {lasts:g} s at most for it to end, in "
                "case that master is dead"
            )


def taken(other: Announcement, place: str) -> TakenError:
    """Return the error for the announcement of another master that lives."""
    return TakenError(
        f"{place} has the announcement of another master, which lives: {other.master} on "
        f"{other.host or 'another machine'} ({other.age_text()}). Stop that master, or announce "
        "this one at another place"
    )
