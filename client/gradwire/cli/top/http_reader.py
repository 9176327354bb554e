"""`HttpReader`: asks a master's JSON API.

Every request has a deadline, and every answer a bound. A redirection is not followed: it would take
the token elsewhere.
"""

import json
import os
from asyncio import timeout
from types import TracebackType
from typing import Final, NoReturn, Self
from urllib.parse import quote, urlsplit

import aiohttp

from gradwire.cli.top.documents import RUNS_MAX, Document, Documents, run_names
from gradwire.cli.top.figures import UPDATES_SERIES, loss_name
from gradwire.cli.top.text import plain
from gradwire.errors import DeadlineError, RefusedError, UnreachableError, UsageError
from gradwire_udp import split_address
from gradwire_udp.sockets import show_address

API: Final = "/api/v1"

PORT: Final = 40_124

REQUEST_SECONDS_MAX: Final = 5.0
"""From the request to the last byte of the answer. A master answers in milliseconds."""

READ_SECONDS_MAX: Final = 15.0
"""For all requests that make one picture."""

ANSWER_BYTES_MAX: Final = 2**24
"""A run of 4,094 workers has a document of some 4 MB."""

REASON_BYTES_MAX: Final = 2**12
"""Of an answer that says why there is none."""

POINTS: Final = 256
"""Of a curve: more than a terminal has columns."""

NOT_FOUND: Final = 404

EVERY_SECONDS: Final = 1.0

REQUESTS_PER_SECOND_MAX: Final = 10.0
"""A master takes 100 from all who ask it; with many runs, a picture is renewed more seldom."""


class HttpReader:
    """An open connection pool to one master; an asynchronous context manager.

    Parameters
    ----------
    address : str
        ``host:port``, or a URL without a path.
    token : bytes, optional
        For a master that wants one.

    Raises
    ------
    UsageError
        If the address is none.
    """

    def __init__(self, address: str, token: bytes | None = None) -> None:
        self.place = url_of(address)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token.decode()}"}
        self._session: aiohttp.ClientSession | None = None
        self.every_seconds: float = EVERY_SECONDS

    async def __aenter__(self) -> Self:
        """Make ready to ask."""
        # The master ends each connection after one answer.
        self._session = aiohttp.ClientSession(
            headers={**self._headers, "Connection": "close"},
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS_MAX),
            connector=aiohttp.TCPConnector(force_close=True, limit=1),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def read(self, run: str | None, *, details: bool = True) -> Documents:
        """Ask for everything about one run, or all: see `Reader`."""
        try:
            async with timeout(READ_SECONDS_MAX):
                return await self._read(run, details=details)
        except DeadlineError:  # of one request, and a TimeoutError, too
            raise
        except TimeoutError:
            self._fail_for_time(READ_SECONDS_MAX)

    async def _read(self, run: str | None, *, details: bool) -> Documents:
        found = Documents(await self._get("/overview"))
        requests = 1
        names = run_names(found.overview)[:RUNS_MAX]
        for name in names if run is None else [run]:
            try:
                requests += await self._read_run(name, found, details=details)
            except RunGoneError as error:
                if name == run:
                    raise RefusedError("http", str(error)) from None
        self.every_seconds = max(EVERY_SECONDS, requests / REQUESTS_PER_SECOND_MAX)
        return found

    async def _read_run(self, name: str, found: Documents, *, details: bool) -> int:
        """Ask for a run; return how many requests that took."""
        path = f"/runs/{quote(name, safe='')}"
        document = await self._get(path)
        found.runs[name] = document
        if not details:
            return 1
        found.events[name] = await self._get(f"{path}/events")
        listed = document.get("series")
        curves = [loss_name(listed if isinstance(listed, list) else []), UPDATES_SERIES]
        query = "&".join(f"name={quote(each, safe='')}" for each in curves if each)
        found.series[name] = await self._get(f"{path}/series?{query}&points={POINTS}&ranks=")
        return 3

    async def _get(self, path: str) -> Document:
        assert self._session is not None
        url = f"{self.place}{API}{path}"
        try:
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    said = await _body(response, REASON_BYTES_MAX)
                    self._refuse(response.status, path, said)
                body = await _body(response, ANSWER_BYTES_MAX + 1)
        except TimeoutError:
            self._fail_for_time(REQUEST_SECONDS_MAX)
        except aiohttp.ClientConnectionError as error:
            raise UnreachableError(
                f"no master answers at {self.place}: {reason_of(error)}. Name the place "
                "where the master serves its page, by --http"
            ) from None
        except aiohttp.ClientError as error:
            raise UsageError(
                f"what answers at {self.place} is no gradwire master: {plain(str(error))}"
            ) from None
        if len(body) > ANSWER_BYTES_MAX:
            raise UsageError(
                f"the answer of {url} has more than {ANSWER_BYTES_MAX} bytes, which no master's has"
            )
        return self._parsed(body)

    def _parsed(self, body: bytes) -> Document:
        try:
            found = json.loads(body, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UsageError(f"what answers at {self.place} is no gradwire master: not with JSON")
        return found

    def _refuse(self, status: int, path: str, body: bytes) -> NoReturn:
        said = plain(" ".join(body.decode(errors="replace").split()))
        if status == 401:
            has = "the token of --http-token-file is not its" if self._headers else "none was given"
            text = (
                f"the master at {self.place} wants its token, and {has}: pass --http-token-file "
                "FILE, a file with the token of the master's --http-token-file"
            )
        elif status == 403:
            text = (
                f"the master at {self.place} shows nothing here: {said}. Or ask it as an operator: "
                "--master HOST:PORT --key-file operator.key"
            )
        elif status == NOT_FOUND and path.startswith("/runs/"):
            raise RunGoneError(f"the master at {self.place}: {said}")
        elif status == NOT_FOUND:
            text = (
                f"{self.place} answers, and has no {API}: a relay has none, and an older master. "
                "Name the master itself, where it serves its page (--http)"
            )
        else:
            text = f"the master at {self.place} answers with status {status}: {said}"
        raise RefusedError("http", text)

    def _fail_for_time(self, seconds: float) -> NoReturn:
        raise DeadlineError(f"no answer from {self.place} within {seconds:g} s") from None


class RunGoneError(Exception):
    """There is no such run any more."""


def reason_of(error: aiohttp.ClientConnectionError) -> str:
    """Return why there is no connection, in the words of the system where it has some."""
    system = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    number = system.errno if isinstance(system, OSError) else None
    return plain(os.strerror(number) if number else str(error) or type(error).__name__)


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return at most so many bytes of an answer."""
    parts: list[bytes] = []
    missing = most
    while missing > 0 and (part := await response.content.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def url_of(address: str) -> str:
    """Return the URL of ``host:port``, or a URL without what is behind host and port.

    Raises
    ------
    UsageError
        If it is neither.
    """
    scheme, separator, _ = address.partition("://")
    if not separator:
        if address == "off":
            raise UsageError("--http off: say where the master serves its page, as HOST:PORT")
        return f"http://{show_address(split_address(address, PORT))}"
    try:
        parts = urlsplit(address)
        usable = scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None or parts.query or parts.path.strip("/"):
        # What is before the @ may be a password, and what is behind the ? a token.
        shown = plain(address.partition("?")[0].rpartition("@")[2])
        raise UsageError(
            f"--http {shown!r}; it has to be HOST:PORT, or a URL such as "
            "https://master.example:443 without path, name and password"
        )
    return f"{scheme}://{parts.netloc}"
