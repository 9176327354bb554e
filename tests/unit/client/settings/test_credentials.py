"""A worker's key and cipher: where they come from, and which one is taken."""

import os
import platform
import re
from pathlib import Path
from time import time_ns
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.settings import credentials as module
from gradwire.settings.credentials import credentials_of, fastest_suite, own_name
from gradwire_protocol import Credentials
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey, WorkerKey, check_name
from gradwire_protocol.crypto.suites import Suite
from gradwire_udp.files.keys import write_key

RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))
OTHER_KEY = RunKey(bytes(SECRET_BYTES))
WORKER_KEY = RUN_KEY.worker_key("gpu7")


def credentials(key: Any = None, key_file: str = "") -> Credentials:
    found = credentials_of(key, key_file)
    assert found is not None
    return found


@pytest.mark.parametrize("key", [WORKER_KEY, WORKER_KEY.format(), WORKER_KEY.format() + "\n"])
def test_a_worker_key_is_taken_as_it_is(key: WorkerKey | str) -> None:
    found = credentials(key)

    assert found.key == WORKER_KEY
    assert found.keyring is None
    assert found.unix_time_ns is time_ns


@pytest.mark.parametrize(
    "key", [RUN_KEY, RUN_KEY.format(), f"{RUN_KEY.format()}\n{OTHER_KEY.format()}"]
)
def test_of_a_run_key_a_worker_makes_its_own(key: RunKey | str) -> None:
    own = credentials(key).key
    assert own is not None
    assert own == RUN_KEY.worker_key(own.name)


def test_a_file_holds_one_or_the_other(tmp_path: Path) -> None:
    write_key(tmp_path / "worker.key", WORKER_KEY.format())
    write_key(tmp_path / "run.key", f"{RUN_KEY.format()}\n{OTHER_KEY.format()}\n")

    assert credentials(key_file=str(tmp_path / "worker.key")).key == WORKER_KEY
    own = credentials(key_file=str(tmp_path / "run.key")).key
    assert own is not None
    assert own == RUN_KEY.worker_key(own.name)


# Names.


@given(host=st.text(max_size=300))
def test_whatever_a_host_is_called_its_processes_have_names(host: str) -> None:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(platform, "node", lambda: host)

        name = own_name()

    assert check_name(name) == name
    assert re.search(rf"/{os.getpid()}-[0-9a-f]{{6}}$", name)


# Ciphers.


@pytest.mark.parametrize("faster", [Suite.AES, Suite.CHACHA])
def test_the_cipher_is_the_faster_one(faster: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_sealing_seconds", lambda suite: 1 if suite is faster else 2)
    fastest_suite.cache_clear()
    try:
        assert credentials(WORKER_KEY).suite is faster
    finally:
        fastest_suite.cache_clear()


def test_this_machine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Suite] = []

    def note(suite: Suite) -> int:
        asked.append(suite)
        return len(asked)

    fastest_suite.cache_clear()
    with monkeypatch.context() as changed:
        changed.setattr(module, "_sealing_seconds", note)
        once = [fastest_suite() for _ in range(3)]
    fastest_suite.cache_clear()

    assert asked == [Suite.AES, Suite.CHACHA]
    assert once == [Suite.AES] * 3
    assert fastest_suite() in (Suite.AES, Suite.CHACHA), "and it has an answer of its own"
