"""Checkpoint files: how the newest one is found, and what is said of those that are no use."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_protocol.messages.checkpoint import format as checkpoint_format
from gradwire_protocol.messages.checkpoint.format import CheckpointError
from gradwire_udp.files import checkpoints as checkpoint_files
from gradwire_udp.files.checkpoints import (
    CheckpointFile,
    in_names,
    is_of_run_that_is_over,
    name_of,
    names_in,
    newest,
    number_in,
    read,
    run_in,
)
from support.checkpointing import VALUES, bytes_of, checkpoint_of, written_to
from support.wording import naming

FILE_NAME_BYTES_MAX = 255


def take_all(file: CheckpointFile) -> None:
    """Find nothing wrong with a file."""


def refusal(path: Path, *, elements_max: int = 100) -> str:
    with pytest.raises(UsageError) as refused:
        read(path, elements_max=elements_max)
    return str(refused.value)


@given(run=st.text(min_size=1, max_size=256), number=st.integers(0, 10**15), is_over=st.booleans())
@example(run="..", number=1, is_over=False)
@example(run="a/b-000007-over", number=7, is_over=True)
def test_a_name_tells_its_run_its_number_and_whether_the_run_was_over(
    run: str, number: int, is_over: bool
) -> None:
    name = name_of(run, number, is_over=is_over)

    assert number_in(name) == number
    assert run_in(name) == in_names(run)
    assert is_of_run_that_is_over(name) is is_over
    assert len(name.encode()) <= FILE_NAME_BYTES_MAX
    assert "/" not in name
    assert not name.startswith(".")


@given(one=st.text(min_size=1, max_size=256), other=st.text(min_size=1, max_size=256))
@example(one="a" * 256, other="a" * 255)
def test_two_runs_have_names_of_their_own(one: str, other: str) -> None:
    assert (in_names(one) == in_names(other)) == (one == other)


def test_names_sort_as_their_numbers_do() -> None:
    assert name_of("alpha", 42, is_over=False) == "alpha-000042.safetensors"
    assert name_of("alpha", 43, is_over=True) == "alpha-000043-over.safetensors"


def test_other_files_are_none_of_our_business(tmp_path: Path) -> None:
    for name in (
        "alpha-1.safetensors",
        ".writing-alpha-000001.safetensors",
        "alpha-000001.safetensors~",
        "x",
    ):
        (tmp_path / name).touch()
    for number in (999_999, 1_000_000, 7):
        written_to(tmp_path, number)

    assert names_in(tmp_path) == [
        "alpha-1000000.safetensors",
        "alpha-999999.safetensors",
        "alpha-000007.safetensors",
    ]


def test_a_file_is_read_and_its_replica_is_memory_of_its_own(tmp_path: Path) -> None:
    path = written_to(tmp_path)

    file = read(path)

    assert file.path == path
    assert file.checkpoint == checkpoint_of()
    assert bytes(file.values) == VALUES.astype("<i4").tobytes()
    file.values[0] = 1
    assert bytes(read(path).values) == VALUES.astype("<i4").tobytes()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, pipe, damaged = tmp_path / "missing", tmp_path / "pipe", tmp_path / "damaged"
    os.mkfifo(pipe)
    damaged.write_bytes(bytes_of()[:-1])

    assert refusal(missing) == naming(missing, "No such file")
    assert refusal(pipe) == naming(pipe, "regular file")
    assert refusal(tmp_path) == naming(tmp_path, "regular file")
    assert refusal(damaged) == naming(damaged, len(bytes_of()) - 1, len(bytes_of()))


def test_a_file_that_is_far_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written_to(tmp_path)
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES_MAX", 200)
    size = path.stat().st_size

    assert refusal(path) == naming(path, size, 200)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written_to(tmp_path)
    size = path.stat().st_size

    def shorten(*arguments: object) -> tuple[checkpoint_format.Checkpoint, int]:
        os.truncate(path, 99)
        return checkpoint_format.parse_head(bytes_of(), size)

    monkeypatch.setattr(checkpoint_files, "parse_head", shorten)

    assert refusal(path) == naming(path, 99, size)


def test_memory_is_taken_for_no_more_parameters_than_there_may_be(tmp_path: Path) -> None:
    path = written_to(tmp_path)

    assert refusal(path, elements_max=6) == naming(path, 7, 6)


def test_where_memory_is_missing_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written_to(tmp_path)

    def too_much(*arguments: object) -> bytearray:
        raise MemoryError

    monkeypatch.setattr(checkpoint_files, "_pread", too_much)

    assert refusal(path) == naming(path, "memory")


# The newest one.


def test_damaged_ones_are_passed_over_and_named(tmp_path: Path) -> None:
    good = written_to(tmp_path, 1)
    short = written_to(tmp_path, 2, b"short")
    flipped = written_to(tmp_path, 3, bytes_of()[:-1] + b"?")

    found = newest(tmp_path, take_all)

    assert found.file.path == good
    assert [reason.split(":")[0] for reason in found.passed_over] == [str(flipped), str(short)]


def test_what_a_caller_finds_wrong_is_passed_over_too(tmp_path: Path) -> None:
    good, bad = written_to(tmp_path, 1), written_to(tmp_path, 2)

    def verify(file: CheckpointFile) -> None:
        if file.path == bad:
            raise CheckpointError(f"{bad}: it has two heads")

    found = newest(tmp_path, verify)

    assert (found.file.path, found.passed_over) == (good, (f"{bad}: it has two heads",))


def test_an_older_one_is_not_taken_for_want_of_memory(tmp_path: Path) -> None:
    one = checkpoint_of(VALUES)
    written_to(tmp_path, 1, bytes_of(one))
    written_to(tmp_path, 2)

    with pytest.raises(UsageError, match=naming(7, 3)) as refused:
        newest(tmp_path, take_all, elements_max=3)
    assert not isinstance(refused.value, CheckpointError)


def test_where_there_is_none_the_error_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(CheckpointError, match=naming(missing, "No such file")):
        newest(missing, take_all)
    with pytest.raises(CheckpointError, match=naming("no checkpoint", tmp_path)):
        newest(tmp_path, take_all)
    for number in range(1, 6):
        written_to(tmp_path, number, b"damaged")
    with pytest.raises(CheckpointError, match=naming("no checkpoint", tmp_path, 5)):
        newest(tmp_path, take_all)
