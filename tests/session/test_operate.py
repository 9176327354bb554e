"""``gradwire operate``: what it asks for before it dials, and what a real master makes of it."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gradwire.cli.app import main
from gradwire_protocol import Role
from gradwire_udp.files.keys import write_key
from support.local_master import LocalMaster
from support.sessions import RUN_KEY, join, loss_of
from support.waiting import SOON, wait_until
from support.wording import naming

Operate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "alice.key"
    write_key(path, RUN_KEY.worker_key("alice", Role.OPERATOR).format())
    return path


@pytest.fixture
def operate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key_file: Path
) -> Operate:
    """Run the command; return exit status, stdout and the last line of stderr."""
    monkeypatch.setenv("GRADWIRE_CONNECT_TIMEOUT_SECONDS", str(SOON))
    logger = logging.getLogger("gradwire")
    before = list(logger.handlers)

    def run(*arguments: str, key: Path = key_file) -> tuple[int, str, str]:
        status = main(["operate", *arguments, "--key-file", str(key)])
        logger.handlers[:] = before  # the command's would write to a stderr that is no more
        out, err = capsys.readouterr()
        return status, out, err.splitlines()[-1] if err else ""

    return run


@pytest.fixture
def master(keyed_master: LocalMaster) -> LocalMaster:
    return keyed_master


def test_an_order_about_a_worker_is_carried_out(operate: Operate, master: LocalMaster) -> None:
    worker = join(master, key=RUN_KEY.worker_key("gpu1"))

    status, shown, _ = operate("expel", "gpu1", "--master", master.address)

    assert (status, shown) == (0, naming("rank 0"))
    wait_until(lambda: master.sample("gradwire_workers") == 0, "the worker to be gone")
    assert str(loss_of(worker)) == naming("operator alice")


def test_what_is_refused_has_status_4(operate: Operate, master: LocalMaster) -> None:
    status, shown, said = operate("checkpoint", "--master", master.address)

    assert (status, shown) == (4, "")
    assert said == naming("gradwire:", master.address, "refused", "checkpoint is for a run")


def test_where_nobody_answers_it_has_status_5(
    operate: Operate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_CONNECT_TIMEOUT_SECONDS", "0.1")

    status, shown, said = operate("status", "--master", "127.0.0.1:9")

    assert (status, shown) == (5, "")
    assert said == naming("127.0.0.1:9")


@pytest.mark.parametrize("role", ["worker", "observer"])
def test_the_key_of_anybody_else_is_refused_before_it_dials(
    operate: Operate, tmp_path: Path, role: str
) -> None:
    path = tmp_path / "gpu1.key"
    write_key(path, RUN_KEY.worker_key("gpu1", Role[role.upper()]).format())

    status, _, said = operate("status", "--master", "127.0.0.1:9", key=path)

    assert status == 2
    assert said == naming("gradwire:", "gpu1", f"role {role}", "operator")
