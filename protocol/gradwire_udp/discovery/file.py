"""`FilePlace`: an announcement in a file that all machines share.

Its master writes it again every `BEAT_SECONDS`, with the time. A file that is not written again is
stale: its master has died. Clocks may differ, and a network file system may show an old file for a
while. So a reader takes a file that seems stale as soon as it sees it change.
"""

import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote

from gradwire_protocol import UsageError
from gradwire_udp.discovery.announcement import (
    ANNOUNCEMENT_BYTES_MAX,
    Announcement,
    AnnouncementError,
)
from gradwire_udp.discovery.reading import NotAnnouncedError, Reader

BEAT_SECONDS: Final = 3.0
"""Between two writes: a few hundred bytes, by one process."""

STALE_SECONDS: Final = 15.0
"""Five writes that did not come. A shared file system stops for seconds when a server restarts."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file, by its absolute path."""

    path: Path

    @classmethod
    def parse(cls, rest: str) -> Self:
        """Return the place behind ``file://``."""
        text = f"file://{rest}"
        host, _, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise UsageError(
                f"{text!r}: write file:///{rest}, with three slashes and the whole path"
            )
        path = "/" + unquote(path)
        if not path.isprintable() or path.endswith("/"):
            raise UsageError(f"{text!r} has to name a file, as file:///shared/run.json does")
        return cls(Path(path))

    @property
    def text(self) -> str:
        """How users write it."""
        return f"file://{self.path}"

    @property
    def question(self) -> str:
        """What to look at where nothing is found there."""
        return f"is `gradwire master --announce {self.text}` running, and is that folder shared?"

    def open(self) -> Reader:
        """Return what reads there."""
        return FileReader(self.path)


class FileReader:
    """Reads the file again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._first: float | None = None
        """The time in the file when it was read first."""

    def read(self, seconds: float) -> Announcement:
        """Return the announcement; see `Reader.read`."""
        found = read_announcement(self._path)
        if found is None:
            raise NotAnnouncedError(f"there is no file {self._path}")
        if self._first is None:
            self._first = found.at
        age = time.time() - found.at
        if found.at == self._first and abs(age) > max(found.lasts_seconds, STALE_SECONDS):
            raise NotAnnouncedError(
                f"{self._path} is stale: the master at {found.master} wrote it {age:.0f} s ago, "
                f"and no more since; it would every {BEAT_SECONDS:g} s"
            )
        return found

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""


def read_announcement(path: Path) -> Announcement | None:
    """Return the announcement in a file; None where there is no file.

    Raises
    ------
    UsageError
        If it cannot be read, or holds something else.
    """
    try:
        # Opening a pipe would wait until a process writes to it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError(f"there is no folder {path.parent}, for {path.name}") from None
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UsageError(f"{path} is not a file")
        content = os.read(descriptor, ANNOUNCEMENT_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    try:
        return Announcement.parse(content)
    except AnnouncementError as error:
        raise AnnouncementError(f"{path} holds no announcement of a master: {error}") from None
