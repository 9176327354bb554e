"""Masters that are announced at a real ZooKeeper server, and workers that find them there."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import UnreachableError, UsageError
from gradwire.threads.lookup import Lookup
from gradwire_udp.discovery.announcement import Announcement
from support.driven_worker import DrivenWorker, ask_all, check_applied, finish, start
from support.health import metrics, run_status
from support.local_master import MasterProcess, free_address
from support.processes import Running
from support.waiting import BRIEF, SILENCE, wait_for_process
from support.wording import naming
from support.zookeeper import ZooKeeperServer, ensemble_of, needs_zookeeper

pytestmark = needs_zookeeper

PATH = "/gradwire/run"
MASTER = f"{PATH}/master"
ROSTER = f"{PATH}/roster"
QUICK = ("--idle-timeout-seconds", str(SILENCE), "--takeover-seconds", "1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as running:
        yield running


def place(server: ZooKeeperServer) -> str:
    return f"zk://{server.address}{PATH}"


def announced(client: Any) -> Announcement | None:
    """Return what is announced there; None for nothing."""
    if client.exists(MASTER) is None:
        return None
    return Announcement.parse(client.get(MASTER)[0])


def is_announced(master: MasterProcess) -> bool:
    return metrics(master.http)["gradwire_announced"] == 1


def wait_for(master: MasterProcess) -> None:
    wait_for_process(lambda: is_announced(master), "the master to be announced")


def roster(client: Any) -> dict[int, tuple[str, str]]:
    """Return run and phase of each worker there."""
    if client.exists(ROSTER) is None:
        return {}
    found = {}
    for name in client.get_children(ROSTER):
        if client.exists(f"{ROSTER}/{name}") is None:
            continue  # it has left meanwhile
        worker = json.loads(client.get(f"{ROSTER}/{name}")[0])
        assert name == f"{worker['run']}:{worker['rank']}"
        assert worker["name"]
        found[worker["rank"]] = worker["run"], worker["phase"]
    return found


def refused(*options: str) -> tuple[int, str]:
    """Start a master that cannot be announced; return its exit status and its log."""
    command = [sys.executable, "-m", "gradwire", "master", "--listen", "127.0.0.1:0"]
    with Running([*command, "--http", "off", *options], stderr=subprocess.PIPE) as process:
        _, said = process.communicate()
    return process.returncode, said


def test_a_worker_finds_its_master_by_zookeeper_again_after_it_was_killed_and_has_moved(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """What the first one announced stands until its session ends, so that it is stale."""
    config = tmp_path / "run.toml"
    config.write_text("[session]\nworkers = 1\nidle_timeout_seconds = 29\nrank = 3\n")
    options = (
        "--announce", place(server), "--run", "digits", "--config", str(config),
        "--checkpoint", str(tmp_path / "c"), "--checkpoint-seconds", "0.1",
    )  # fmt: skip
    with ExitStack() as stack:
        first = stack.enter_context(MasterProcess(*options))
        client = stack.enter_context(server.client())
        [worker] = start(stack, place(server), 1, idle_timeout_seconds=SILENCE)
        wait_for_process(lambda: roster(client) == {0: ("digits", "live")}, "the worker there")
        found = announced(client)
        assert found is not None
        assert found.masters == (first.address,)
        assert found.settings == {"workers": 1, "idle_timeout_seconds": 29, "run": "digits"}
        worker.ask("step", times=5)
        wait_for_process(
            lambda: run_status(first.http)["checkpoint"]["file"], "a checkpoint to go on from"
        )

        first.stop(signal.SIGKILL)
        second = stack.enter_context(MasterProcess(*options, "--resume", "auto"))

        assert second.address != first.address
        wait_for(second)
        worker.ask("step", times=5)
        wait_for_process(lambda: len(run_status(second.http)["workers"]) == 1, "the worker there")
        check_applied(finish([worker]))
        wait_for_process(lambda: roster(client) == {}, "the roster to be empty")
        code, _, log = second.stop(signal.SIGTERM)
        assert code == 0, log
        wait_for_process(lambda: announced(client) is None, "the announcement to be gone")


@pytest.mark.deep("a master that is stopped until its session ends")
def test_a_session_that_is_lost_is_followed_by_another_one(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """The master does nothing for so long that its session ends."""
    with (
        (tmp_path / "log").open("w") as log,
        MasterProcess("--announce", place(server), log=log) as master,
        server.client() as client,
    ):
        wait_for(master)
        with DrivenWorker(place(server)) as worker:
            assert worker.ask("join")["rank"] == 0
            wait_for_process(lambda: set(roster(client)) == {0}, "the worker in the roster")
            session = client.exists(MASTER).ephemeralOwner
            master.signal(signal.SIGSTOP)
            wait_for_process(lambda: announced(client) is None, "the session to end")
            assert roster(client) == {}

            master.signal(signal.SIGCONT)

            wait_for_process(lambda: announced(client) is not None, "the announcement")
            wait_for_process(lambda: set(roster(client)) == {0}, "the worker in the roster")
            assert client.exists(MASTER).ephemeralOwner != session
            worker.ask("step", times=3)
            worker.kill()


@pytest.mark.deep("a server that is stopped until its silence is noticed")
def test_a_master_serves_on_while_zookeeper_is_silent_and_a_worker_says_what_it_waits_for(
    server: ZooKeeperServer,
) -> None:
    with MasterProcess("--announce", place(server)) as master:
        wait_for(master)
        with server.stopped():
            wait_for_process(lambda: not is_announced(master), "the master to notice")
            with DrivenWorker(master.address) as worker:
                assert worker.ask("join")["rank"] == 0
                worker.ask("close")
            with pytest.raises(UnreachableError, match=naming(place(server), server.address)):
                Lookup(place(server)).first(BRIEF, SILENCE)
        wait_for(master)


@pytest.mark.deep("three servers, two of which are ended")
def test_an_ensemble_without_a_majority_announces_nothing_until_it_has_one_again(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        servers = ensemble_of(stack, tmp_path, 3)
        where = f"zk://{','.join(each.address for each in servers)}{PATH}"
        master = stack.enter_context(MasterProcess("--announce", where))
        wait_for(master)
        assert Lookup(where).first(SILENCE, SILENCE).destinations

        for server in servers[1:]:
            server.kill()

        wait_for_process(lambda: not is_announced(master), "the master to notice")
        with pytest.raises(UnreachableError, match=naming(where)):
            Lookup(where).first(BRIEF, BRIEF)
        with DrivenWorker(master.address) as worker:
            worker.ask("join")
            worker.ask("close")
        servers[1].launch()
        wait_for(master)


@pytest.mark.deep("waits until a session would have ended")
def test_a_second_master_does_not_take_the_place_of_one_that_lives(
    server: ZooKeeperServer,
) -> None:
    with MasterProcess("--announce", place(server)) as first, server.client() as client:
        wait_for(first)

        second = refused("--announce", place(server))

        assert second == (2, naming(place(server), first.address))
        found = announced(client)
        assert found is not None
        assert found.masters == (first.address,)


def test_only_the_credential_lets_a_client_change_what_is_announced(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    secret = tmp_path / "auth"
    secret.write_text("operator:correct horse\n")
    secret.chmod(0o600)
    options = ("--announce", place(server), "--announce-auth-file", str(secret))
    from kazoo.exceptions import NoAuthError

    with MasterProcess(*options) as master, server.client() as stranger:
        wait_for(master)
        assert Lookup(place(server)).first(SILENCE, SILENCE).destinations, "all may read it"
        with pytest.raises(NoAuthError):
            stranger.set(MASTER, b"{}")
        with pytest.raises(NoAuthError):
            stranger.create(f"{ROSTER}/digits:0", b"{}")
        with server.client("operator:correct horse") as operator:
            operator.delete(MASTER)
        wait_for_process(lambda: stranger.exists(MASTER), "the master to put it back")
        code, _, log = master.stop(signal.SIGTERM)
        assert code == 0
        assert "horse" not in log
    secret.write_text("operator:wrong")
    code, said = refused(*options)
    assert (code, said) == (2, naming("--announce-auth-file", PATH))
    assert "wrong" not in said


def test_a_node_that_no_master_has_made_is_named(server: ZooKeeperServer) -> None:
    with server.client() as client:
        client.create(MASTER, b"x" * 20_000, makepath=True)
        with pytest.raises(UsageError, match=naming(MASTER, 20_000, 16_384)):
            Lookup(place(server)).first(SILENCE, SILENCE)
        client.set(MASTER, b"[]")
        with pytest.raises(UsageError, match=naming(MASTER, "gradwire")):
            Lookup(place(server)).first(SILENCE, SILENCE)
        assert refused("--announce", place(server)) == (2, naming(MASTER, "another path"))
        client.set(MASTER, Announcement(masters=("192.0.2.1:40123",)).pack())
        assert refused("--announce", place(server)) == (2, naming(MASTER, "192.0.2.1:40123"))


def test_a_path_where_no_master_is_announced_is_waited_for_and_then_named(
    server: ZooKeeperServer,
) -> None:
    with pytest.raises(UnreachableError, match=naming(MASTER, f"--announce {place(server)}")):
        Lookup(place(server)).first(BRIEF, BRIEF)
    with DrivenWorker(place(server), settings={"start_timeout_seconds": 600.0}) as worker:
        worker.tell("join")
        with MasterProcess("--announce", place(server)):
            assert worker.answer() == {"rank": 0}
            worker.ask("close")


@pytest.mark.deep("two masters, and the time that a standby takes to be sure")
def test_a_standby_that_takes_over_is_announced_in_place_of_its_primary(
    server: ZooKeeperServer,
) -> None:
    announce = ("--announce", place(server), "--recovery-seconds", str(2 * SILENCE), *QUICK)
    with ExitStack() as stack:
        one, other = free_address(), free_address()
        primary = stack.enter_context(MasterProcess("--standby", other, *announce, listen=one))
        standby = stack.enter_context(MasterProcess("--standby-of", one, *announce, listen=other))
        client = stack.enter_context(server.client())
        wait_for(primary)
        workers = start(stack, place(server), 3, idle_timeout_seconds=SILENCE)
        ask_all(workers, "step", times=5)
        wait_for_process(lambda: run_status(standby.http)["parameters"], "its copy")

        primary.stop(signal.SIGKILL)

        def is_standby_announced() -> bool:
            found = announced(client)
            return found is not None and found.masters == (standby.address, one)

        wait_for_process(is_standby_announced, "the standby to be announced")
        ask_all(workers, "step", times=5)
        check_applied(finish(workers))
