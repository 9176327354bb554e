"""The page with what workers have logged."""

import csv
import gc
import io
import json
import math
from typing import Any
from urllib.parse import quote
from weakref import ref

import aiohttp
import pytest

from gradwire_protocol.messages.operating.scalars import Logged, pack_points
from gradwire_server.http.access import Access, Token
from gradwire_server.http.limits import HttpLimits
from gradwire_server.http.series_page import FIELDS
from gradwire_server.http.server import PAGES_MAX
from gradwire_server.metrics import HttpRefusal
from gradwire_server.series.series import Series
from support.http_side import HttpSide, serving

RUN = "a run/with <all>, 100 %"
HURRY = HttpLimits(load_max=1.0)
"""No pause between two."""


def series_of(**values: float) -> Series:
    series = Series()
    points = pack_points([(i, 7, 0, value) for i, value in enumerate(values.values())])
    series.add(2, b"worker", Logged(1, tuple(values), points, 0), 0.0)
    return series


async def get(side: HttpSide, run: str, query: str = "") -> tuple[int, str, str]:
    url = f"{side.url}/runs/{quote(run, safe='')}/series{query}"
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return response.status, response.headers["Content-Type"], await response.text()


def line(name: str, rank: int | None, value: float | None) -> dict[str, Any]:
    found = dict.fromkeys(("mean", "low", "high"), value)
    return {
        "series": name,
        "rank": rank,
        "step": 7,
        "steps": 1,
        "seconds": 0.0,
        **found,
        "count": 1,
    }


async def test_each_line_is_a_bucket_as_json() -> None:
    runs = {RUN: series_of(loss=0.25, bad=math.nan, **{'"<b>,': math.inf})}
    async with serving(series=runs.get) as side:
        status, kind, body = await get(side, RUN)

    assert (status, kind) == (200, "application/jsonl; charset=utf-8")
    expected = [('"<b>,', None), ("bad", None), ("loss", 0.25)]
    assert [json.loads(each) for each in body.splitlines()] == [
        line(name, rank, value) for name, value in expected for rank in (None, 2)
    ]


async def test_as_csv_it_is_the_same() -> None:
    runs = {RUN: series_of(loss=0.25, **{'"<b>,': math.inf})}
    async with serving(series=runs.get) as side:
        status, kind, body = await get(side, RUN, "?format=csv")

    assert (status, kind) == (200, "text/csv; charset=utf-8")
    first, *rows = csv.reader(io.StringIO(body))
    assert first == list(FIELDS)
    assert rows == [
        ['"<b>,', "", "7", "1", "0.0", "", "", "", "1"],
        ['"<b>,', "2", "7", "1", "0.0", "", "", "", "1"],
        ["loss", "", "7", "1", "0.0", "0.25", "0.25", "0.25", "1"],
        ["loss", "2", "7", "1", "0.0", "0.25", "0.25", "0.25", "1"],
    ]


@pytest.mark.parametrize(("run", "query"), [("other", ""), (RUN, "?format=xml")])
async def test_another_run_or_format_does_not_exist(run: str, query: str) -> None:
    async with serving(series={RUN: series_of(loss=1.0)}.get) as side:
        status, _, _ = await get(side, run, query)

    assert status == 404
    assert side.refusals == {HttpRefusal.NOT_FOUND: 1}


async def test_without_the_token_nothing_is_shown() -> None:
    access = Access(token=Token(b"correct-horse-battery"), public_metrics=True)
    async with serving(series={RUN: series_of(loss=1.0)}.get, access=access) as side:
        answers = [await get(side, RUN), await get(side, "other")]

    assert [status for status, _, _ in answers] == [401, 401]


async def test_a_run_of_the_same_name_has_series_of_its_own() -> None:
    runs = {RUN: series_of(loss=1.0)}
    async with serving(series=runs.get, limits=HURRY) as side:
        await get(side, RUN)
        before = ref(runs[RUN])
        runs[RUN] = series_of(rate=2.0)
        _, _, body = await get(side, RUN)
        gc.collect()

    assert [json.loads(each)["series"] for each in body.splitlines()] == ["rate", "rate"]
    assert before() is None, "what has ended is in memory no more"


async def test_few_pages_are_kept() -> None:
    runs = {f"run{i}": series_of(loss=float(i)) for i in range(2 * PAGES_MAX)}
    async with serving(series=runs.get) as side:
        for _ in range(2):
            for number, run in enumerate(runs):
                _, _, body = await get(side, run)
                assert json.loads(body.splitlines()[0])["mean"] == number
        assert len(side.server._pages) == PAGES_MAX
