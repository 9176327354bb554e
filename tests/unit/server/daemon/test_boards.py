"""Announcements in a file, and how long one that stands there is respected."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire_protocol import UnreachableError
from gradwire_server.daemon import board, file_board
from gradwire_server.daemon.board import AwaitedError, TakenError
from gradwire_server.daemon.file_board import FileBoard
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.file import BEAT_SECONDS, FilePlace, read_announcement
from support.wording import naming

OURS = Announcement(master="a:1", host="one", instance="1", lasts_seconds=15.0)
THEIRS = Announcement(master="b:2", host="two", instance="2", lasts_seconds=15.0)


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (board, file_board):
        monkeypatch.setattr(module, "monotonic", found)
    return found


@pytest.fixture
def place(tmp_path: Path) -> FilePlace:
    return FilePlace(tmp_path / "run.json")


@pytest.fixture
def ours(place: FilePlace) -> Iterator[FileBoard]:
    found = FileBoard(place)
    yield found
    found.close()


def written(place: FilePlace) -> Announcement | None:
    return read_announcement(place.path)


def test_it_is_written_again_with_the_time_and_as_soon_as_it_changes(
    place: FilePlace, ours: FileBoard, clock: Clock
) -> None:
    ours.post(OURS, {})
    first = written(place)
    assert first == OURS
    ours.post(OURS, {})
    again = written(place)
    assert again is not None
    assert first is not None
    assert again.at == first.at, "it is not time to"

    clock.now += BEAT_SECONDS
    ours.post(OURS, {})
    beat = written(place)
    assert beat is not None
    assert beat.at > first.at
    ours.post(replace(OURS, term=2), {})

    assert written(place) == replace(OURS, term=2)
    assert [each.name for each in place.path.parent.iterdir()] == [place.path.name]


def test_it_is_removed_at_the_end_and_only_if_it_is_ours(place: FilePlace, ours: FileBoard) -> None:
    ours.post(OURS, {})
    ours.withdraw()
    assert written(place) is None
    ours.post(OURS, {})
    place.path.write_bytes(THEIRS.pack())

    ours.close()

    assert written(place) == THEIRS


def test_the_file_of_a_master_that_lives_is_not_taken(
    place: FilePlace, ours: FileBoard, clock: Clock
) -> None:
    place.path.write_bytes(THEIRS.written_at(50.0).pack())
    with pytest.raises(AwaitedError, match=naming(THEIRS.master, THEIRS.host, "18 s")):
        ours.post(OURS, {})
    clock.now += 3.0
    place.path.write_bytes(THEIRS.written_at(53.0).pack())

    with pytest.raises(TakenError, match=naming(place.text, THEIRS.master, THEIRS.host)):
        ours.post(OURS, {})

    assert written(place) == THEIRS


def test_the_file_of_a_dead_master_is_taken_when_it_has_stood_long_enough(
    place: FilePlace, ours: FileBoard, clock: Clock
) -> None:
    place.path.write_bytes(THEIRS.written_at(50.0).pack())
    with pytest.raises(AwaitedError):
        ours.post(OURS, {})
    clock.now += THEIRS.lasts_seconds + board.MARGIN_SECONDS - 0.1
    with pytest.raises(AwaitedError):
        ours.post(OURS, {})
    clock.now += 0.2

    ours.post(OURS, {})

    assert written(place) == OURS


def test_the_file_of_the_same_master_before_its_restart_is_taken_at_once(
    place: FilePlace, ours: FileBoard
) -> None:
    place.path.write_bytes(replace(OURS, instance="before").pack())

    ours.post(OURS, {})

    assert written(place) == OURS


def test_two_masters_that_write_at_once_end_with_one(place: FilePlace, clock: Clock) -> None:
    ours, theirs = FileBoard(place), FileBoard(place)
    ours.post(OURS, {})
    place.path.write_bytes(THEIRS.written_at(1.0).pack())  # it saw no file either
    clock.now += BEAT_SECONDS

    with pytest.raises(AwaitedError):
        ours.post(OURS, {})
    theirs.post(THEIRS, {})
    clock.now += 1.0
    with pytest.raises(TakenError):
        ours.post(OURS, {})

    ours.close()
    assert written(place) == THEIRS
    theirs.close()
    assert written(place) is None


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    long = FilePlace(tmp_path / ("x" * 250))

    with pytest.raises(UnreachableError, match=naming(long.path, "too long")):
        FileBoard(long).post(OURS, {})

    assert list(tmp_path.iterdir()) == []
