"""Writing on a thread: a copy that does not change any more, and what comes of it."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradwire_server.checkpoints.folder import CheckpointFolder
from gradwire_server.checkpoints.writer import Copy, Failed, ThreadWriter, Written
from gradwire_server.state.run import Run
from support.checkpointing import VALUES, checkpoint_of
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


def test_damage_of_the_replica_is_named(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    run = run_of_alpha()
    run.replica.values[1] ^= 1 << 20

    desk.writer.write(Copy.make(run))

    assert isinstance(desk.outcome(), Written)
    assert caplog.messages == [naming("block 0", run.layout.locate(0))]


def test_a_copy_is_of_one_moment() -> None:
    run = run_of_alpha()

    copy = Copy.make(run)
    run.replica.values += 1
    run.relay.versions[0] += 1
    run.finished = True

    assert copy.replica.values.tolist() == VALUES.tolist()
    assert (copy.versions, copy.finished) == (checkpoint_of().versions, False)


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
    copy = Copy.make(run_of_alpha())

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

    desk.writer.write(Copy.make(run_of_alpha()))

    assert desk.outcome() == Failed("can't start new thread")


def test_an_error_of_ours_is_raised_where_it_is_seen(
    desk: Desk, folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise LookupError("nobody has thought of this")

    monkeypatch.setattr(folder, "write", fail)

    desk.writer.write(Copy.make(run_of_alpha()))

    with pytest.raises(LookupError, match="nobody has thought of this"):
        desk.outcome()
