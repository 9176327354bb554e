"""Key files: who may read them, how they are written, and that nothing of them is ever shown.

Modes are compared, and not what the kernel makes of them: so these hold for root, too.
"""

import os
import stat
from pathlib import Path
from traceback import TracebackException

import pytest

from gradwire_protocol.crypto.keys import SECRET_BYTES, Role, RunKey
from gradwire_udp.files import keys as key_files
from gradwire_udp.files.keys import (
    KEY_FILE_BYTES_MAX,
    KeyFileError,
    credential,
    read_keys,
    read_run_keys,
    replace_key,
    write_key,
)
from support.wording import naming

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))
OTHER_KEY = RunKey(bytes(range(1, SECRET_BYTES + 1)))
TEXT = RUN_KEY.format() + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.key"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


def written(path: Path, content: str | bytes = TEXT, mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(path: Path) -> str:
    with pytest.raises(KeyFileError) as refused:
        read_keys(path)
    assert refused.value.__cause__ is None
    return str(refused.value)


# Reading.


def test_run_keys_are_read_in_their_order(path: Path) -> None:
    written(path, f"# two\n{OTHER_KEY.format()}\n\n{TEXT}")

    assert read_keys(path) == [OTHER_KEY, RUN_KEY]
    assert read_run_keys(path) == [OTHER_KEY, RUN_KEY]


@pytest.mark.parametrize("role", Role)
def test_a_worker_key_is_read_and_is_no_run_key(path: Path, role: Role) -> None:
    key = RUN_KEY.worker_key("gpu7", role)
    written(path, key.format())

    assert read_keys(path) == key
    with pytest.raises(KeyFileError, match=naming(path, "worker", "gpu7")) as refused:
        read_run_keys(path)
    assert key.format() not in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700, 0o500])
def test_what_only_its_owner_can_read_is_read(path: Path, mode: int) -> None:
    assert read_keys(written(path, mode=mode)) == [RUN_KEY]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o666, 0o777])
def test_what_others_have_access_to_is_refused_by_its_mode_and_says_what_to_do(
    path: Path, mode: int
) -> None:
    written(path, mode=mode)

    assert refusal(path) == naming(path, f"{mode:04o}", f"chmod 600 {path}", "make a new one")


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o444, 0o644])
def test_in_a_folder_of_secrets_the_folder_keeps_others_out(
    path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path, mode=mode)

    with monkeypatch.context() as changed:
        changed.setenv("CREDENTIALS_DIRECTORY", str(path.parent))
        of_systemd = read_keys(path)
    with monkeypatch.context() as changed:
        changed.setattr(key_files, "CONTAINER_SECRETS", path.parent)
        of_docker = read_keys(path)

    assert of_systemd == of_docker == [RUN_KEY]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_also_there_others_must_not_be_able_to_change_it(
    path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path, mode=mode)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(path.parent))

    assert refusal(path) == naming(path, f"{mode:04o}", "change")


def test_a_link_out_of_the_folder_of_secrets_is_judged_by_where_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    target = written(tmp_path / "run.key", mode=0o644)
    link = secrets / "run.key"
    link.symlink_to(target)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(secrets))

    assert refusal(link) == naming("0644")
    target.chmod(0o600)
    assert read_keys(link) == [RUN_KEY]


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)

    for path in (pipe, tmp_path, Path(os.devnull)):
        assert refusal(path) == naming(path, "regular file")


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    assert refusal(path) == naming(path, "No such file")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", ("0 run keys", "0 worker keys")),
        (b"\xff" * 50, ("text",)),
        (b"#" * (KEY_FILE_BYTES_MAX + 1), (KEY_FILE_BYTES_MAX,)),
        (TEXT[:-9].encode(), ("line 1", "damaged")),
        (b"-----BEGIN PRIVATE KEY-----", ("line 1", "`gradwire keygen`")),
        (b"gradwire-worker-key:king:gpu7:AAAA", ("line 1", "role")),
    ],
)
def test_what_is_no_key_file_is_named_and_not_repeated(
    path: Path, content: bytes, named: tuple[object, ...]
) -> None:
    message = refusal(written(path, content))

    assert message == naming(path, *named)
    for word in content.split(b":")[1:]:
        assert word not in message.encode()


@pytest.mark.parametrize("content", [TEXT[:-9], TEXT + "\udcff", TEXT + "#" * KEY_FILE_BYTES_MAX])
def test_not_even_a_report_with_the_values_of_all_names_shows_anything_of_it(
    path: Path, content: str
) -> None:
    written(path, content.encode(errors="surrogateescape"))
    del content  # it would be in the report, as a name of this test

    try:
        read_keys(path)
    except KeyFileError as error:
        report = TracebackException.from_exception(error, capture_locals=True)

    assert TEXT.partition(":")[2][:8] not in "".join(report.format())


# Credentials.


def test_a_credential_is_found_where_systemd_says(path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(path.parent)}
    before = credential(environ, "run.key")
    written(path)

    assert before is None
    assert credential(environ, "run.key") == path
    assert credential(environ, "worker.key") is None
    assert credential({}, "run.key") is None


# Writing.


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_file_is_its_owners_alone_whatever_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_key(path, TEXT)
    finally:
        os.umask(before)

    assert mode_of(path) == 0o600
    assert read_keys(path) == [RUN_KEY]


def test_a_file_that_exists_is_not_overwritten(path: Path) -> None:
    write_key(path, TEXT)

    with pytest.raises(KeyFileError, match=naming(path, "exists")):
        write_key(path, OTHER_KEY.format())

    assert read_keys(path) == [RUN_KEY]


def test_neither_is_what_a_link_points_to(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.symlink_to(target)

    with pytest.raises(KeyFileError, match=naming(path, "exists")):
        write_key(path, TEXT)

    assert not target.exists()


@pytest.mark.parametrize("step", ["fchmod", "fsync"])
def test_where_writing_fails_nothing_is_left(
    path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(os, step, fail)
        with pytest.raises(KeyFileError, match=naming("write", path, "No space left")):
            write_key(path, TEXT)
    left = list(path.parent.iterdir())

    write_key(path, TEXT)
    with monkeypatch.context() as changed:
        changed.setattr(os, step, fail)
        with pytest.raises(KeyFileError, match=naming("change", path, "No space left")):
            replace_key(path, OTHER_KEY.format())

    assert left == []
    assert list(path.parent.iterdir()) == [path]
    assert read_keys(path) == [RUN_KEY]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "run.key"

    for write in (write_key, replace_key):
        with pytest.raises(KeyFileError, match=naming(path, "No such file")):
            write(path, TEXT)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_is_replaced_keeps_its_mode_and_no_other_is_left(path: Path, mode: int) -> None:
    written(path, mode=mode)

    replace_key(path, OTHER_KEY.format())

    assert read_keys(path) == [OTHER_KEY]
    assert mode_of(path) == mode
    assert list(path.parent.iterdir()) == [path]


def test_a_link_goes_on_to_point_at_the_file_that_was_replaced(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(written(path))

    replace_key(link, OTHER_KEY.format())

    assert link.is_symlink()
    assert read_keys(path) == [OTHER_KEY]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_root_replaces_stays_its_owners(path: Path) -> None:
    os.chown(written(path), 12_345, 23_456)

    replace_key(path, OTHER_KEY.format())

    status = path.stat()
    assert (status.st_uid, status.st_gid) == (12_345, 23_456)


def test_two_commands_do_not_change_a_file_at_once(path: Path) -> None:
    written(path)
    new = written(path.with_name("run.key.new"), "half a line")

    with pytest.raises(KeyFileError, match=naming(new, "exists", path)):
        replace_key(path, OTHER_KEY.format())

    assert read_keys(path) == [RUN_KEY]
    assert new.read_text() == "half a line"
