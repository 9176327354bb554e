"""The folder for checkpoints: whole files or none, whatever fails and at whichever step."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire_protocol import UsageError
from gradwire_server.checkpoints import folder as checkpoint_folder
from gradwire_server.checkpoints.folder import TEMPORARY_PREFIX, CheckpointFolder
from gradwire_udp.files import durable
from gradwire_udp.files.checkpoints import CheckpointFile, names_in, newest, read
from support.checkpointing import bytes_of, checkpoint_of
from support.wording import naming

OLD = np.zeros(7, np.int32)
NEW = np.ones(7, np.int32)

STEPS_MAX = 100
"""More than there are in writing one checkpoint."""


class Crash(BaseException):
    """The power fails: nothing that would clean up is done any more."""


class FaultyOs:
    """The module `os`, where one of its calls fails, the one with this number.

    Parameters
    ----------
    fails_at : int
    error : exception
        A `Crash` makes all later calls fail, too.
    """

    COUNTED = frozenset({"open", "write", "fsync", "rename", "close", "unlink", "listdir"})

    def __init__(self, fails_at: int, error: BaseException) -> None:
        self._left = fails_at
        self._error = error

    def __getattr__(self, name: str) -> Any:
        function = getattr(os, name)
        if name not in self.COUNTED:
            return function

        def call(*arguments: Any) -> Any:
            self._left -= 1
            fails = self._left == -1 or (self._left < 0 and isinstance(self._error, Crash))
            if not fails:
                return function(*arguments)
            if name == "write":
                os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
            elif name == "close":
                os.close(arguments[0])  # what it stands for is gone either way
            raise self._error

        return call

    @property
    def failed(self) -> bool:
        return self._left < 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def folder(path: Path) -> Iterator[CheckpointFolder]:
    with closing(CheckpointFolder(path, 3)) as opened:
        yield opened


def pieces(values: Any = NEW) -> list[bytes]:
    data = bytes_of(checkpoint_of(values), values)
    return [data[:50], data[50:]]


def take_all(file: CheckpointFile) -> None:
    """Find nothing wrong with a file."""


def leftovers(path: Path) -> list[str]:
    return [name for name in names_of_all(path) if name.startswith(TEMPORARY_PREFIX)]


def names_of_all(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def digest_of_newest(path: Path) -> int:
    return newest(path, take_all).file.checkpoint.digest


# What it does.


def test_files_are_numbered_and_whole_and_of_nobody_else(
    folder: CheckpointFolder, path: Path
) -> None:
    first = folder.write(pieces(OLD), "alpha", is_over=False)
    second = folder.write(pieces(NEW), "alpha", is_over=True)

    assert (first.name, second.name) == (
        "alpha-000001.safetensors",
        "alpha-000002-over.safetensors",
    )
    assert first.size == len(bytes_of()) == (path / first.name).stat().st_size
    assert (first.complaint, leftovers(path)) == ("", [])
    assert read(path / second.name).checkpoint == checkpoint_of(NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / first.name).stat().st_mode) == 0o600


def test_the_last_ones_are_kept_and_of_finished_runs_as_many(
    folder: CheckpointFolder, path: Path
) -> None:
    for i in range(1, 13):
        folder.write(pieces(), "alpha", is_over=i % 6 == 0 or i == 1)

    kept = [name.removeprefix("alpha-0000").removesuffix(".safetensors") for name in names_in(path)]
    assert kept == ["12-over", "11", "10", "09", "06-over", "01-over"]


def test_numbers_go_on_behind_what_has_come_there_meanwhile(
    folder: CheckpointFolder, path: Path
) -> None:
    folder.write(pieces(), "alpha", is_over=False)
    (path / "alpha-000050.safetensors").write_bytes(bytes_of())

    assert folder.write(pieces(), "alpha", is_over=False).name == "alpha-000051.safetensors"


def test_what_a_dead_master_was_writing_is_removed(path: Path) -> None:
    path.mkdir()
    (path / f"{TEMPORARY_PREFIX}alpha-000007.safetensors").write_bytes(b"half a")
    (path / "notes.txt").write_text("of somebody else")

    CheckpointFolder(path, 3).close()

    assert names_of_all(path) == ["notes.txt"]


# What it refuses.


def test_two_masters_do_not_write_to_one_folder(folder: CheckpointFolder, path: Path) -> None:
    with pytest.raises(UsageError, match=naming("--checkpoint", path, "another master")):
        CheckpointFolder(path, 3)
    folder.write(pieces(), "alpha", is_over=False)


def test_a_file_system_without_locks_will_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)

    CheckpointFolder(path, 3).close()


def test_a_folder_that_cannot_be_used_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.mkdir()

    def fail(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", fail)
        with pytest.raises(UsageError, match=naming("--checkpoint", path, "Permission denied")):
            CheckpointFolder(path, 3)
    CheckpointFolder(path, 3).close()


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may be root's

    with pytest.raises(UsageError, match=naming("--checkpoint", path, "written")):
        CheckpointFolder(path, 3)


def test_a_run_that_goes_on_does_so_while_nothing_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    CheckpointFolder(path, 3).close()
    leftover = path / f"{TEMPORARY_PREFIX}alpha-000001.safetensors"
    leftover.touch()

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        patch.setattr(os, "unlink", read_only)
        with closing(CheckpointFolder(path, 3, resuming=True)) as folder:
            said = caplog.messages
            patch.undo()
            written = folder.write([b"x"], "alpha", is_over=False)

    assert said == [naming("--checkpoint", path, "written", "goes on")]
    assert (path / written.name).exists()
    CheckpointFolder(path, 3).close()
    assert not leftover.exists()


# What fails.


def test_whatever_fails_the_older_one_stays_and_no_half_file_has_a_name(tmp_path: Path) -> None:
    reached_the_end = False
    for step in range(STEPS_MAX):
        path = tmp_path / str(step)
        with closing(CheckpointFolder(path, 3)) as folder, pytest.MonkeyPatch.context() as patch:
            folder.write(pieces(OLD), "alpha", is_over=False)
            faulty = FaultyOs(step, OSError(errno.ENOSPC, "No space left on device"))
            for module in (checkpoint_folder, durable):
                patch.setattr(module, "os", faulty)
            with suppress(OSError):
                folder.write(pieces(NEW), "alpha", is_over=False)
            reached_the_end = not faulty.failed
            patch.undo()
            digests = [read(path / name).checkpoint.digest for name in names_in(path)]
            assert checkpoint_of(OLD).digest in digests, step
            assert leftovers(path) == [], step
            folder.write(pieces(NEW), "alpha", is_over=False)
            assert digest_of_newest(path) == checkpoint_of(NEW).digest
        if reached_the_end:
            break

    assert reached_the_end
    assert step > 8, "each step has failed once"


def test_whenever_the_power_fails_the_newest_one_is_whole(tmp_path: Path) -> None:
    found = []
    for step in range(STEPS_MAX):
        path = tmp_path / str(step)
        folder = CheckpointFolder(path, 1)
        folder.write(pieces(OLD), "alpha", is_over=False)
        with pytest.MonkeyPatch.context() as patch:
            faulty = FaultyOs(step, Crash())
            for module in (checkpoint_folder, durable):
                patch.setattr(module, "os", faulty)
            with suppress(Crash):
                folder.write(pieces(NEW), "alpha", is_over=False)
        folder.close()
        found.append(digest_of_newest(path))
        with closing(CheckpointFolder(path, 1)) as again:
            assert leftovers(path) == [], step
            assert digest_of_newest(path) == found[-1]
            assert again.write(pieces(NEW), "alpha", is_over=False).complaint == ""
        assert len(names_in(path)) == 1
        if not faulty.failed:
            break

    assert not faulty.failed
    assert found == sorted(found, key=[checkpoint_of(OLD).digest, checkpoint_of(NEW).digest].index)
    assert len(set(found)) == 2


def test_a_folder_that_has_vanished_is_an_error_and_may_come_back(
    folder: CheckpointFolder, path: Path
) -> None:
    folder.write(pieces(OLD), "alpha", is_over=False)
    gone = path.rename(path.with_name("gone"))

    with pytest.raises(FileNotFoundError):
        folder.write(pieces(NEW), "alpha", is_over=False)
    assert not path.exists(), "it is not made anew: something may have been mounted there"
    gone.rename(path)

    assert folder.write(pieces(NEW), "alpha", is_over=False).name == "alpha-000002.safetensors"
