"""The JSON API is what its OpenAPI document says, whatever runs and series are called."""

import csv
import io
import json
import re
from collections.abc import Mapping
from time import time
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from aiohttp import web

from gradwire_protocol.messages.logged.histograms import QUANTITIES, ratio_series
from gradwire_protocol.messages.updates import Finish, Finished, Leave
from gradwire_server.http.access import Access, Token
from gradwire_server.http.api import PREFIX
from gradwire_server.http.curves import NAMES_MAX, POINTS_MAX
from gradwire_server.metrics import HttpRefusal
from support.api_side import Viewer, Watched, busy, fetch, watching
from support.http_side import HttpSide

HOSTILE = (
    "a run/with <all>, 100 %",
    "<script>alert('%41')</script>",
    "größe/模型 🎡",
    "a+b&c=d;e#f?g",
    "../../etc/passwd",
    "%2F%00",
    "series",
)
"""Names of runs and of series."""

TOKEN = "correct-horse-battery"


async def described(side: HttpSide) -> dict[str, Any]:
    found: dict[str, Any] = (await fetch(side, "openapi.json")).document
    return found


def problems(value: Any, schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[str]:
    """Return in what a value is not as a schema says; it knows those that the document has."""
    if "$ref" in schema:
        return problems(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema:
        each = [problems(value, some, schemas) for some in schema["anyOf"]]
        return min(each, key=len)
    kinds: dict[str, Any] = {
        "string": str, "integer": int, "number": int | float, "boolean": bool, "null": type(None),
        "array": list, "object": dict,
    }  # fmt: skip
    if "type" in schema and not isinstance(value, kinds[schema["type"]]):
        return [f"{value!r} is no {schema['type']}"]
    if isinstance(value, list):
        parts = {str(i): (each, schema.get("items", {})) for i, each in enumerate(value)}
    elif isinstance(value, dict) and "properties" in schema:
        if value.keys() != set(schema["required"]):
            return [f"{value.keys() ^ set(schema['required'])} differ"]
        parts = {name: (value[name], each) for name, each in schema["properties"].items()}
    elif isinstance(value, dict):
        parts = {
            name: (each, schema.get("additionalProperties", {})) for name, each in value.items()
        }
    else:
        parts = {}
    return [
        f"{name}: {text}"
        for name, (each, of) in parts.items()
        for text in problems(each, of, schemas)
    ]


async def test_the_document_has_every_route_and_every_path_answers_as_it_says() -> None:
    watched = busy()
    async with watching(watched) as side:
        document = await described(side)
        application: web.Application = side.server._runner.app
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in application.router.routes()
            if route.resource is not None and route.resource.canonical.startswith(PREFIX)
        }
        paths = {(m, path) for path, methods in document["paths"].items() for m in methods}
        answers = {}
        for path, methods in document["paths"].items():
            if "get" in methods and not path.endswith("stream"):
                asked = path.removeprefix(PREFIX).replace("{run}", "bert")
                query = "?name=loss&name=bad&name=master/workers" if "series" in path else ""
                answers[path] = await fetch(side, asked + query)

    assert {route for route in routes if route[0] != "head"} == paths
    schemas = document["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))) == schemas.keys()
    for path, answer in answers.items():
        [(kind, content)] = document["paths"][path]["get"]["responses"]["200"]["content"].items()
        assert (answer.status, answer.headers["Content-Type"].split(";")[0]) == (200, kind)
        assert problems(answer.document, content["schema"], schemas) == [], path


async def test_the_stream_says_what_the_documents_say() -> None:
    watched = busy()
    async with watching(watched) as side:
        schemas = (await described(side))["components"]["schemas"]
        viewer = await Viewer.come(side, "?run=bert")
        run = await viewer.wait_for("run")
        watched.daemon.enter("c", "bert")
        events = await viewer.wait_for("events")
        [overview] = (await fetch(side, "overview")).document["runs"]
        await viewer.go()

    assert problems(run, schemas["RunDocument"], schemas) == []
    assert problems(events, schemas["Events"], schemas) == []
    assert overview["name"] == run["name"] == "bert"
    assert [event["kind"] for event in events["events"]] == ["joined"]


# Runs that are over.


def over() -> Watched:
    """Return runs of which one has finished: one worker was killed, two have made it to the end."""
    watched = Watched()
    workers = [watched.daemon.enter(name, "bert") for name in "abc"]
    watched.pass_seconds()
    watched.daemon.train(*workers[:2])
    for rank in range(3):
        for step in range(5):
            watched.log("bert", rank, step, {"loss": 1 / (1 + step), "gradwire/x": 2.0})
    watched.pass_seconds()
    watched.daemon.network.kill(workers[2].host)
    roster = watched.daemon.runs.in_progress["bert"].roster
    watched.daemon.until(lambda: len(roster.workers) == 2)
    for worker in workers[:2]:
        worker.say(Finish(1))
    for worker in workers[:2]:
        worker.wait_for(Finished)
        worker.say(Leave(1, "done"))
        worker.wait_for_end()
    assert watched.daemon.names == []
    return watched


async def test_what_a_run_that_is_over_was_last_stays_to_be_seen() -> None:
    watched = over()
    ended = watched.daemon.network.now
    watched.pass_seconds(100.0)
    async with watching(watched) as side:
        schemas = (await described(side))["components"]["schemas"]
        lines = (await fetch(side, "runs")).document
        overview = (await fetch(side, "overview")).document
        run = (await fetch(side, "runs/bert")).document
        events = (await fetch(side, "runs/bert/events")).document
        curves = (await fetch(side, "runs/bert/series?name=loss")).document["curves"]
        figures = (await fetch(side, "runs/bert/series?name=master/workers")).document["curves"]
        table = (await fetch(side, "runs/bert/series?format=csv")).text

    assert problems(lines, schemas["RunLines"], schemas) == []
    assert problems(run, schemas["RunDocument"], schemas) == []
    assert problems(events, schemas["Events"], schemas) == []
    [line] = lines["over"]
    assert (lines["runs"], [each["name"] for each in overview["over"]]) == ([], ["bert"])
    assert (line["name"], line["workers"], line["updates"], line["finished"]) == (
        "bert", 3, 2, True
    )  # fmt: skip
    assert run["ended_unix_time"] == run["unix_time"] == pytest.approx(time() - 100.0, abs=60.0)
    assert run["seconds"] == pytest.approx(ended - run_began(watched), abs=1.0)
    states = [(w["rank"], w["state"], w["step"], w["scalars"]["loss"]) for w in run["workers"]]
    assert states == [
        (0, "finished", 4, 0.2), (1, "finished", 4, 0.2), (2, "lost", 4, 0.2)
    ]  # fmt: skip
    assert [event["kind"] for event in events["events"]] == [
        "joined", "began", "joined", "joined", "lost", "finished", "left", "left"
    ]  # fmt: skip
    assert [curve["rank"] for curve in curves] == [None, 0, 1, 2]
    assert curves[0]["mean"] == pytest.approx([1.0, 0.5, 1 / 3, 0.25, 0.2])
    assert figures[0]["mean"], "the figures of the run, too"
    assert "loss,2,4," in table


def run_began(watched: Watched) -> float:
    [kept] = watched.daemon.runs.over
    assert kept.series.began is not None
    return kept.series.began


async def test_the_name_of_a_run_is_that_of_the_newest_and_older_ones_have_a_number() -> None:
    watched = over()
    watched.daemon.enter("d", "bert")
    watched.log("bert", 0, 1, {"other": 1.0})
    async with watching(watched) as side:
        during = (await fetch(side, "runs")).document
        new = (await fetch(side, "runs/bert")).document
        new_events = (await fetch(side, "runs/bert/events")).document["events"]
        old = (await fetch(side, "runs/bert~1")).document
        watched.daemon.order("end-run")
        after = (await fetch(side, "runs")).document
        newest = (await fetch(side, "runs/bert")).document
        answers = [(await fetch(side, f"runs/bert~{number}")).status for number in (1, 2, 3)]
        order = {"action": "expel", "name": "0", "run": "bert"}
        refused = await fetch(side, "orders", "POST", json=order)

    assert [line["name"] for line in during["runs"]] == ["bert"]
    assert [line["name"] for line in during["over"]] == ["bert~1"]
    assert [line["name"] for line in after["over"]] == ["bert", "bert~1"]
    assert ("loss" in old["series"], "loss" in new["series"]) == (True, False)
    assert [event["kind"] for event in new_events] == ["joined", "began"], "its own"
    assert "other" in newest["series"]
    assert (newest["finished"], after["over"][0]["finished"]) == (False, False), "it was ended"
    assert answers == [200, 200, 404]
    assert (refused.status, "is over" in refused.text) == (409, True)


# What it says.


async def test_curves_are_of_the_series_and_workers_that_were_asked_for() -> None:
    async with watching(busy()) as side:
        found = (await fetch(side, "runs/bert/series?name=loss&name=bad&ranks=1")).document
        mean = (await fetch(side, "runs/bert/series?name=loss&ranks=&points=2")).document
        figures = (await fetch(side, "runs/bert/series?name=master/updates_per_second")).document
        nothing = (await fetch(side, "runs/bert/series?name=other")).document

    assert [(c["name"], c["rank"]) for c in found["curves"]] == [
        ("loss", None), ("loss", 1), ("bad", None), ("bad", 1)
    ]  # fmt: skip
    assert found["curves"][1]["mean"] == pytest.approx([1.0, 0.5, 1 / 3, 0.25, 0.2])
    assert found["curves"][3]["low"] == [None] * 5, "what is not finite"
    assert [(curve["rank"], len(curve["step"])) for curve in mean["curves"]] == [(None, 2)]
    [updates] = figures["curves"]
    assert (updates["rank"], len(updates["step"])) == (None, len(updates["mean"]))
    assert nothing == {"curves": []}


async def test_a_download_has_every_curve_as_lines_or_as_a_table() -> None:
    async with watching(busy()) as side:
        lines = await fetch(side, "runs/bert/series?format=jsonl&name=loss&name=bad")
        table = await fetch(side, "runs/bert/series?format=csv&name=loss")
        everything = await fetch(side, "runs/bert/series?format=jsonl")

    rows = [json.loads(line) for line in lines.text.splitlines()]
    assert {(row["series"], row["rank"]) for row in rows} == {
        (name, rank) for name in ("loss", "bad") for rank in (None, 0, 1)
    }
    assert {row["mean"] for row in rows if row["series"] == "bad"} == {None}
    read = list(csv.DictReader(io.StringIO(table.text)))
    assert [float(row["mean"]) for row in read if row["rank"] == "1"] == [
        row["mean"] for row in rows if (row["series"], row["rank"]) == ("loss", 1)
    ]
    assert '"gradwire/x"' in everything.text
    assert table.headers["Content-Disposition"] == 'attachment; filename="curves.csv"'


async def test_histograms_are_of_the_layer_that_was_asked_for_or_of_all() -> None:
    async with watching(busy()) as side:
        run = (await fetch(side, "runs/bert")).document
        every = (await fetch(side, "runs/bert/histograms")).document
        bias = (await fetch(side, "runs/bert/histograms?layer=bias")).document
        nothing = (await fetch(side, "runs/bert/histograms?layer=other")).document

    assert (run["histograms"], run["histograms_dropped"]) == (1, 0)
    assert (every["rank"], every["step"]) == (0, 4)
    assert [layer["name"] for layer in every["layers"]] == ["weight", "bias"]
    assert [(each["layer"], each["quantity"]) for each in every["histograms"]] == [
        (layer, quantity) for layer in ("weight", "bias") for quantity in QUANTITIES
    ]
    assert bias == {**every, "histograms": every["histograms"][2:]}
    assert nothing == {**every, "histograms": []}


async def test_the_ratios_of_layers_are_series_and_no_figures_of_workers() -> None:
    watched = busy()
    watched.log("bert", 0, 5, {ratio_series("weight"): 0.25})
    async with watching(watched) as side:
        [layer, _] = (await fetch(side, "runs/bert/histograms")).document["layers"]
        name = urlencode({"name": layer["ratio"]})
        [mean, _] = (await fetch(side, f"runs/bert/series?{name}")).document["curves"]
        run = (await fetch(side, "runs/bert")).document

    assert (mean["step"], mean["mean"]) == ([5], [0.25])
    assert layer["ratio"] in run["series"]
    assert run["workers"][0]["figures"] == {"x": 2.0}
    assert run["workers"][0]["scalars"].keys() == {"loss", "bad"}


async def test_events_come_after_the_one_that_was_named() -> None:
    async with watching(busy()) as side:
        found = (await fetch(side, "runs/bert/events")).document
        later = (await fetch(side, f"runs/bert/events?after={found['last'] - 1}")).document

    assert [event["kind"] for event in found["events"]] == ["joined", "began", "joined"]
    assert [event["number"] for event in later["events"]] == [found["last"]]


async def test_a_worker_that_does_not_answer_is_silent_after_a_second() -> None:
    watched = Watched()
    silent, other = (watched.daemon.enter(name, "bert") for name in "ab")
    watched.daemon.network.kill(silent.host)
    watched.daemon.train(other)
    watched.pass_seconds(1.5)

    [body] = [b"".join(watched.documents.run("bert"))]

    workers = json.loads(body)["workers"]
    assert [worker["state"] for worker in workers] == ["silent", "live"]
    assert workers[0]["heard_seconds"] > 1.0
    assert [worker["lacks_updates"] for worker in workers] == [1, 0]


def test_a_worker_that_waits_most_of_its_time_is_held_by_the_one_that_it_waits_for() -> None:
    watched = Watched()
    waits = [{"wait_ratio": 0.6, "waited_for": 2}, {"wait_ratio": 0.4, "waited_for": 2}, {}]
    for rank, figures in enumerate(waits):
        watched.daemon.enter("abc"[rank], "bert")
        watched.log("bert", rank, 1, {f"gradwire/{name}": n for name, n in figures.items()})

    workers = json.loads(b"".join(watched.documents.run("bert")))["workers"]

    assert [worker["held_by"] for worker in workers] == [2, None, None]


@pytest.mark.parametrize(("given", "can"), [(None, False), ("viewer", False), ("operator", True)])
async def test_a_client_learns_whether_it_may_order(given: str | None, can: bool) -> None:
    tokens = {"viewer": TOKEN, "operator": TOKEN[::-1]}
    viewer, operator = (Token(text.encode()) for text in tokens.values())
    access = Access(token=viewer, operator_token=operator)
    async with watching(busy(), access=access) as side:
        headers = {} if given is None else {"Authorization": f"Bearer {tokens[given]}"}
        answer = await fetch(side, "access", headers=headers)

    assert answer.status == (401 if given is None else 200)
    assert given is None or answer.document == {"orders": can}


# Names, and what makes no sense.


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_run_and_a_series_of_any_name_are_found_by_it(name: str) -> None:
    watched = busy(name)
    watched.log(name, 0, 1, {name: 1.0})
    watched.pass_seconds()
    watched.look(name, 5, name)
    path = "runs/" + quote(name, safe="")
    async with watching(watched) as side:
        run = (await fetch(side, path)).document
        curves = (await fetch(side, f"{path}/series?{urlencode({'name': name})}")).document
        of_layer = f"{path}/histograms?{urlencode({'layer': name})}"
        histograms = (await fetch(side, of_layer)).document["histograms"]
        viewer = await Viewer.come(side, "?" + urlencode({"run": name}))
        shown = await viewer.wait_for("run")
        await viewer.go()
        order = {"action": "expel", "name": "1", "run": name}
        done = await fetch(side, "orders", "POST", json=order)
        left = [worker["rank"] for worker in (await fetch(side, path)).document["workers"]]

    assert (run["name"], shown["name"]) == (name, name)
    assert name in run["series"]
    assert [each["layer"] for each in histograms] == [name] * len(QUANTITIES)
    assert [(curve["name"], curve["rank"]) for curve in curves["curves"]] == [
        (name, None),
        (name, 0),
    ]
    assert (done.status, left) == (200, [0])


@pytest.mark.parametrize("run", ["nothing", "x" * 2_000, "\x00\n", "\N{FERRIS WHEEL}" * 300])
async def test_a_run_that_there_is_not_is_named_with_those_that_there_are(run: str) -> None:
    ends = "", "/events", "/series?name=loss", "/histograms"
    paths = [f"runs/{quote(run, safe='')}{end}" for end in ends]
    async with watching(busy()) as side:
        answers = [await fetch(side, path) for path in paths]
        answers.append(await fetch(side, "stream?" + urlencode({"run": run})))

    assert [answer.status for answer in answers] == [404] * 5
    for answer in answers:
        assert "'bert'" in answer.text
        assert len(answer.text) < 1_500
        assert answer.text.isprintable()


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("series", "name=loss"),
        ("series?" + "&".join(f"name={i}" for i in range(NAMES_MAX + 1)), str(NAMES_MAX)),
        ("series?name=loss&points=0", str(POINTS_MAX)),
        ("series?name=loss&points=4097", str(POINTS_MAX)),
        ("series?name=loss&points=1e3", "points='1e3'"),
        ("series?name=loss&points=" + "9" * 5_000, str(POINTS_MAX)),
        ("series?name=loss&points=%00%0A", r"'\x00\n'"),
        ("series?name=loss&ranks=a", "ranks='a'"),
        ("series?name=loss&ranks=" + "9" * 5_000, "ranks="),
        ("series?format=xml", "json, jsonl, csv"),
        ("events?after=-1", "after='-1'"),
    ],
)
async def test_a_query_that_makes_no_sense_is_told_what_is_wrong(query: str, named: str) -> None:
    async with watching(busy()) as side:
        answer = await fetch(side, f"runs/bert/{query}")

    assert answer.status == 400
    assert named in answer.text
    assert len(answer.text) < 500
    assert side.refusals == {HttpRefusal.BAD_REQUEST: 1}
