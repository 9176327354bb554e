"""What masters put into a real ZooKeeper server while others change it beside them."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gradwire_protocol import UnreachableError
from gradwire_server.daemon.announcer import Announcer
from gradwire_server.daemon.announcing import Announcing, Wanted
from gradwire_server.daemon.zookeeper_board import ZooKeeperBoard
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.zookeeper import ZooKeeperPlace
from support.health import status_of
from support.local_master import MasterProcess
from support.wording import naming
from support.zookeeper import ZooKeeperServer, needs_zookeeper

pytestmark = [needs_zookeeper, pytest.mark.timeout(60)]

FORMER = Announcement(master="a:1", others=("b:1",), host="one", instance="1", term=1)
LATER = Announcement(master="b:1", others=("a:1",), host="two", instance="2", term=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as running:
        yield running


@pytest.fixture
def place(server: ZooKeeperServer) -> ZooKeeperPlace:
    return ZooKeeperPlace((server.address,), "/run")


def test_a_former_master_leaves_the_roster_of_the_one_that_took_over(
    server: ZooKeeperServer, place: ZooKeeperPlace
) -> None:
    with ExitStack() as stack:
        former, later = (stack.enter_context(closing(ZooKeeperBoard(place))) for _ in range(2))
        former.post(FORMER, {"run:0": b"former", "run:1": b"former"})
        later.post(LATER, {"run:0": b"later"})

        former.withdraw()

        client = stack.enter_context(server.client())
        assert client.get_children("/run/roster") == ["run:0"]
        assert client.get("/run/roster/run:0")[0] == b"later"
        assert Announcement.parse(client.get("/run/master")[0]) == LATER


def test_a_roster_that_somebody_deletes_is_made_again_at_the_next_look(
    server: ZooKeeperServer, place: ZooKeeperPlace
) -> None:
    with closing(ZooKeeperBoard(place)) as board, server.client() as client:
        board.post(FORMER, {})
        client.delete("/run/roster")

        with pytest.raises(UnreachableError, match=naming("/run/roster/run:0", "deleted")):
            board.post(FORMER, {"run:0": b"worker"})
        board.post(FORMER, {"run:0": b"worker"})

        assert client.get_children("/run/roster") == ["run:0"]


def test_a_master_that_cannot_take_its_announcement_down_says_so_once(
    server: ZooKeeperServer, place: ZooKeeperPlace, caplog: pytest.LogCaptureFixture
) -> None:
    wanted: Wanted = (FORMER, {})
    looks = asyncio.Semaphore(0)

    def describe() -> Wanted:
        looks.release()
        return wanted

    async def run() -> None:
        nonlocal wanted
        announcer = Announcer(Announcing(place, None, {}), describe, lambda: "a:1")
        await announcer.begin(asyncio.Event())
        server.kill()
        wanted = (None, {})
        while "take the announcement down" not in str(announcer.status()["problem"]):
            await looks.acquire()
        said = len(caplog.messages)
        for _ in range(4):
            await looks.acquire()
        assert len(caplog.messages) == said
        await announcer.close()

    with caplog.at_level(logging.WARNING, "gradwire.announcer"):
        asyncio.run(asyncio.wait_for(run(), 30))

    assert caplog.messages[-1] == naming(place.text, "the master serves on")


def test_a_master_serves_where_the_name_of_the_ensemble_is_not_known() -> None:
    with MasterProcess(
        "--announce", "zk://nowhere.invalid:2181/run", "--insecure", listen="0.0.0.0:0"
    ) as master:
        found = status_of(master.announcement["http"])["announcement"]

        assert not found["announced"]
        assert found["problem"] == naming("nowhere.invalid")
