"""Writing on a thread: a copy that does not change any more, and what comes of it."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.checkpoints.writer import Failed, ThreadWriter, Written
from gradwire_server.state.run import Run
from gradwire_udp.files.checkpoints import read
from support.checkpointing import VALUES, checkpoint_of, copy_of
from support.wording import naming

DEADLINE_SECONDS = 10.0


class Desk:
    """A writer, and an event for what it has to tell."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self.ready = threading.Event()
        self.writer = ThreadWriter(folder, self.ready.set)

    def outcome(self) -> Written | Failed | None:
        assert self.ready.wait(DEADLINE_SECONDS)
        self.ready.clear()
        return self.writer.take_outcome()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CheckpointFolder]:
    with closing(CheckpointFolder(tmp_path, 3)) as opened:
        yield opened


@pytest.fixture
def desk(folder: CheckpointFolder) -> Desk:
    return Desk(folder)


def run_of_alpha() -> Run:
    return Run.resume(checkpoint_of(), memoryview(bytearray(VALUES.astype("<i4").tobytes())))


def test_a_copy_is_of_one_moment() -> None:
    run = run_of_alpha()

    copy = copy_of(run)
    run.replica.values += 1
    run.relay.versions[0] += 1
    run.finished = True

    assert copy.replica.values.tolist() == VALUES.tolist()
    assert (copy.versions, copy.finished) == (checkpoint_of().versions, False)


def test_what_is_written_is_the_run(desk: Desk, tmp_path: Path) -> None:
    desk.writer.write(copy_of(run_of_alpha()))
    written = desk.outcome()

    assert isinstance(written, Written)
    file = read(tmp_path / written.name)
    assert file.checkpoint == checkpoint_of()
    assert np.frombuffer(file.values, "<i4").tolist() == VALUES.tolist()
    assert written.size == (tmp_path / written.name).stat().st_size
    assert written.seconds >= 0
    assert written.unix_time > 1.7e9
    assert written.complaint == ""
    assert desk.writer.take_outcome() is None, "it is said once"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError("it smokes"), "it smokes"),
        (MemoryError(), "memory"),
    ],
)
def test_what_the_disk_says_is_an_outcome_and_the_next_one_may_succeed(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    copy = copy_of(run_of_alpha())

    def fail(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        desk.writer.write(copy)
        failed = desk.outcome()
    desk.writer.write(copy)

    assert failed == Failed(naming(reason))
    assert isinstance(desk.outcome(), Written)


def test_where_no_thread_can_be_started_nothing_is_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)

    desk.writer.write(copy_of(run_of_alpha()))

    assert desk.outcome() == Failed("can't start new thread")


def test_an_error_of_ours_is_raised_where_it_is_seen(
    desk: Desk, folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise LookupError("nobody has thought of this")

    monkeypatch.setattr(folder, "write", fail)

    desk.writer.write(copy_of(run_of_alpha()))

    with pytest.raises(LookupError, match="nobody has thought of this"):
        desk.outcome()


def test_nobody_has_to_be_there_any_more_to_hear_of_it(folder: CheckpointFolder) -> None:
    done = threading.Event()

    def closed() -> None:
        done.set()
        raise RuntimeError("Event loop is closed")

    writer = ThreadWriter(folder, closed)
    writer.write(copy_of(run_of_alpha()))

    assert done.wait(DEADLINE_SECONDS)
    assert isinstance(writer.take_outcome(), Written)
