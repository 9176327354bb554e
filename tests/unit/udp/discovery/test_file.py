"""An announcement in a file."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire_protocol import UsageError
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.file import FilePlace
from gradwire_udp.discovery.reading import NotAnnouncedError
from support.wording import naming

HERE = Announcement(master="10.0.2.4:40123", host="node4", lasts_seconds=15.0)


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    return FilePlace(tmp_path / "run.json")


def write(place: FilePlace, *, ago: float = 0.0) -> None:
    place.path.write_bytes(replace(HERE, at=time.time() - ago).pack())


def test_a_file_that_was_just_written_is_taken(place: FilePlace) -> None:
    write(place)

    assert place.open().read(1.0) == HERE


def test_a_file_that_is_not_there_may_come(place: FilePlace) -> None:
    reader = place.open()
    with pytest.raises(NotAnnouncedError, match=naming(place.path)):
        reader.read(1.0)
    write(place)

    assert reader.read(1.0) == HERE


@pytest.mark.parametrize("ago", [60.0, -60.0])
def test_a_stale_file_is_named_until_it_changes(place: FilePlace, ago: float) -> None:
    """Whatever the clocks of both machines say."""
    write(place, ago=ago)
    reader = place.open()
    for _ in range(2):
        with pytest.raises(NotAnnouncedError, match=naming("stale", HERE.master, place.path)):
            reader.read(1.0)
    write(place, ago=ago - 3.0)

    assert reader.read(1.0) == HERE


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "nowhere" / "run.json")

    with pytest.raises(UsageError, match=naming("folder", tmp_path / "nowhere")):
        place.open().read(1.0)


def test_what_is_no_announcement_is_refused(place: FilePlace) -> None:
    place.path.write_text("{}")
    with pytest.raises(UsageError, match=naming(place.path, "'gradwire'")):
        place.open().read(1.0)
    place.path.write_bytes(b" " * 100_000)
    with pytest.raises(UsageError, match=naming(place.path, 65_536)):
        place.open().read(1.0)


def test_a_pipe_or_a_folder_is_refused_at_once(place: FilePlace, tmp_path: Path) -> None:
    os.mkfifo(place.path)
    with pytest.raises(UsageError, match=naming(place.path, "file")):
        place.open().read(1.0)
    with pytest.raises(UsageError, match=naming(tmp_path, "file")):
        FilePlace(tmp_path).open().read(1.0)
