"""Where a master's keys and denied names come from, and what is wrong with some of them."""

import logging
from pathlib import Path

import pytest

from gradwire_protocol import UsageError
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_server.daemon.key_source import KeySource, denied_names
from gradwire_udp.files.keys import write_key
from support.wording import naming

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))
OTHER_KEY = RunKey(bytes(SECRET_BYTES))


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.key"
    write_key(path, f"{RUN_KEY.format()}\n{OTHER_KEY.format()}\n")
    return path


def test_it_is_read_anew_every_time(key_file: Path) -> None:
    source = KeySource(key_file=key_file, denied=("gpu1",))
    first = source.read()

    key_file.write_text(OTHER_KEY.format())
    second = source.read()

    assert first is not None
    assert second is not None
    assert (first.run_keys, second.run_keys) == ((RUN_KEY, OTHER_KEY), (OTHER_KEY,))
    assert first.denied == second.denied == {"gpu1"}


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


def test_nobody_can_be_denied_where_nobody_proves_his_name() -> None:
    with pytest.raises(UsageError, match=naming("key", "name")):
        KeySource(denied=("gpu1",))


def test_a_worker_key_makes_no_master(tmp_path: Path) -> None:
    path = tmp_path / "gpu7.key"
    write_key(path, RUN_KEY.worker_key("gpu7").format())

    with pytest.raises(UsageError, match=naming(path, "worker", "gpu7", "run key")):
        KeySource(key_file=path).read()


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
