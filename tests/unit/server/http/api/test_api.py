"""The JSON API is what its OpenAPI document says, whatever runs and series are called."""

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from jsonschema import Draft202012Validator

from gradwire_protocol.messages.operating.orders import Action
from gradwire_server.http.api.api import OPENAPI, PARAMETERS_MAX, PREFIX, TOKEN_PARAMETERS
from gradwire_server.http.api.documents import NAMES_MAX, NAMES_SHOWN_MAX, POINTS, POINTS_MAX
from gradwire_server.metrics import HttpRefusal
from gradwire_server.series.journal import Happening
from gradwire_server.state.roster import Phase
from support.api_side import (
    NAN,
    Answer,
    Viewer,
    Watched,
    columns_of,
    fetch,
    give_order,
    order_request,
    send,
    watching,
)
from support.http_side import HttpSide, ask, request, status_of
from support.waiting import until

DOCUMENT: dict[str, Any] = json.loads(OPENAPI)
PATHS: dict[str, Any] = DOCUMENT["paths"]
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]

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


def validated(answer: Answer, schema: Mapping[str, Any]) -> Any:
    """Return what an answer says, after comparing it with a schema of the document."""
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(answer.document)
    return answer.document


def schema_of(path: str, method: str = "get", kind: str = "application/json") -> dict[str, Any]:
    found: dict[str, Any] = PATHS[path][method]["responses"]["200"]["content"][kind]["schema"]
    return found


def busy(run: str = "bert") -> Watched:
    """Return runs in which something has happened."""
    watched = Watched()
    first, second = (watched.daemon.enter(name, run) for name in "ab")
    watched.daemon.train(first, second, first)
    watched.pass_seconds()
    watched.daemon.train(second)
    for rank in (0, 1):
        for step in range(5):
            watched.log(run, rank, step, {"loss": 1 / (1 + step), "bad": NAN, "gradwire/x": 2.0})
    watched.pass_seconds()
    return watched


# The document.


def test_the_document_has_sound_schemas_and_no_reference_to_nowhere() -> None:
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)
    found = re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT))

    assert DOCUMENT["openapi"] == "3.1.0"
    assert {ref.rpartition("/")[0] for ref in found} == {"#/components/schemas"}
    assert {ref.rpartition("/")[2] for ref in found} == SCHEMAS.keys()


def test_a_parameter_in_a_path_is_one_that_is_described() -> None:
    for path, methods in PATHS.items():
        for operation in methods.values():
            named = [p for p in operation.get("parameters", ()) if p["in"] == "path"]
            assert {p["name"] for p in named} == set(re.findall(r"{(\w+)}", path))
            assert all(p["required"] for p in named)
            assert "200" in operation["responses"]


def test_the_document_says_the_same_as_the_code() -> None:
    parameters = {p["name"]: p["schema"] for p in PATHS[SERIES]["get"]["parameters"]}
    states = {*(phase.name.lower() for phase in Phase), "silent", "quarantined", "finished",
              "leaving"}  # fmt: skip

    assert SCHEMAS["Order"]["properties"]["action"]["enum"] == list(Action)
    assert SCHEMAS["Event"]["properties"]["kind"]["enum"] == list(Happening)
    assert set(SCHEMAS["Worker"]["properties"]["state"]["enum"]) == states
    assert parameters["name"]["maxItems"] == NAMES_MAX
    assert (parameters["points"]["maximum"], parameters["points"]["default"]) == (
        POINTS_MAX, POINTS
    )  # fmt: skip
    for of in ("Run", "Logged"):
        assert f"{NAMES_SHOWN_MAX:,}" in SCHEMAS[of]["properties"]["series"]["description"]


RUN, EVENTS, SERIES = (PREFIX + "runs/{run}" + end for end in ("", "/events", "/series"))
STREAM, ORDERS = PREFIX + "stream", PREFIX + "orders"


async def ask_for(side: HttpSide, path: str) -> Answer:
    """Ask for a path of the document as it says."""
    asked = path.replace("{run}", "bert")
    if path == ORDERS:
        return await give_order(side, "status")
    if path == SERIES:
        asked += "?name=loss&name=bad&name=master/workers&points=3&ranks=1"
    return await fetch(side, asked)


@pytest.mark.parametrize("path", [path for path in PATHS if path != STREAM])
async def test_each_path_of_the_document_answers_as_its_schema_says(path: str) -> None:
    [method] = PATHS[path]
    async with watching(busy()) as side:
        answer = await ask_for(side, path)

    assert answer.status == 200, answer.text
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert validated(answer, schema_of(path, method))


async def test_the_stream_of_the_document_has_what_the_paths_have() -> None:
    watched = busy()
    async with watching(watched) as side:
        viewer = await Viewer.come(side, "?run=bert")
        overview = await viewer.wait_for("overview")
        run = await viewer.wait_for("run")
        watched.daemon.order("checkpoint", run="bert")  # is refused, and no event
        watched.daemon.enter("c", "bert")
        events = await viewer.wait_for("events")
        await viewer.go()

    for data, name in ((overview, "Overview"), (run, "Run"), (events, "Events")):
        validated(Answer(200, {}, json.dumps(data).encode()), SCHEMAS[name])
    assert b"Content-Type: text/event-stream" in viewer.heard
    assert [event["kind"] for event in events["events"]] == ["joined"]


@pytest.mark.parametrize(
    "path",
    [
        "", "overview/", "overview/x", "runs", "runs/", "runs/bert/", "runs/bert/nothing",
        "runs/bert/series/", "streams", "openapi", "orders/x", "%2e%2e/metrics",
    ],
)  # fmt: skip
async def test_no_path_but_those_of_the_document_is_answered(path: str) -> None:
    async with watching(busy()) as side:
        answer = await fetch(side, path)

    assert answer.status == 404
    assert side.refusals == {HttpRefusal.NOT_FOUND: 1}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", list(PATHS))
async def test_each_path_has_the_method_of_the_document_and_head(path: str, method: str) -> None:
    allowed = ["POST"] if path == ORDERS else ["GET", "HEAD"]
    if method in allowed and path == STREAM:
        return  # see the tests of streams
    asked = path.replace("{run}", "bert") + ("?name=loss" if path == SERIES else "")
    body = b'{"action": "status"}' if method not in ("GET", "HEAD") else b""
    async with watching(busy()) as side:
        answer = await send(
            side, order_request(body, method=method).replace(ORDERS.encode(), asked.encode())
        )

    assert answer.status == (200 if method in allowed else 405)
    if answer.status == 405:
        assert answer.headers["allow"] == ", ".join(allowed)
    assert bool(answer.body) is (method != "HEAD")


# What it says.


async def test_an_overview_has_a_line_for_each_run_and_how_busy_the_master_is() -> None:
    watched = busy()
    watched.daemon.enter("c", "gpt")
    watched.traffic = (1_000, 3_000)
    watched.pass_seconds()
    async with watching(watched) as side:
        found = (await fetch(side, "overview")).document

    assert [(run["name"], run["workers"], run["updates"]) for run in found["runs"]] == [
        ("bert", 2, 4), ("gpt", 1, 0)
    ]  # fmt: skip
    assert found["connections"] == 3
    assert found["figures"]["received_bytes_per_second"] > 0
    assert found["uptime_seconds"] == pytest.approx(watched.daemon.network.now - 1000.0)


async def test_curves_are_of_the_series_and_workers_that_were_asked_for() -> None:
    async with watching(busy()) as side:
        found = (await fetch(side, "runs/bert/series?name=loss&name=bad&ranks=1")).document
        mean = (await fetch(side, "runs/bert/series?name=loss&ranks=")).document
        nothing = (await fetch(side, "runs/bert/series?name=other")).document

    assert [(c["name"], c["rank"]) for c in found["curves"]] == [
        ("loss", None), ("loss", 1), ("bad", None), ("bad", 1)
    ]  # fmt: skip
    assert columns_of(found["curves"][1])["mean"] == [1.0, 0.5, 0.3333333, 0.25, 0.2]
    assert columns_of(found["curves"][3])["low"] == [None] * 5
    assert [curve["rank"] for curve in mean["curves"]] == [None]
    assert nothing == {"curves": []}


async def test_columns_of_a_curve_have_one_length() -> None:
    async with watching(busy()) as side:
        path = "runs/bert/series?name=loss&name=bad&name=master/workers&points=2"
        found = (await fetch(side, path)).document

    assert {len({len(column) for column in columns_of(c).values()}) for c in found["curves"]} == {1}
    assert max(len(curve["step"]) for curve in found["curves"]) <= 3


@pytest.mark.parametrize("run", HOSTILE)
async def test_of_a_run_that_is_over_there_is_what_its_workers_have_logged(run: str) -> None:
    watched = busy(run)
    watched.log(run, 0, 9, {HOSTILE[0]: NAN})
    watched.daemon.order("end-run", run=run)
    watched.pass_seconds()
    path = "runs/" + quote(run, safe="")
    async with watching(watched) as side:
        overview = validated(await fetch(side, "overview"), SCHEMAS["Overview"])
        logged = validated(await fetch(side, path + "/logged"), SCHEMAS["Logged"])
        curves = validated(
            await fetch(side, path + "/series?" + urlencode({"name": HOSTILE[0]})),
            SCHEMAS["Curves"],
        )["curves"]
        histograms = validated(await fetch(side, path + "/histograms"), SCHEMAS["Histograms"])
        in_progress = [await fetch(side, path + end) for end in ("", "/events")]

    assert (overview["runs"], overview["over"]) == ([], [run])
    assert logged == {
        "name": run, "over": True, "scalars": 31, "histograms": 0,
        "series": sorted(["loss", "bad", "gradwire/x", HOSTILE[0]]),
    }  # fmt: skip
    assert [(curve["rank"], curve["mean"]) for curve in curves] == [(None, [None]), (0, [None])]
    assert histograms == {"layers": [], "histograms": []}
    assert [answer.status for answer in in_progress] == [404, 404]


async def test_events_come_after_the_one_that_was_named() -> None:
    async with watching(busy()) as side:
        found = (await fetch(side, "runs/bert/events")).document
        later = (await fetch(side, f"runs/bert/events?after={found['last'] - 1}")).document
        none = (await fetch(side, f"runs/bert/events?after={found['last']}")).document

    assert [event["kind"] for event in found["events"]] == ["joined", "began", "joined"]
    assert [event["number"] for event in later["events"]] == [found["last"]]
    assert none == {"last": found["last"], "events": []}


# Names.


@pytest.mark.parametrize("run", HOSTILE)
async def test_a_run_of_any_name_is_found_by_its_percent_encoded_name(run: str) -> None:
    watched = busy(run)
    path = "runs/" + quote(run, safe="")
    async with watching(watched) as side:
        documents = [
            (await fetch(side, path + end)).document
            for end in ("", "/events", "/series?name=loss", "/logged")
        ]
        viewer = await Viewer.come(side, "?" + urlencode({"run": run}))
        shown = await viewer.wait_for("run")
        await viewer.go()
        done = await give_order(side, "expel", name="1", run=run)
        gone = [worker["rank"] for worker in (await fetch(side, path)).document["workers"]]

    assert (documents[0]["name"], shown["name"]) == (run, run)
    assert [event["kind"] for event in documents[1]["events"]] == ["joined", "began", "joined"]
    assert len(documents[2]["curves"]) == 3
    assert (documents[3]["name"], documents[3]["over"]) == (run, False)
    assert (done.status, gone) == (200, [0])


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("encode", [quote, lambda name: urlencode({"": name})[1:]])
async def test_a_series_of_any_name_is_found_by_it(name: str, encode: Any) -> None:
    watched = busy()
    watched.log("bert", 0, 1, {name: 1.0})
    async with watching(watched) as side:
        run = (await fetch(side, "runs/bert")).document
        found = (await fetch(side, f"runs/bert/series?name={encode(name)}")).document

    assert name in run["series"]
    assert [(curve["name"], curve["rank"]) for curve in found["curves"]] == [
        (name, None),
        (name, 0),
    ]


async def test_a_download_and_a_document_of_runs_with_awkward_names_are_not_mixed_up() -> None:
    """A run that is called run, and one that is called like a format."""
    watched = Watched()
    for name in ("run", "csv"):
        watched.daemon.enter(name, name)
        watched.log(name, 0, 1, {"loss": 1.0})
    async with watching(watched) as side:
        download = await fetch(side, "/runs/run/series?format=csv")
        document = await fetch(side, "runs/csv")

    assert download.text.startswith("series,rank,")
    assert document.document["name"] == "csv"


@pytest.mark.parametrize("run", ["", "nothing", "x" * 2_000, "\x00\n", "\N{FERRIS WHEEL}" * 300])
async def test_a_run_that_there_is_not_is_named_with_those_that_there_are(run: str) -> None:
    async with watching(busy()) as side:
        answers = [
            await fetch(side, "runs/" + quote(run, safe="") + end)
            for end in ("", "/events", "/series?name=loss", "/logged", "/histograms")
        ]
        answers.append(await fetch(side, "stream?" + urlencode({"run": run})))

    assert [answer.status for answer in answers] == [404] * 6
    for answer in answers:
        assert "'bert'" in answer.text
        assert len(answer.text) < 1_500
        assert answer.text.rstrip("\n").isprintable()


# What makes no sense.


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("", "name=loss"),
        ("?points=5", "name=loss"),
        ("?" + "&".join(f"name={i}" for i in range(NAMES_MAX + 1)), str(NAMES_MAX)),
        ("?name=loss&points=0", "4096"),
        ("?name=loss&points=4097", "4096"),
        ("?name=loss&points=many", "points='many'"),
        ("?name=loss&points=1e3", "points='1e3'"),
        ("?name=loss&points=-1", "points='-1'"),
        ("?name=loss&points=" + "9" * 5_000, "4096"),
        ("?name=loss&points=%00%0A", r"'\x00\n'"),
        ("?name=loss&ranks=a", "ranks='a'"),
        ("?name=loss&ranks=-1", "ranks='-1'"),
        ("?name=loss&ranks=99999", "ranks='99999'"),
        ("?name=loss&ranks=" + "9" * 5_000, "ranks="),
        ("?" + "&".join(["name=loss"] * (PARAMETERS_MAX + 1)), "64"),
    ],
)
async def test_a_query_that_makes_no_sense_is_told_what_is_wrong(query: str, named: str) -> None:
    async with watching(busy()) as side:
        answer = await fetch(side, "runs/bert/series" + query)

    assert answer.status == 400
    assert named in answer.text
    assert len(answer.text) < 500
    assert side.refusals == {HttpRefusal.BAD_REQUEST: 1}


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30, str(2**53 + 1)])
async def test_an_event_has_a_whole_number(after: str) -> None:
    async with watching(busy()) as side:
        answer = await fetch(side, f"runs/bert/events?after={after}")

    assert answer.status == 400
    assert f"after={after!r}" in answer.text


@pytest.mark.parametrize("name", sorted(TOKEN_PARAMETERS | {"Token", "ACCESS_TOKEN"}))
@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/healthz", PREFIX + "overview", STREAM, ORDERS, "/page/x"]
)
async def test_a_token_in_a_url_is_refused_and_not_repeated(path: str, name: str) -> None:
    secret = "correct-horse-battery"
    async with watching(busy()) as side:
        method = "POST" if path == ORDERS else "GET"
        answer = await fetch(side, f"{path}?run=bert&{name}={secret}", method=method)

    assert answer.status == 400
    assert name.lower() in answer.text
    assert "Authorization: Bearer" in answer.text
    assert secret not in answer.text
    assert side.refusals == {HttpRefusal.BAD_REQUEST: 1}


async def test_a_name_of_ten_megabytes_is_cut_off_at_the_door() -> None:
    async with watching(busy()) as side:
        long = quote("x" * 10_000_000)
        for path in (f"runs/{long}", f"stream?run={long}", f"runs/bert/series?name={long}"):
            heard = await ask(side, request(PREFIX + path))
            assert heard == b"" or status_of(heard) == 400
        await until(lambda: side.server.connections == 0, "all to be closed")

    assert sum(side.refusals.values()) == 3
    assert side.refusals.keys() <= {HttpRefusal.TOO_LARGE, HttpRefusal.MALFORMED}
