"""`FileBoard`: an announcement in a file, written again and again, so that readers see it live."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

from gradwire_protocol import UnreachableError, UsageError
from gradwire_server.daemon.board import Standing, taken
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.file import (
    BEAT_SECONDS,
    STALE_SECONDS,
    FilePlace,
    read_announcement,
)
from gradwire_udp.files.durable import sync_folder


class FileBoard:
    """Puts an announcement into a file."""

    lasts_seconds = STALE_SECONDS

    def __init__(self, place: FilePlace) -> None:
        self._place = place
        self._posted: Announcement | None = None
        self._beat_at = 0.0
        self._others = Standing()
        self._other_at: float | None = None
        """The time in the file of another master when it was read first."""

    def post(self, announcement: Announcement, workers: Mapping[str, bytes]) -> None:
        """Write the file, if it is time to or something has changed; see `Board.post`.

        The workers are not written.
        """
        now = monotonic()
        if announcement == self._posted and now < self._beat_at:
            return
        self._check_other(announcement)
        content = announcement.written_at(time.time()).pack()
        try:
            self._replace(content)
        except OSError as error:
            raise UnreachableError(f"cannot write {self._place.path}: {error.strerror}") from None
        self._posted, self._beat_at = announcement, now + BEAT_SECONDS
        self._other_at = None

    def withdraw(self) -> None:
        """Remove the file, if it is still ours."""
        posted, self._posted = self._posted, None
        if posted is None:
            return
        with suppress(OSError, UsageError):
            found = read_announcement(self._place.path)
            if found is not None and found.instance == posted.instance:
                self._place.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the file, if it is still ours."""
        self.withdraw()

    def _check_other(self, ours: Announcement) -> None:
        """Raise if the file is that of another master, which may live."""
        place = self._place
        other = read_announcement(place.path)
        if other is None or ours.replaces(other):
            return
        if self._other_at is None:
            self._other_at = other.at
        if other.at != self._other_at:
            self._other_at = None
            raise taken(other, place.text)
        # One that is not written again in so long is stale, and is replaced.
        self._others.check(other, other.at, place.text)

    def _replace(self, content: bytes) -> None:
        """Replace the file at once, so that readers see either text as a whole."""
        path = self._place.path
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with new.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
