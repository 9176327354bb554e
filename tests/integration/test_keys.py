"""Keys between real processes: who gets in, keys that change meanwhile, and that none is shown."""

import os
import signal
import sys
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

import gradwire
from gradwire.cli.app import main
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey, WorkerKey
from gradwire_protocol.crypto.suites import Suite
from gradwire_udp.files.keys import read_keys, read_run_keys
from support.driven_worker import DrivenWorker
from support.health import metrics
from support.local_master import MasterProcess
from support.processes import children_of
from support.sessions import loss_of
from support.tiers import variants
from support.waiting import PROCESS, wait_for_process
from support.wording import naming

ELEMENTS = 5


class Keys:
    """Key files in a folder, made as a person makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run.key"
        self.keygen(str(self.run))

    def keygen(self, *arguments: str) -> None:
        assert main(["keygen", *arguments]) == 0

    def worker(self, name: str) -> Path:
        """Make the key of a worker from the newest run key."""
        path = self.folder / f"{name}.key"
        self.keygen("--worker", name, "--from", str(self.run), "--out", str(path))
        return path

    def strangers(self) -> Path:
        """Make the key of a worker in another run."""
        other = Keys(self.folder / "other")
        return other.worker("gpu1")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    (tmp_path / "other").mkdir()
    return Keys(tmp_path)


def join(
    master: MasterProcess, key_file: Path | None, *, seconds: float = PROCESS, **settings: Any
) -> gradwire.Session:
    target = np.zeros(ELEMENTS, np.float32)
    return gradwire.join(
        target,
        master=master.address,
        key_file=key_file,
        connect_timeout_seconds=seconds,
        **settings,
    )


def refusal(master: MasterProcess, key_file: Path | None) -> str:
    with pytest.raises(gradwire.UnreachableError) as refused:
        join(master, key_file, seconds=1.0)
    return str(refused.value)


# Who gets in.

REASONS = ("other_suite", "unknown_key", "denied")


def has_counted(http: str, *reasons: str) -> bool:
    """Return whether a master has dropped a datagram for each of these reasons."""
    counted = metrics(http)
    return all(counted[f'gradwire_datagrams_dropped_total{{reason="{r}"}}'] for r in reasons)


@pytest.mark.parametrize("transport", variants("udp", "tcp"))
@pytest.mark.parametrize("suite", variants(Suite.AES, Suite.CHACHA))
def test_who_has_a_key_of_the_run_gets_in_by_every_way(
    keys: Keys, transport: str, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.settings.credentials.fastest_suite", lambda: suite)
    with MasterProcess("--key-file", str(keys.run)) as master:
        session = join(master, keys.worker("gpu1"), transport=transport)

        session.push(np.ones(ELEMENTS, np.float32))
        wait_for_process(lambda: session.stats.updates_delivered == 1, "the update to be there")
        session.close()


def test_whoever_has_none_hears_nothing_and_is_told_what_it_may_be(keys: Keys) -> None:
    with MasterProcess("--key-file", str(keys.run), "--deny", "gpu2") as master:
        without = refusal(master, None)
        strangers = refusal(master, keys.strangers())
        denied = refusal(master, keys.worker("gpu2"))
        http = master.announcement["http"]
        wait_for_process(lambda: has_counted(http, *REASONS), "the master to have read them all")

        _, _, logged = master.stop(signal.SIGTERM)

    assert "without a key, which this master asks for; one of them from 127.0.0.1:" in logged
    assert "with a key of another run; one of them from 127.0.0.1:" in logged
    assert "with a name that is denied; one of them from 127.0.0.1:" in logged
    assert "This worker has no key, and a master that has one does not answer" in without
    for message in (strangers, denied):
        assert message == naming("key", "run key", "denied")


@pytest.mark.deep("more of what keys can meet")
def test_a_worker_with_a_key_is_told_that_the_master_may_have_none(keys: Keys) -> None:
    with MasterProcess() as master:
        message = refusal(master, keys.worker("gpu1"))

    assert message == naming("silent", "without a key")


# Keys that change while the run goes on.


def test_keys_are_rotated_while_the_run_goes_on(keys: Keys) -> None:
    former, latter = keys.worker("former"), keys.folder / "latter.key"
    with MasterProcess("--key-file", str(keys.run)) as master:
        one = join(master, former)
        keys.keygen("--rotate", str(keys.run))
        keys.keygen("--worker", "latter", "--from", str(keys.run), "--out", str(latter))

        master.signal(signal.SIGHUP)
        other = join(master, latter)
        one.push(np.ones(ELEMENTS, np.float32))
        wait_for_process(lambda: other.pull(), "the update of the one with the former key")
        keys.keygen("--retire", str(keys.run))
        master.signal(signal.SIGHUP)
        lost = loss_of(one)
        other.push(np.ones(ELEMENTS, np.float32))
        wait_for_process(lambda: other.stats.updates_delivered == 1, "the update to be there")
        message = refusal(master, former)
        other.close()

    assert "the key of this worker is not accepted any more" in str(lost)
    assert message == naming("run key", "denied")


@pytest.mark.deep("more of what keys can meet")
def test_where_the_keys_cannot_be_read_again_those_before_stay(keys: Keys) -> None:
    worker_key = keys.worker("gpu1")
    with MasterProcess("--key-file", str(keys.run)) as master:
        text = keys.run.read_text()
        keys.run.write_text(text[:-5])
        master.signal(signal.SIGHUP)
        join(master, worker_key).close()

        status, _, err = master.stop(signal.SIGTERM)

    assert status == 0
    assert f"the keys stay as they were: key file {keys.run}: line " in err
    assert text[-20:-5] not in err


# Nothing of a key is shown anywhere.


def secrets_of(*paths: Path) -> list[bytes]:
    """Return all ways in which what is secret in these files could be shown."""
    shown: list[bytes] = []
    for path in paths:
        found = read_keys(path)
        for key in found if isinstance(found, list) else [found]:
            text = key.format().rpartition(":")[2]
            decoded = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            secret = key.secret if isinstance(key, WorkerKey) else decoded[:SECRET_BYTES]
            shown += [secret, secret.hex().encode(), repr(secret)[2:-1].encode(), text.encode()]
    return shown


def public_parts(pid: int) -> bytes:
    """Return what ``ps`` shows of a process, and its environment."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def served(http: str) -> Iterator[bytes]:
    for path in ("/healthz", "/metrics", "/api/v1/overview", "/"):
        try:
            with urlopen(f"http://{http}{path}", timeout=PROCESS) as response:
                yield response.read() + str(response.headers).encode()
        except HTTPError as error:
            yield error.read()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_keys_are_in_no_log_process_list_metric_or_traceback(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [keys.run, keys.worker("gpu1"), keys.worker("gpu2")]
    monkeypatch.setenv("GRADWIRE_LOG_LEVEL", "debug")
    seen: list[bytes] = []
    with ExitStack() as stack:
        master = stack.enter_context(MasterProcess("--key-file", str(keys.run), "--deny", "gpu3"))
        settings = {"key_file": str(paths[1])}
        worker = stack.enter_context(
            DrivenWorker(master.address, elements=ELEMENTS, settings=settings)
        )
        assert "rank" in worker.ask("join")
        session = join(master, paths[2])
        seen += [repr(session).encode(), repr(session.stats).encode()]
        pid = master.announcement["pid"]
        pids = [pid, *children_of(pid), worker.process.pid]
        assert len(pids) == 2
        seen += map(public_parts, pids)
        seen += served(master.announcement["http"])
        keys.keygen("--rotate", str(keys.run))
        master.signal(signal.SIGHUP)
        session.close()
        keys.run.chmod(0o644)
        master.signal(signal.SIGHUP)  # which is refused, and logged
        worker.tell("poison", at=3)  # which fails in the worker
        seen.append(repr(worker.answer()).encode())

        status, out, err = master.stop(signal.SIGTERM)

    keys.run.chmod(0o600)
    shown = capfd.readouterr()
    seen += [text.encode() for text in (out, err, shown.out, shown.err)]
    assert status == 0
    assert "run keys" in err, "what is public of the keys"
    assert "has mode 0644" in err
    for secret in secrets_of(*paths):
        assert not any(secret in text for text in seen)


def test_the_secrets_that_are_looked_for_would_be_found(keys: Keys) -> None:
    [run_key] = read_run_keys(keys.run)

    found = secrets_of(keys.run)

    assert RunKey(found[0]) == run_key
    assert run_key.format().rpartition(":")[2].encode() in keys.run.read_bytes()
    assert any(secret in keys.run.read_bytes() for secret in found)
    assert os.fsencode(str(run_key.fingerprint.hex())) in keys.run.read_bytes()
