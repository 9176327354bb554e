"""Where a master's keys and denied names come from, and what is wrong with some of them."""

import logging
import os
from pathlib import Path

import pytest

from gradwire_protocol import UsageError
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_server.daemon.key_source import (
    DENY_FILE_BYTES_MAX,
    KeySource,
    denied_names,
)
from gradwire_udp.files.keys import write_key
from support.wording import naming

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))
OTHER_KEY = RunKey(bytes(SECRET_BYTES))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.key"
    write_key(path, f"{RUN_KEY.format()}\n{OTHER_KEY.format()}\n")
    return path


def test_a_keyring_has_the_keys_of_the_file_and_the_names_of_all_places(
    key_file: Path, tmp_path: Path
) -> None:
    deny_file = tmp_path / "denied"
    deny_file.write_text("# left\ngpu1\n\n  gpu2  # for a while\n")

    keyring = KeySource(key_file=key_file, denied=("gpu3",), deny_file=deny_file).read()

    assert keyring is not None
    assert keyring.run_keys == (RUN_KEY, OTHER_KEY)
    assert keyring.denied == {"gpu1", "gpu2", "gpu3"}


def test_it_is_read_anew_every_time(key_file: Path, tmp_path: Path) -> None:
    deny_file = tmp_path / "denied"
    deny_file.write_text("gpu1")
    source = KeySource(key_file=key_file, deny_file=deny_file)
    source.read()

    key_file.write_text(OTHER_KEY.format())
    deny_file.write_text("gpu2")
    keyring = source.read()

    assert keyring is not None
    assert keyring.run_keys == (OTHER_KEY,)
    assert keyring.denied == {"gpu2"}


def test_what_is_logged_of_keys_is_public(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gradwire.keys"):
        KeySource(key_file=key_file, denied=("gpu3",)).read()

    assert caplog.messages == [
        naming(RUN_KEY.fingerprint.hex(), OTHER_KEY.fingerprint.hex(), key_file, 1)
    ]
    assert RUN_KEY.format().rpartition(":")[2] not in caplog.text


def test_a_key_and_insecure_contradict_each_other(key_file: Path) -> None:
    with pytest.raises(UsageError, match=naming("--insecure", key_file)):
        KeySource(key_file=key_file, insecure=True)


def test_nobody_can_be_denied_where_nobody_proves_his_name(tmp_path: Path) -> None:
    for denied, deny_file in ((("gpu1",), None), ((), tmp_path)):
        with pytest.raises(UsageError, match=naming("key", "name")):
            KeySource(denied=denied, deny_file=deny_file)


def test_a_worker_key_makes_no_master(tmp_path: Path) -> None:
    path = tmp_path / "gpu7.key"
    write_key(path, RUN_KEY.worker_key("gpu7").format())

    with pytest.raises(UsageError, match=naming(path, "worker", "gpu7", "run key")):
        KeySource(key_file=path).read()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"gpu1\ngpu 2\n", ("line 2", "gpu 2", "printable")),
        (b"\xff", ("text",)),
        (b"#" * (DENY_FILE_BYTES_MAX + 1), (DENY_FILE_BYTES_MAX,)),
    ],
)
def test_what_is_no_file_of_names_is_named(
    key_file: Path, tmp_path: Path, content: bytes, named: tuple[object, ...]
) -> None:
    deny_file = tmp_path / "denied"
    deny_file.write_bytes(content)

    with pytest.raises(UsageError, match=naming(deny_file, *named)):
        KeySource(key_file=key_file, deny_file=deny_file).read()


def test_a_file_of_names_that_is_not_there_is_named(key_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=naming(tmp_path / "none", "no such file")):
        KeySource(key_file=key_file, deny_file=tmp_path / "none").read()


def test_a_pipe_in_place_of_a_file_of_names_is_not_waited_for(
    key_file: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match=naming(tmp_path / "pipe", "not a file")):
        KeySource(key_file=key_file, deny_file=tmp_path / "pipe").read()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([], ()),
        (["gpu1"], ("gpu1",)),
        (["gpu1", "gpu2"], ("gpu1", "gpu2")),
        (["gpu1,gpu2", " gpu3  gpu4,"], ("gpu1", "gpu2", "gpu3", "gpu4")),
        ([""], ()),
    ],
)
def test_names_to_deny_may_stand_together(given: list[str], names: tuple[str, ...]) -> None:
    assert denied_names(given) == names
