"""`HttpReader` against what may stand in a master's place: each failure says what to do."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gradwire.cli.top import http_reader
from gradwire.cli.top.http_reader import HttpReader, url_of
from gradwire.errors import DeadlineError, GradwireError, RefusedError, UnreachableError, UsageError
from gradwire_udp.files.tokens import read_token
from support.api_documents import HOSTILE, a_run, overview, worker
from support.wording import naming

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

TOKEN = b"correct-horse-battery-staple"


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """Serve over HTTP on loopback; yield ``host:port``."""
    server = web.Server(answer, access_log=None)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await server.shutdown(0.1)


def saying(status: int, text: str = "", **headers: str) -> Answer:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers=headers)

    return answer


async def failure(answer: Answer, run: str | None = None, token: bytes | None = None) -> Exception:
    """Return how reading fails."""
    async with answering(answer) as place, HttpReader(place, token) as reader:
        with pytest.raises(GradwireError) as caught:
            await reader.read(run)
    return caught.value


@pytest.mark.parametrize(
    ("answer", "kind", "named"),
    [
        (saying(401, "no"), RefusedError, ("--http-token-file",)),
        (saying(403, "closed"), RefusedError, ("closed", "--master", "--key-file")),
        (saying(404, "gradwire master: /healthz"), RefusedError, ("/api/v1", "relay", "--http")),
        (saying(500, "failed"), RefusedError, (500, "failed")),
        (saying(302, Location="http://192.0.2.1/"), RefusedError, (302,)),
        (saying(200, "<html>"), UsageError, ("JSON",)),
        (saying(200, "[1]"), UsageError, ("JSON",)),
        (saying(200, "[" * 100_000), UsageError, ("JSON",)),
    ],
)
async def test_what_is_wrong_is_said(
    answer: Answer, kind: type[Exception], named: tuple[object, ...]
) -> None:
    error = await failure(answer)

    assert (type(error), str(error)) == (kind, naming(*named))


async def test_a_wrong_token_is_told_from_a_missing_one() -> None:
    missing = await failure(saying(401))
    wrong = await failure(saying(401), token=TOKEN)

    assert str(missing) != str(wrong)
    assert TOKEN.decode() not in str(wrong)


async def test_the_token_is_sent() -> None:
    sent = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        sent.append(request.headers.get("Authorization"))
        return web.json_response(overview([]))

    async with answering(answer) as place, HttpReader(place, TOKEN) as reader:
        await reader.read(None)

    assert sent == [f"Bearer {TOKEN.decode()}"]


async def test_an_answer_without_an_end_is_read_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_reader, "ANSWER_BYTES_MAX", 100_000)
    sent = 0

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await response.write(b"x" * 10_000)
            sent += 10_000
        return response

    error = await failure(answer)

    assert (type(error), str(error)) == (UsageError, naming(100_000, "bytes"))
    assert sent < 20_000_000  # what sockets hold besides


async def test_an_answer_that_does_not_come_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_reader, "REQUEST_SECONDS_MAX", 0.2)
    done = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await done.wait()
        return web.Response()

    async with answering(answer) as place, HttpReader(place) as reader:
        with pytest.raises(DeadlineError, match=naming(place, "0.2 s")):
            await reader.read(None)
        done.set()


async def test_nobody_at_the_address_is_said() -> None:
    async with answering(saying(200)) as place:
        pass
    async with HttpReader(place) as reader:
        with pytest.raises(UnreachableError, match=naming(place, "--http")):
            await reader.read(None)


async def test_what_is_no_http_is_said() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with HttpReader(place) as reader:
            with pytest.raises((UsageError, UnreachableError), match=naming(place)):
                await reader.read(None)


async def test_a_run_with_any_name_is_asked_for_by_it() -> None:
    name = "team/a b?&#%" + HOSTILE[:20]
    run = a_run(name, [worker(0)])
    paths = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        paths.append(request.path)
        if request.path.endswith("overview"):
            return web.json_response(overview([run]))
        return web.json_response(run)

    async with answering(answer) as place, HttpReader(place) as reader:
        found = await reader.read(name)

    assert paths[1:] == [f"/api/v1/runs/{name}{end}" for end in ("", "/events", "/series")]
    assert found.runs == {name: run}


async def test_a_run_that_has_just_ended_is_left_out_unless_it_was_asked_for() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path.endswith("overview"):
            return web.json_response(overview([a_run("bert", [])]))
        return web.Response(status=404, text="no run 'bert' is in progress; runs: none")

    async with answering(answer) as place, HttpReader(place) as reader:
        assert (await reader.read(None)).runs == {}
    assert str(await failure(answer, "bert")) == naming("bert", "in progress")


async def test_what_is_not_finite_is_null() -> None:
    said = saying(200, '{"figures": {"x": NaN, "y": -Infinity}}')
    async with answering(said) as place, HttpReader(place) as reader:
        found = await reader.read(None)

    assert json.dumps(found.overview, allow_nan=False) == '{"figures": {"x": null, "y": null}}'


async def test_many_runs_are_asked_for_more_seldom() -> None:
    runs = [a_run(f"run{n}", []) for n in range(16)]

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(overview(runs))

    async with answering(answer) as place, HttpReader(place) as reader:
        assert reader.every_seconds == 1.0
        await reader.read(None)
        assert reader.every_seconds == 4.9


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.2.4", "http://10.0.2.4:40124"),
        ("10.0.2.4:9464", "http://10.0.2.4:9464"),
        ("[::1]:9464", "http://[::1]:9464"),
        ("https://master.example", "https://master.example"),
        ("http://master.example:80/", "http://master.example:80"),
    ],
)
def test_an_address_is_a_host_and_a_port_or_a_url(address: str, url: str) -> None:
    assert url_of(address) == url


@pytest.mark.parametrize(
    "address",
    ["off", "ftp://master", "http://", "http://me:secret@master", "http://master/?token=x",
     "http://master/path", "http://master:x", "a,b"],
)  # fmt: skip
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        url_of(address)

    assert "secret" not in str(caught.value)


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "http.token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o644)

    with pytest.raises(UsageError, match=naming(path, "0644", "chmod 600")):
        read_token(path)

    path.chmod(0o600)
    assert read_token(path) == TOKEN
