"""Waiting until a master is announced, and looking again when it is lost."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.file import FilePlace
from gradwire_udp.discovery.places import place_of
from gradwire_udp.discovery.search import Search, Watch, masters_of
from support.dns_server import DnsServer
from support.waiting import wait_until
from support.wording import naming

NAME = "_gradwire._udp.example.test."
HERE = Announcement(master="10.0.2.4:40123", lasts_seconds=15.0)


def test_a_search_says_what_it_waits_for_and_for_how_long_it_did(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "run.json")
    search = Search(place, answer_seconds=0.1, start_seconds=0.3)
    assert search.purpose == naming(place.text)

    with pytest.raises(
        UnreachableError, match=naming(place.text, "waited 0.3 s", f"--announce {place.text}")
    ):
        search.run()

    assert search.purpose == naming(place.text, f"there is no file {place.path}")


def test_a_search_without_time_looks_once(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "run.json")
    place.path.write_bytes(HERE.written_at(time.time()).pack())

    assert Search(place, answer_seconds=0.0, start_seconds=0.0).run() == HERE


def test_a_place_that_does_not_answer_once_ends_no_wait() -> None:
    with DnsServer() as server, ThreadPoolExecutor(1) as pool:
        place = place_of(f"dns+srv://{server.address}/{NAME}")
        assert place is not None
        search = Search(place, answer_seconds=1.0, start_seconds=30.0)
        found = pool.submit(search.run)
        wait_until(lambda: server.asked == 3, "two seconds with answers")
        server.is_silent = True
        wait_until(lambda: found.done() or "no answer" in search.purpose, "an answer to be missed")

        server.records = [(NAME, "SRV", "0 0 1 late.test.")]
        server.is_silent = False

        assert found.result().master == "late.test:1"


def test_a_mistake_ends_a_search_at_once(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "run.json")
    place.path.write_text("[]")

    with pytest.raises(UsageError, match=naming(place.path)):
        Search(place, answer_seconds=60.0, start_seconds=60.0).run()


def test_where_masters_share_the_parameters_each_is_looked_up_by_its_number() -> None:
    both = replace(HERE, master="a:1, b:2*3", others=("c:3",))

    assert masters_of(both, 0) == ("a:1",)
    assert masters_of(both, 1) == ("b:2",)
    assert masters_of(both, 2) == ()
    assert masters_of(replace(HERE, others=("c:3",)), 0) == (HERE.master, "c:3")


def test_a_watch_tells_where_the_master_has_moved_to_and_only_then() -> None:
    with DnsServer([(NAME, "SRV", "0 0 1 one.test.")]) as server:
        place = place_of(f"dns+srv://{server.address}/{NAME}")
        assert place is not None
        moved: list[Sequence[str]] = []
        watch = Watch(place, 0, place.open().read(5.0))
        watch.on_moved = moved.append
        assert server.asked == 1

        watch.request()
        wait_until(lambda: server.asked == 2, "a look")
        for _ in range(1_000):
            watch.request()  # those of the same second cost nothing
        server.records = [(NAME, "SRV", "0 0 2 two.test."), (NAME, "SRV", "1 0 3 three.test.")]

        def is_told() -> bool:
            watch.request()
            return bool(moved)

        wait_until(is_told, "the new address")
        assert moved == [("two.test:2", "three.test:3")]
        assert server.asked <= 4


def test_the_order_that_chance_gives_to_records_of_one_priority_is_no_move() -> None:
    """That 20 looks find one order has a probability of 2e-6."""
    with DnsServer([(NAME, "SRV", f"0 1 {n} h{n}.test.") for n in (1, 2)]) as server:
        place = place_of(f"dns+srv://{server.address}/{NAME}")
        assert place is not None
        moved: list[Sequence[str]] = []
        for _ in range(20):
            watch = Watch(place, 0, Announcement(master="h1.test:1", others=("h2.test:2",)))
            watch.on_moved = moved.append
            asked = server.asked
            watch.request()
            wait_until(partial(_is_asked, server, asked), "a look")
        wait_until(lambda: not _is_looking(), "the last look to end")
        assert moved == []


def _is_asked(server: DnsServer, before: int) -> bool:
    return server.asked > before


def _is_looking() -> bool:
    return any(each.name == "gradwire-lookup" for each in threading.enumerate())


def test_a_watch_that_finds_nothing_says_so_and_leaves_the_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gradwire_udp.discovery.search.LOOK_SECONDS", 0.1)
    place = FilePlace(tmp_path / "run.json")
    watch = Watch(place, 0, HERE)
    moved: list[Sequence[str]] = []
    watch.on_moved = moved.append

    watch.request()

    wait_until(lambda: caplog.messages, "a warning")
    assert caplog.messages == [naming(place.text, place.path)]
    assert moved == []
