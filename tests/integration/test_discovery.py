"""Masters that are announced at a real ZooKeeper server, and workers that find them there."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NoNodeError

from gradwire.errors import UnreachableError, UsageError
from gradwire.session.discovery import find_master
from gradwire.settings.settings import Settings
from gradwire_udp.discovery.announcement import Announcement
from support.driven_worker import DrivenWorker, ask_all, check_applied, finish, start
from support.health import metrics, status_of
from support.local_master import MasterProcess, free_address
from support.waiting import wait_until
from support.wording import naming
from support.zookeeper import ZooKeeperServer, needs_zookeeper

pytestmark = [needs_zookeeper, pytest.mark.timeout(180)]

PATH = "/gradwire/run"
MASTER = f"{PATH}/master"
ROSTER = f"{PATH}/roster"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as running:
        yield running


def place(server: ZooKeeperServer) -> str:
    return f"zk://{server.address}{PATH}"


def announced(client: Any) -> Announcement | None:
    try:
        return Announcement.parse(client.get(MASTER)[0])
    except NoNodeError:
        return None


def roster(client: Any) -> dict[int, tuple[str, str]]:
    """Return run and phase of each worker there."""
    found = {}
    for name in client.get_children(ROSTER):
        try:
            worker = json.loads(client.get(f"{ROSTER}/{name}")[0])
        except NoNodeError:
            continue  # it has left meanwhile
        assert name == f"{worker['run']}:{worker['rank']}"
        assert worker["name"]
        found[worker["rank"]] = worker["run"], worker["phase"]
    return found


def announcement_of(master: MasterProcess) -> dict[str, Any]:
    found: dict[str, Any] = status_of(master.announcement["http"])["announcement"]
    return found


def count_announced(master: MasterProcess) -> float:
    return metrics(master.announcement["http"])["gradwire_announced"]


def test_a_worker_finds_its_master_by_zookeeper_again_after_it_has_moved(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """The first one is killed, so that its announcement stands until its session ends."""
    options = ("--announce", place(server), "--run", "digits", "--checkpoint", str(tmp_path / "c"))
    quick: dict[str, Any] = {"idle_timeout_seconds": 3.0, "connect_timeout_seconds": 3.0}
    with ExitStack() as stack:
        first = stack.enter_context(MasterProcess(*options, "--checkpoint-seconds", "0.1"))
        workers = start(stack, place(server), 1, **quick)
        client = stack.enter_context(server.client())
        wait_until(lambda: roster(client) == {0: ("digits", "live")}, "the worker in the roster")
        before = ask_all(workers, "step", times=5)
        wait_until(
            lambda: bool(status_of(first.announcement["http"])["runs"][0]["checkpoint"]["file"]),
            "a checkpoint, which the second master goes on from",
        )

        first.stop(signal.SIGKILL)
        second = stack.enter_context(MasterProcess(*options, "--resume", "auto"))

        assert second.address != first.address
        found = announced(client)
        assert found is not None
        assert found.master == second.address
        ask_all(workers, "step", times=5)
        wait_until(
            lambda: len(status_of(second.announcement["http"])["runs"][0]["workers"]) == 1,
            "the worker at the second master",
            seconds=60,
        )
        ends = finish(workers)
        check_applied(ends)
        assert all(
            end["updates_sent"] > start["updates_sent"]
            for end, start in zip(ends, before, strict=True)
        )
        wait_until(lambda: roster(client) == {}, "the roster to be empty")


@pytest.mark.deep("a master and two workers, and one that has to be missed")
def test_the_roster_follows_who_joins_and_who_is_killed(server: ZooKeeperServer) -> None:
    options = ("--announce", place(server), "--idle-timeout-seconds", "2", "--rejoin-seconds", "1")
    with ExitStack() as stack:
        stack.enter_context(MasterProcess(*options))
        client = stack.enter_context(server.client())
        wait_until(lambda: client.exists(ROSTER), "the roster")
        assert roster(client) == {}
        stays, dies = start(stack, place(server), 2)
        wait_until(lambda: set(roster(client)) == {0, 1}, "both in the roster")

        dies.kill()

        wait_until(lambda: len(roster(client)) == 1, "one of them to go")
        for name in client.get_children(ROSTER):
            assert (
                client.exists(f"{ROSTER}/{name}").ephemeralOwner
                == client.exists(MASTER).ephemeralOwner
            )
        stays.ask("close")


@pytest.mark.deep("one more master beside a server of ZooKeeper")
def test_an_announcement_ends_when_its_master_stops(server: ZooKeeperServer) -> None:
    with server.client() as client:
        with MasterProcess("--announce", place(server)) as master:
            assert announced(client) is not None
            code, _, log = master.stop(signal.SIGTERM)

        assert code == 0, log
        assert announced(client) is None


def test_the_announcement_and_the_roster_are_put_back_when_a_session_is_lost(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """The master does nothing for so long that its session ends."""
    with (
        (tmp_path / "log").open("w") as log,
        MasterProcess("--announce", place(server), log=log) as master,
        DrivenWorker(place(server)) as worker,
        server.client() as client,
    ):
        assert worker.ask("join")["rank"] == 0
        wait_until(lambda: set(roster(client)) == {0}, "the worker in the roster")
        session = client.exists(MASTER).ephemeralOwner
        master.signal(signal.SIGSTOP)
        wait_until(lambda: announced(client) is None, "the session to end", seconds=30)
        assert roster(client) == {}

        master.signal(signal.SIGCONT)

        wait_until(lambda: announced(client) is not None, "the announcement", seconds=30)
        wait_until(lambda: set(roster(client)) == {0}, "the worker in the roster")
        assert client.exists(MASTER).ephemeralOwner != session
        assert worker.ask("step", times=3)["rank"] == 0
        worker.ask("close")


@pytest.mark.deep("half a minute until the master begins again")
def test_an_ensemble_that_has_lost_its_data_is_told_again(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """It takes no client that has seen a later state than its own."""
    with MasterProcess("--announce", place(server)) as master:
        server.kill()
        wait_until(
            lambda: not announcement_of(master)["announced"], "the master to notice", seconds=30
        )
        (tmp_path / "zookeeper" / "data").rename(tmp_path / "lost")
        (tmp_path / "zookeeper" / "data").mkdir()

        server.start()

        wait_until(lambda: announcement_of(master)["announced"], "the announcement", seconds=90)
        with server.client() as client:
            found = announced(client)
        assert found is not None
        assert found.master == master.address


def test_a_master_serves_on_while_the_ensemble_does_not_answer_and_a_worker_says_what_it_waits_for(
    server: ZooKeeperServer,
) -> None:
    with MasterProcess("--announce", place(server)) as master:
        with server.stopped():
            wait_until(
                lambda: not announcement_of(master)["announced"], "the master to notice", seconds=30
            )
            assert count_announced(master) == 0
            assert announcement_of(master)["problem"] == naming("ZooKeeper", server.address)
            with DrivenWorker(master.address) as worker:
                assert worker.ask("join")["rank"] == 0
                worker.ask("close")
            with pytest.raises(
                UnreachableError, match=naming(place(server), "waited 1 s", server.address)
            ):
                find_master(
                    Settings(
                        master=place(server),
                        connect_timeout_seconds=1.0,
                        start_timeout_seconds=60.0,
                    )
                )
        wait_until(lambda: announcement_of(master)["announced"], "the announcement", seconds=30)
        assert count_announced(master) == 1


@pytest.mark.deep("a master that waits 5 s in vain")
def test_a_master_starts_without_the_ensemble_and_is_announced_when_it_is_there(
    server: ZooKeeperServer,
) -> None:
    server.kill()
    with MasterProcess("--announce", place(server)) as master:
        assert not announcement_of(master)["announced"]
        server.start()
        wait_until(lambda: announcement_of(master)["announced"], "the announcement", seconds=30)


@pytest.mark.deep("one more master and worker beside a server of ZooKeeper")
def test_a_worker_waits_for_a_master_that_is_announced_later(server: ZooKeeperServer) -> None:
    with DrivenWorker(place(server), settings={"start_timeout_seconds": 60.0}) as worker:
        worker.tell("join")
        with MasterProcess("--announce", place(server)):
            assert worker.answer() == {"rank": 0}
            worker.ask("close")


@pytest.mark.deep("waits until a session would have ended")
def test_a_second_master_does_not_take_the_place_of_one_that_lives(
    server: ZooKeeperServer,
) -> None:
    with MasterProcess("--announce", place(server)) as first, server.client() as client:
        second = MasterProcess.refused("--announce", place(server))
        assert second == (2, naming(place(server), first.address, "lives"))
        found = announced(client)
        assert found is not None
        assert found.master == first.address


def test_only_the_credential_lets_a_client_change_what_is_announced(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    secret = tmp_path / "auth"
    secret.write_text("operator:correct horse")
    secret.chmod(0o600)
    options = ("--announce", place(server), "--announce-auth-file", str(secret))
    with MasterProcess(*options) as master, server.client() as stranger:
        assert find_master(Settings(master=place(server)))[1] is not None, "all may read it"
        with pytest.raises(NoAuthError):
            stranger.set(MASTER, b"{}")
        with pytest.raises(NoAuthError):
            stranger.delete(MASTER)
        with pytest.raises(NoAuthError):
            stranger.create(f"{ROSTER}/digits:0", b"{}")
        with server.client("operator:correct horse") as operator:
            operator.delete(MASTER)
        wait_until(lambda: stranger.exists(MASTER), "the master to put it back", seconds=10)
        code, _, log = master.stop(signal.SIGTERM)
        assert code == 0
        assert "horse" not in log
    secret.write_text("operator:wrong")
    code, said = MasterProcess.refused(*options)
    assert (code, said) == (2, naming("--announce-auth-file", PATH))
    assert "wrong" not in said


def test_a_node_that_no_master_wrote_is_named(server: ZooKeeperServer) -> None:
    with server.client() as client:
        client.create(MASTER, b"x" * 70_000, makepath=True)
        with pytest.raises(UsageError, match=naming(MASTER, 70_000, 65_536)):
            find_master(Settings(master=place(server)))
        client.set(MASTER, b"[]")
        with pytest.raises(UsageError, match=naming(MASTER, "list", "object")):
            find_master(Settings(master=place(server)))
    code, said = MasterProcess.refused("--announce", place(server))
    assert (code, said) == (2, naming(MASTER, "another path"))


def test_a_path_with_no_master_is_waited_for_and_then_named(server: ZooKeeperServer) -> None:
    settings = Settings(
        master=place(server), connect_timeout_seconds=1.0, start_timeout_seconds=2.0
    )
    with pytest.raises(
        UnreachableError, match=naming("waited 2 s", MASTER, f"--announce {place(server)}")
    ):
        find_master(settings)


@pytest.mark.deep("two masters, and the time that a standby takes to be sure")
def test_a_standby_that_takes_over_is_announced_in_place_of_its_primary(
    server: ZooKeeperServer,
) -> None:
    quick = ("--idle-timeout-seconds", "3", "--recovery-seconds", "4", "--takeover-seconds", "1")
    with ExitStack() as stack:
        one, other = free_address(), free_address()
        primary = stack.enter_context(
            MasterProcess("--announce", place(server), "--standby", other, *quick, listen=one)
        )
        standby = stack.enter_context(
            MasterProcess("--announce", place(server), "--standby-of", one, *quick, listen=other)
        )
        client = stack.enter_context(server.client())
        wait_until(lambda: announced(client) is not None, "the primary", seconds=30)
        workers = start(stack, place(server), 3, idle_timeout_seconds=3.0)
        ask_all(workers, "step", times=5)

        primary.stop(signal.SIGKILL)

        def is_standby_announced() -> bool:
            found = announced(client)
            return found is not None and found.master == standby.address

        wait_until(is_standby_announced, "the standby to be announced", seconds=60)
        ask_all(workers, "step", times=5)
        with DrivenWorker(place(server)) as late:
            late.ask("join")
            late.ask("close")
        check_applied(finish(workers))


@pytest.mark.deep("two masters, the second of which waits until the file of the first is stale")
def test_a_worker_finds_its_master_by_a_file_again_after_it_has_moved(tmp_path: Path) -> None:
    here = f"file://{tmp_path}/run.json"
    options = ("--announce", here, "--checkpoint", str(tmp_path / "c"))
    with ExitStack() as stack:
        first = stack.enter_context(MasterProcess(*options, "--checkpoint-seconds", "0.1"))
        [worker] = start(stack, here, 1, idle_timeout_seconds=3.0)
        worker.ask("step", times=5)
        refused = MasterProcess.refused("--announce", here)
        assert refused == (2, naming(here, first.address, "lives"))
        first.stop(signal.SIGKILL)

        second = stack.enter_context(MasterProcess(*options, "--resume", "auto"))

        assert second.address != first.address
        worker.ask("step", times=5)
        wait_until(
            lambda: len(status_of(second.announcement["http"])["runs"][0]["workers"]) == 1,
            "the worker at the second master",
            seconds=60,
        )
        finish([worker])
        code, _, _ = second.stop(signal.SIGTERM)
        assert code == 0
        assert not (tmp_path / "run.json").exists()
