"""Sessions that find their master by a name, and find it again where it has moved."""

import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gradwire
from gradwire.cli.app import main
from gradwire_server.config import MasterConfig
from support.local_master import LocalMaster, MasterProcess
from support.sessions import zeros
from support.waiting import BRIEF, JOB, SILENCE, SOON, wait_until
from support.wording import naming

if TYPE_CHECKING:
    from support.dns_server import DnsServer
else:
    pytest.importorskip("dns", reason="needs dnspython: pip install 'gradwire[dns]'")
    DnsServer = pytest.importorskip("support.dns_server").DnsServer

AT_ONCE = MasterConfig(recovery_seconds=0.0)
"""Of a master that waits for no other worker of the run."""

NAME = "_gradwire._udp.example.test."


@pytest.fixture
def server() -> Iterator[DnsServer]:
    with DnsServer() as running:
        yield running


def place(server: DnsServer, *masters: LocalMaster | MasterProcess) -> str:
    """Have the name lead to masters; return it."""
    server.records = []
    for n, master in enumerate(masters):
        host, _, port = master.address.rpartition(":")
        server.records.append((NAME, "SRV", f"{n} 0 {port} {host}."))
    return f"dns+srv://{server.address}/{NAME}"


def port_of(master: MasterProcess) -> str:
    return master.address.rpartition(":")[2]


@contextmanager
def killed_after_joining(
    log: Path, where: Callable[[MasterProcess], str]
) -> Iterator[tuple[MasterProcess, gradwire.Session]]:
    """Join a master by a name, and kill it without a word."""
    with log.open("w") as file, MasterProcess(log=file) as master:
        session = join(where(master))
        master.stop(signal.SIGKILL)
        try:
            yield master, session
        finally:
            session.close()


def join(master: str, **settings: Any) -> gradwire.Session:
    usual = {"start_timeout_seconds": JOB, "idle_timeout_seconds": SILENCE}
    return gradwire.join(zeros(), master=master, **(usual | settings))


def test_of_a_name_with_several_masters_the_one_that_answers_is_taken(
    server: DnsServer, master: LocalMaster
) -> None:
    with LocalMaster() as dead:
        pass

    with join(place(server, dead, master)) as session:
        assert session.rank == 0
        master.wait_for_workers(1)


def test_a_worker_that_starts_waits_until_the_name_leads_to_a_master(
    server: DnsServer, master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """It has looked, and found a master that is gone, before the name leads to another one."""
    caplog.set_level(logging.INFO)
    with LocalMaster() as dead:
        name = place(server, dead)

    def move(record: logging.LogRecord) -> bool:
        if dead.address in record.getMessage():
            place(server, master)
        return True

    logging.getLogger("gradwire.join").addFilter(move)
    try:
        with join(name, connect_timeout_seconds=SOON) as session:
            assert session.rank == 0
    finally:
        logging.getLogger("gradwire.join").removeFilter(move)
    assert caplog.text == naming(master.address, name)


def test_a_worker_follows_a_name_to_where_its_master_has_moved(
    server: DnsServer, tmp_path: Path
) -> None:
    with (
        killed_after_joining(tmp_path / "log", lambda master: place(server, master)),
        LocalMaster(AT_ONCE) as second,
    ):
        place(server, second)

        second.wait_for_workers(1)


def test_the_addresses_of_a_host_are_looked_up_again_when_its_master_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name of a host leads to 127.0.0.1 first, and then to 127.0.0.2."""
    addresses = {"master.test": "127.0.0.1"}
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **options: Any) -> Any:
        return look_up(addresses.get(host, host), *rest, **options)

    monkeypatch.setattr("gradwire_udp.sockets.socket.getaddrinfo", getaddrinfo)
    with ExitStack() as stack:
        first, _ = stack.enter_context(
            killed_after_joining(tmp_path / "log", lambda master: f"master.test:{port_of(master)}")
        )
        second = stack.enter_context(LocalMaster(AT_ONCE, listen=f"127.0.0.2:{port_of(first)}"))
        addresses["master.test"] = "127.0.0.2"

        second.wait_for_workers(1)


def test_a_name_that_leads_nowhere_any_more_is_said_once_and_the_old_address_dialled(
    server: DnsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with killed_after_joining(tmp_path / "log", lambda master: place(server, master)) as (first, _):
        place(server)
        wait_until(lambda: "no SRV records" in caplog.text, "a warning")
        asked = server.asked
        wait_until(lambda: server.asked > asked + 1, "two more looks")
        assert caplog.text.count("no SRV records") == 1

        with LocalMaster(AT_ONCE, listen=first.address) as again:
            again.wait_for_workers(1)


def test_a_name_without_a_master_is_named_when_the_time_is_over(server: DnsServer) -> None:
    with pytest.raises(gradwire.UnreachableError, match=naming(place(server), "SRV records")):
        join(place(server), connect_timeout_seconds=BRIEF, start_timeout_seconds=BRIEF)


@pytest.mark.deep("doctor measures for ten seconds")
def test_doctor_finds_the_master_by_its_name(
    server: DnsServer, master: LocalMaster, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["doctor", "--master", place(server, master)])

    assert capsys.readouterr().out == naming(NAME, master.address)
