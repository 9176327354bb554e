"""Which of several processes compiles, and that none waits for ever for another."""

import fcntl
import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from gradwire_codecs import decode
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.kernels import compiling
from gradwire_codecs.kernels.compiling import LOCK_NAME, compiling_alone
from gradwire_codecs.warm_up import EXAMPLES, TASKS, examples_of, written_examples
from support.waiting import SOON, wait_until

NOTHING = "pass"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of machine code in which nothing was compiled."""
    monkeypatch.setattr(compiling, "cache_folder", lambda: str(tmp_path))
    return tmp_path


@contextmanager
def another_process_compiles(folder: Path) -> Iterator[None]:
    """Hold the lock; it belongs to the open file, so that a process can wait for itself."""
    fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def looks_for_the_lock(monkeypatch: pytest.MonkeyPatch, most: int = 5) -> list[float]:
    """Let no time pass between `most` attempts; return a list of them as they are made."""
    made: list[float] = []
    monkeypatch.setattr(compiling, "ATTEMPTS_MAX", most)
    monkeypatch.setattr("select.select", lambda *wait: made.append(wait[-1]))
    return made


def test_who_has_compiled_says_so_and_is_waited_for_until_then(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = looks_for_the_lock(monkeypatch, most=3)
    with compiling_alone("some", helper=NOTHING):
        with another_process_waits(folder):
            pass
        assert len(looks) == 3

    with (
        compiling_alone("some", helper=NOTHING),
        another_process_compiles(folder),
        compiling_alone("some", helper=NOTHING),
    ):
        pass  # nobody asks for the lock any more
    assert len(looks) == 3


@contextmanager
def another_process_waits(folder: Path) -> Iterator[None]:
    """Come later: the lock is taken, and nothing says yet that all is compiled."""
    with compiling_alone("some", helper=NOTHING):
        yield


def test_nobody_waits_for_ever_for_a_process_that_stands_still(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = looks_for_the_lock(monkeypatch)
    entered = []

    with another_process_compiles(folder), compiling_alone("some", helper=NOTHING):
        entered.append(True)

    assert entered == [True]
    assert len(looks) == 5


def test_a_lock_that_its_process_has_left_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = looks_for_the_lock(monkeypatch)
    with another_process_compiles(folder):
        pass

    with compiling_alone("some", helper=NOTHING):
        pass

    assert looks == []


def test_no_garbage_is_looked_for_while_something_is_compiled(folder: Path) -> None:
    enabled = []
    for _ in range(2):
        with compiling_alone("some", helper=NOTHING):
            enabled.append(gc.isenabled())

    assert enabled == [False, True]
    assert gc.isenabled()


def test_what_one_has_compiled_under_a_name_says_nothing_of_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = looks_for_the_lock(monkeypatch)
    with compiling_alone("some", helper=NOTHING):
        pass

    with another_process_compiles(folder), compiling_alone("other", helper=NOTHING):
        pass

    assert len(looks) == 5


def test_what_was_compiled_in_part_is_left_to_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks_for_the_lock(monkeypatch)
    with pytest.raises(KeyboardInterrupt), compiling_alone("some", helper=NOTHING):
        raise KeyboardInterrupt

    assert [path.name for path in folder.iterdir()] == [LOCK_NAME]


@pytest.mark.parametrize("where", [None, "/proc/no-such-folder"])
def test_without_a_folder_to_write_to_nobody_waits(
    monkeypatch: pytest.MonkeyPatch, where: str | None
) -> None:
    monkeypatch.setattr(compiling, "cache_folder", lambda: where)
    looks = looks_for_the_lock(monkeypatch)

    with compiling_alone("some", helper=NOTHING):
        pass

    assert looks == []


def test_where_there_is_a_second_core_another_process_helps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    sign = folder / "sign"

    with compiling_alone("some", helper=f"open({str(sign)!r}, 'x')"):
        wait_until(sign.exists, "the helper to run")
    sign.unlink()
    with compiling_alone("some", helper=f"open({str(sign)!r}, 'x')"):
        pass  # there is nothing left to compile

    assert not sign.exists()


@pytest.mark.parametrize("cores", [1, None])
def test_without_a_second_core_nobody_helps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(subprocess, "Popen", None)

    with compiling_alone("some", helper="raise SystemExit"):
        pass


def test_a_helper_that_takes_longer_is_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    began = monotonic()

    with compiling_alone("some", helper="import time; time.sleep(600)"):
        pass

    assert monotonic() - began < SOON


@pytest.mark.parametrize("name", TASKS)
def test_no_task_needs_what_another_one_has_made(name: str) -> None:
    """The helper begins with the last one."""
    for task in reversed(TASKS[name]):
        task()


def test_the_examples_that_a_helper_reads_are_updates_as_they_are_written_today() -> None:
    """Else it would compile what nobody needs, and the other process all of it."""
    examples = list(examples_of(EXAMPLES))

    assert examples[-3:] == written_examples()
    assert [decode(body, 4000).stop for body in examples] == [5, 1000, 4000, 4000, 100]
    for body in examples:
        update = decode(body, 4000)
        assert bytes(pack_update(update)) == body
