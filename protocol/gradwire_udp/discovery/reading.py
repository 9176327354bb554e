"""`Reader`: reads an announcement, and what it raises where there is none."""

from typing import Final, Protocol

from gradwire_protocol import UnreachableError
from gradwire_udp.discovery.announcement import Announcement

ANSWER_SECONDS: Final = 5.0
"""For one answer of a service: a server of an ensemble that is gone costs as long."""


class NotAnnouncedError(UnreachableError):
    """The place answers, and no master is announced there; one may be about to start."""


class Reader(Protocol):
    """Reads at one place."""

    def read(self, seconds: float) -> Announcement:
        """Return the announcement.

        Raises
        ------
        NotAnnouncedError
            If the place has none.
        UnreachableError
            If the place does not answer in so many seconds.
        UsageError
            If trying again cannot help.
        """

    def close(self) -> None:
        """Let go of what it holds."""
