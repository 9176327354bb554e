"""What the documents of the API say, of odd workers and of many, and in which pieces."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from gradwire_protocol import Event, Role
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.masters.relaying import Opened, Relaying
from gradwire_protocol.messages.operating.scalars import (
    AGE_MAX,
    SERIES_NAME_CHARACTERS_MAX,
    STEP_MAX,
    Logged,
    pack_points,
)
from gradwire_protocol.messages.updates import Finish, Finished
from gradwire_server.branches.branch import Branch
from gradwire_server.config import MasterConfig
from gradwire_server.http.api.documents import (
    NAMES_SHOWN_MAX,
    POINTS_AT_ONCE,
    POINTS_MAX,
    POINTS_OF_ANSWER_MAX,
    RANKS,
    SCALARS_MAX,
    SILENT_SECONDS,
    clean,
)
from gradwire_server.series.journal import ENTRIES_MAX, TEXT_CHARACTERS_MAX, Happening
from support.api_side import INFINITY, NAN, Watched
from support.crowd import crowd
from support.members import member
from support.peer import join_request
from support.tiers import count
from support.training import worker_id_of

HOSTILE = "<img src=x onerror=alert(1)>\N{FERRIS WHEEL}"


def document(parts: Iterator[bytes]) -> Any:
    return json.loads(b"".join(parts))


def run_document(watched: Watched, run: str = "bert") -> Any:
    return document(watched.documents.run_parts(run))


def add_member(watched: Watched, rank: int, **options: Any) -> Any:
    added = member(rank, **options)
    watched.daemon.runs.in_progress["bert"].roster.add_member(added)
    return added


# Workers.


def test_a_worker_is_shown_with_what_it_has_reported() -> None:
    watched = Watched()
    peer = watched.daemon.enter("a", "bert")
    watched.daemon.train(peer, peer)
    watched.log("bert", 0, 7, {"loss": 1 / 3, "gradwire/steps_per_second": 12.3456789})
    watched.pass_seconds(0.5)

    [worker] = run_document(watched)["workers"]

    assert {key: worker[key] for key in ("rank", "name", "key_name", "transport", "state")} == {
        "rank": 0, "name": "a", "key_name": None, "transport": "udp", "state": "live"
    }  # fmt: skip
    assert (worker["updates"], worker["step"], worker["relay"]) == (2, 7, None)
    assert worker["figures"] == {"steps_per_second": 12.34568}
    assert worker["scalars"] == {"loss": 0.3333333}
    assert 0 <= worker["heard_seconds"] <= 0.6
    assert worker["rtt_seconds"] > 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(NAN, None), (INFINITY, None), (-INFINITY, None), (1e300, 1e300), (0.0, 0.0),
     (-1.23456789, -1.234568), (12345678.9, 12345680.0), (5e-324, 5e-324)],
)  # fmt: skip
def test_numbers_have_seven_digits_and_are_null_where_json_has_none(
    value: float, shown: float | None
) -> None:
    assert clean(value) == shown
    watched = Watched()
    watched.daemon.enter("a", "bert")
    watched.log("bert", 0, 7, {"loss": value, "gradwire/x": value})

    [worker] = run_document(watched)["workers"]
    curves = document(watched.documents.series_parts("bert", ["loss"], 10, None))["curves"]

    assert (worker["scalars"], worker["figures"]) == ({"loss": shown}, {"x": shown})
    assert [curve["mean"] for curve in curves] == [[shown], [shown]]


def test_names_are_said_as_they_are_and_break_nothing() -> None:
    watched = Watched()
    watched.daemon.enter("a", HOSTILE)
    [worker] = watched.daemon.runs.in_progress[HOSTILE].roster
    worker.join = replace(worker.join, name=HOSTILE)
    watched.log(HOSTILE, 0, 1, {HOSTILE: 1.0, "</script>": 2.0})

    found = run_document(watched, HOSTILE)

    assert found["name"] == HOSTILE
    assert found["workers"][0]["name"] == HOSTILE
    assert found["workers"][0]["scalars"] == {HOSTILE: 1.0, "</script>": 2.0}
    text = b"".join(watched.documents.run_parts(HOSTILE))
    assert text.isascii()
    assert b"\n" not in text, "an event of a stream ends with a line"


def test_few_scalars_of_a_worker_are_shown_and_the_rest_is_in_its_series() -> None:
    watched = Watched()
    watched.daemon.enter("a", "bert")
    watched.log("bert", 0, 1, {f"s{i}": 1.0 for i in range(200)})

    found = run_document(watched)

    assert len(found["workers"][0]["scalars"]) == SCALARS_MAX
    assert len(found["series"]) == 200


def test_an_observer_is_not_among_the_workers() -> None:
    watched = crowd(2)
    add_member(watched, 9, key_name="eyes", role=Role.OBSERVER)

    found = run_document(watched)

    assert [worker["rank"] for worker in found["workers"]] == [0, 1]
    assert [observer["rank"] for observer in found["observers"]] == [9]
    [line] = watched.documents.overview()["runs"]
    assert line["workers"] == 2


def test_a_worker_with_a_key_is_named_by_it() -> None:
    watched = crowd(1)
    add_member(watched, 1, key_name="gpu1")

    worker = run_document(watched)["workers"][1]

    assert (worker["key_name"], worker["name"]) == ("gpu1", "gpu1 at worker1")
    assert (worker["rtt_seconds"], worker["heard_seconds"]) == (None, None), "not connected yet"


# States.


def state_of(watched: Watched, rank: int = 0) -> str:
    [state] = [w["state"] for w in run_document(watched)["workers"] if w["rank"] == rank]
    return str(state)


def test_a_worker_is_waiting_founding_and_then_live() -> None:
    watched = Watched()
    first = watched.daemon.ask("a", "bert")
    watched.daemon.until(lambda: "bert" in watched.daemon.runs.in_progress)
    watched.daemon.until(lambda: bool(first.heard))
    second = watched.daemon.ask("b", "bert")
    watched.daemon.network.run_for(1.0)
    before = [state_of(watched, rank) for rank in (0, 1)]
    first.say_block(0, np.zeros(6, np.int32))
    watched.daemon.until(lambda: watched.run("bert").founded)
    watched.daemon.network.run_for(1.0)

    assert before == ["founding", "waiting"]
    assert state_of(watched) == "live"
    assert state_of(watched, 1) in ("syncing", "live")
    assert second.ended is None


def test_a_worker_that_was_sent_something_and_says_nothing_is_silent() -> None:
    watched = Watched()
    first, second = (watched.daemon.enter(name, "bert") for name in "ab")
    watched.daemon.network.run_for(1.0)
    idle = state_of(watched, 1)
    watched.daemon.network.kill(second.host)
    watched.daemon.network.run_for(SILENT_SECONDS + 0.1)
    watched.daemon.train(first)
    at_first = state_of(watched, 1)
    watched.daemon.network.run_for(SILENT_SECONDS + 0.5)

    assert (idle, at_first) == ("live", "live"), "also where nothing was said for long"
    assert state_of(watched, 1) == "silent"
    assert state_of(watched, 0) == "live"
    shown = run_document(watched)["workers"][1]
    assert shown["heard_seconds"] > SILENT_SECONDS
    assert shown["queued_bytes"] > 0


def test_a_worker_in_quarantine_is_shown_so_whatever_else_it_is() -> None:
    watched = crowd(2)
    other = watched.daemon.runs.in_progress["bert"].roster.at(1)
    assert other is not None
    other.quarantine, other.last_sequence = [], 3

    assert [state_of(watched, rank) for rank in (0, 1)] == ["live", "quarantined"]


def test_a_worker_that_has_finished_is_shown_until_it_is_gone() -> None:
    watched = Watched()
    peer, other = (watched.daemon.enter(name, "bert") for name in "ab")
    peer.say(Finish(0))
    watched.daemon.network.run_for(0.5)

    assert state_of(watched) == "finished"
    found = watched.daemon.runs.in_progress["bert"].roster.at(0)
    assert found is not None
    found.leaving = "done"
    assert state_of(watched) == "leaving"
    other.say(Finish(0))
    peer.wait_for(Finished)


def test_a_worker_behind_a_relay_has_its_number_and_what_the_relay_knows() -> None:
    """The relay's connection leads nowhere; a run with real relays is in the simulation."""
    watched = crowd(1)
    found = member(7)
    events: list[Event] = []
    branch = Branch(
        found.link,
        Relaying("10.0.0.7:40123", "10.0.0.1:40123"),
        3,
        lambda connection, event: events.append(event),
    )
    branch.receive(Opened(5, None, None))
    relayed = member(1, link=Link(branch.peer(5)))
    watched.daemon.runs.in_progress["bert"].roster.add_member(relayed)

    shown = run_document(watched)["workers"][1]

    assert (shown["relay"], shown["address"]) == (3, "10.0.0.7:40123#5")
    assert (shown["transport"], shown["rtt_seconds"], shown["queued_bytes"]) == ("udp", None, 0)


# Runs.


def test_a_run_that_is_over_has_no_document() -> None:
    watched = Watched()
    peer = watched.daemon.enter("a", "bert")
    assert watched.documents.has("bert")
    watched.daemon.finish(peer, 0)

    assert not watched.documents.has("bert")
    assert list(watched.documents.run_parts("bert")) == []
    assert list(watched.documents.events_parts("bert")) == []
    assert list(watched.documents.run_parts("other")) == []
    assert watched.documents.overview()["runs"] == []


def test_seconds_are_those_of_the_run_s_series_everywhere() -> None:
    """In its document, in events, in what workers have logged, and in what the master measures."""
    watched = Watched()
    watched.daemon.enter("a", "bert")
    watched.pass_seconds(7.0)
    assert run_document(watched)["seconds"] is None
    events = document(watched.documents.events_parts("bert"))["events"]
    assert {event["seconds"] for event in events} == {None}
    watched.log("bert", 0, 1, {"loss": 1.0})
    watched.pass_seconds(2.0)
    watched.log("bert", 0, 2, {"loss": 1.0})
    watched.pass_seconds(1.0)
    watched.daemon.enter("b", "bert")

    names = ["loss", "master/workers"]
    curves = document(watched.documents.series_parts("bert", names, 10, [0]))["curves"]
    events = document(watched.documents.events_parts("bert"))["events"]

    assert run_document(watched)["seconds"] == pytest.approx(3.0, abs=0.1)
    assert [curve["seconds"] for curve in curves[:2]] == [pytest.approx([0.0, 2.0])] * 2
    assert curves[2]["seconds"] == pytest.approx([2.0, 3.0], abs=0.1)
    assert events[-1]["seconds"] == pytest.approx(3.0, abs=0.1)
    assert events[0]["seconds"] < -6.0


def test_the_clock_of_a_worker_and_how_long_it_says_ago_change_no_other_time() -> None:
    watched = Watched()
    watched.daemon.enter("a", "bert")
    series, now = watched.run("bert").series, watched.daemon.network.now
    ages = (0, AGE_MAX, 5_000)
    for number, age in enumerate(ages, 1):
        points = pack_points([(0, number, age, 1.0)])
        series.add(0, b"w", Logged(number, ("loss",), points, 0), now + number)
    watched.daemon.network.run_for(10.0)

    [_, curve] = document(watched.documents.series_parts("bert", ["loss"], 10, None))["curves"]

    assert curve["seconds"] == [0.0, 0.0, 0.0], "nothing is before the first, or after now"
    assert run_document(watched)["seconds"] == pytest.approx(9.0, abs=0.01)


def test_many_events_are_the_newest_and_their_texts_are_cut() -> None:
    watched = Watched()
    watched.daemon.enter("a", "bert")
    journal = watched.daemon.runs.in_progress["bert"].state.journal
    for number in range(ENTRIES_MAX + 10):
        text = f"{number} " + HOSTILE * 1_000
        journal.note(Happening.JOINED, text, run="bert", at=1.0, rank=number % 7)
    journal.note(Happening.LEFT, "of another one", run="gpt", at=1.0)

    found = document(watched.documents.events_parts("bert"))

    assert len(found["events"]) == ENTRIES_MAX - 1
    assert found["last"] == found["events"][-1]["number"] + 1
    assert {len(event["text"]) for event in found["events"]} == {TEXT_CHARACTERS_MAX}


def test_a_run_has_no_events_of_an_earlier_one_of_its_name() -> None:
    watched = Watched()
    peer = watched.daemon.enter("one", "bert")
    assert "(one)" in str(document(watched.documents.events_parts("bert")))
    watched.daemon.finish(peer, 0)
    watched.daemon.enter("two", "bert")

    found = document(watched.documents.events_parts("bert"))["events"]

    assert "(one)" not in str(found)
    assert [event["kind"] for event in found] == ["joined", "began"]


# Curves.


def logging_crowd(workers: int, names: int, steps: int) -> Watched:
    watched = crowd(workers)
    for rank in range(workers):
        watched.log_much("bert", rank, names, steps)
    return watched


@pytest.mark.parametrize("points", [1, 7, 64, POINTS_MAX])
def test_a_curve_has_about_as_many_points_as_were_asked_for(points: int) -> None:
    watched = logging_crowd(2, 1, 500)

    curves = document(watched.documents.series_parts("bert", ["s0"], points, None))["curves"]

    assert [curve["rank"] for curve in curves] == [None, 0, 1]
    for curve in curves:
        assert min(points, 500) / 2 <= len(curve["step"]) <= points + 1
        assert curve["step"][0] == 0
        assert curve["step"][-1] + curve["steps"] >= 500


def test_the_first_workers_are_shown_unless_others_are_named() -> None:
    watched = logging_crowd(RANKS + 4, 1, 3)

    def ranks(wanted: list[int] | None) -> list[int]:
        parts = watched.documents.series_parts("bert", ["s0"], 10, wanted)
        return [curve["rank"] for curve in document(parts)["curves"]][1:]

    assert ranks(None) == list(range(RANKS))
    assert ranks([RANKS + 1, 2, 4_000]) == [2, RANKS + 1]
    assert ranks([]) == []


def test_an_answer_has_a_limit_of_points_however_many_curves_are_in_it() -> None:
    workers, steps = count(200, quick=40, of="workers"), 600
    watched = logging_crowd(workers, 4, steps)
    names = [f"s{i}" for i in range(4)]

    parts = watched.documents.series_parts("bert", names, POINTS_MAX, range(workers))
    curves = document(parts)["curves"]

    assert len(curves) == 4 * (workers + 1)
    points = sum(len(curve["step"]) for curve in curves)
    assert points <= POINTS_OF_ANSWER_MAX + 2 * len(curves)
    assert {curve["step"][0] for curve in curves} == {0}


def test_workers_whose_steps_are_far_apart_are_in_one_answer() -> None:
    watched = crowd(2)
    for rank, step in ((0, 0), (0, 1), (1, STEP_MAX)):
        watched.log("bert", rank, step, {"loss": 1.0})

    curves = document(watched.documents.series_parts("bert", ["loss"], 10, None))["curves"]

    assert [curve["step"] for curve in curves] == [[0, 1, STEP_MAX], [0, 1], [STEP_MAX]]


def test_what_the_master_measures_has_as_many_points_as_were_asked_for() -> None:
    watched = crowd(1)
    for _ in range(101):
        watched.pass_seconds()

    [curve] = document(watched.documents.series_parts("bert", ["master/workers"], 30, None))[
        "curves"
    ]

    assert (curve["name"], curve["rank"], curve["steps"]) == ("master/workers", None, 4)
    assert len(curve["step"]) <= 30
    assert set(curve["mean"]) == {1.0}


def test_the_names_in_a_document_have_a_limit() -> None:
    workers = count(16, quick=10, of="workers")
    watched = crowd(workers)
    watched.pass_seconds()
    watched.pass_seconds()
    for rank in range(workers):
        names = {f"{rank}.{i}".ljust(SERIES_NAME_CHARACTERS_MAX, "x"): 1.0 for i in range(256)}
        watched.log("bert", rank, 1, names)

    found = run_document(watched)["series"]

    logged = [name for name in found if not name.startswith("master/")]
    assert len(logged) == min(NAMES_SHOWN_MAX, 256 * workers)
    assert document(watched.documents.logged_parts("bert"))["series"] == logged
    assert list(watched.documents.logged_parts("gpt")) == [], "there is no such run"
    assert "master/workers" in found


# In pieces.


def test_the_document_of_200_workers_comes_in_small_parts() -> None:
    watched = crowd(200)
    for rank in range(200):
        watched.log("bert", rank, 1, {f"s{i}": 1.0 for i in range(100)})

    parts = list(watched.documents.run_parts("bert"))
    found = json.loads(b"".join(parts))

    assert [worker["rank"] for worker in found["workers"]] == list(range(200))
    assert len(parts) == 202
    assert max(len(part) for part in parts) < 4_096


def test_curves_come_in_small_parts() -> None:
    watched = logging_crowd(3, 1, 2_000)

    parts = list(watched.documents.series_parts("bert", ["s0"], POINTS_MAX, None))

    longest = POINTS_AT_ONCE * len("-1.234567e-300, ")
    assert max(len(part) for part in parts) <= longest
    assert len(json.loads(b"".join(parts))["curves"]) == 4


@pytest.mark.deep("measures how long steps take, of which most must be short")
def test_no_step_of_a_document_takes_long() -> None:
    watched = logging_crowd(200, 2, 600)
    documents: list[Callable[[], Iterator[bytes]]] = [
        lambda: watched.documents.run_parts("bert"),
        lambda: watched.documents.series_parts("bert", ["s0", "s1"], 1_000, range(200)),
        lambda: watched.documents.events_parts("bert"),
    ]
    for make in documents:
        shortest = None
        for _ in range(5):  # other processes take their time, too: the best of some tries
            times = [perf_counter(), *(perf_counter() for _ in make())]
            steps = np.array([after - before for before, after in pairwise(times)])
            shortest = steps if shortest is None else np.minimum(shortest, steps)
        assert shortest is not None
        assert shortest.max() < 0.005


def test_a_join_says_which_version_a_worker_has() -> None:
    watched = Watched()
    peer = watched.daemon.dial("a")
    join = join_request(run="bert", name="a", worker_id=worker_id_of("a"))
    peer.say(replace(join, version="9.8.7"))
    watched.daemon.until(lambda: bool(peer.heard))

    assert run_document(watched)["workers"][0]["version"] == "9.8.7"


def test_where_several_masters_share_the_parameters_an_overview_names_them() -> None:
    masters = "10.0.0.1:40123,10.0.0.2:40123*2,10.0.0.3:40123"
    one = Watched(MasterConfig(shard="2/3", shards=masters, recovery_seconds=0))

    found = one.documents.overview()

    assert found["shard"] == "2/3"
    assert found["shards"] == ["10.0.0.1:40123", "10.0.0.2:40123", "10.0.0.3:40123"]
    assert Watched().documents.overview()["shards"] == []
