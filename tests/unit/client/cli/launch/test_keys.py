"""Keys of what one command starts: new ones, for this user alone, and gone in the end."""

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.cli.launch.master import local_keys, operator_token
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_udp.files.keys import read_keys, read_run_keys, write_key

RUN_KEY = RunKey(bytes(SECRET_BYTES))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made; in the end nothing is left there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_every_launch_has_another_run_key_and_its_workers_keys_follow_from_it() -> None:
    with local_keys(3) as (run_key_file, worker_key_files), local_keys(1) as (other, _):
        [run_key] = read_run_keys(run_key_file)

        assert read_run_keys(other) != [run_key]
        assert [read_keys(path) for path in worker_key_files] == [
            run_key.worker_key(f"rank-{rank}") for rank in range(3)
        ]


def test_they_are_for_this_user_alone() -> None:
    with local_keys(2) as (run_key_file, worker_key_files):
        files = [run_key_file, *worker_key_files]

        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o700}


def test_every_launch_has_another_token_for_orders_for_this_user_alone() -> None:
    with operator_token() as (file, token), operator_token() as (_, other):
        assert file.read_text().strip() == token != other
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_they_are_gone_when_the_launch_fails() -> None:
    with pytest.raises(LookupError), local_keys(2) as (run_key_file, _):
        raise LookupError

    assert not run_key_file.parent.exists()


def test_a_run_key_that_is_given_stays_where_it_is(folder: Path) -> None:
    given = folder / "mine.key"
    write_key(given, RUN_KEY.format())

    with local_keys(2, given) as (run_key_file, worker_key_files):
        assert run_key_file == given
        worker_key = read_keys(worker_key_files[1])

    assert worker_key == RUN_KEY.worker_key("rank-1")
    assert read_run_keys(given) == [RUN_KEY]
