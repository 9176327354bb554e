"""`MasterHttp`: a client of a master's HTTP side, which says of what goes wrong what to do."""

import json
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import typer

from gradwire.errors import DeadlineError, ProtocolError, RefusedError, UnreachableError, UsageError
from gradwire_protocol.limits import KIB, MIB
from gradwire_udp.files.keys import read_secret

HTTP_PORT: Final = 40124
HTTP_DEFAULT: Final = f"http://127.0.0.1:{HTTP_PORT}"
"""Where a master serves it unless its --http says otherwise."""

ANSWER_SECONDS: Final = 10.0
"""Time for an answer: orders are carried out at once."""

ANSWER_BYTES_MAX: Final = 16 * MIB
"""A run of 4,094 workers has a document of some 4 MB."""

TOKEN_BYTES_MAX: Final = 4 * KIB
REASON_BYTES_MAX: Final = 4 * KIB

HttpUrl: TypeAlias = Annotated[
    str, typer.Option(envvar="GRADWIRE_HTTP", metavar="URL", help="Where the master serves HTTP.")
]
"""The option of commands that ask a master over HTTP."""

OVERVIEW_PATH: Final = "/api/v1/overview"
ORDERS_PATH: Final = "/api/v1/orders"


class _NoRedirects(HTTPRedirectHandler):
    """No token goes on to another server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class MasterHttp:
    """What a master serves over HTTP.

    Parameters
    ----------
    url : str
        ``http://host:port``, or without ``http://``, as the master announces it.
    token : str, optional

    Raises
    ------
    UsageError
        If the URL is none.
    """

    def __init__(self, url: str = HTTP_DEFAULT, token: str | None = None) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        parts = urlsplit(self.url)
        is_url = parts.scheme in ("http", "https") and parts.hostname and not parts.query
        if not is_url or url == "off":
            raise UsageError(f"--http {url}: it is a URL such as {HTTP_DEFAULT}")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._open = build_opener(ProxyHandler({}), _NoRedirects()).open

    def overview(self) -> dict[str, Any]:
        """Return the state of the master and its runs."""
        answer: dict[str, Any] = self.get(OVERVIEW_PATH)
        return answer

    def order(self, action: str, name: str = "", run: str | None = None) -> str:
        """Give an order; return what it has come to."""
        order = {"action": action, "name": name, "run": run}
        return str(self.get(ORDERS_PATH, json.dumps(order).encode())["done"])

    def get(self, path: str, content: bytes | None = None) -> Any:
        """Return a document, or the answer to JSON that is sent there.

        Raises
        ------
        RefusedError
            If the master refuses.
        TransportError
            If there is no answer.
        ProtocolError
            If something else than a master answers.
        """
        headers = self._headers | ({} if content is None else {"Content-Type": "application/json"})
        request = Request(self.url + path, content, headers)  # checked above
        try:
            with self._open(request, timeout=ANSWER_SECONDS) as answer:
                return json.loads(answer.read(ANSWER_BYTES_MAX))
        except HTTPError as error:
            with error:
                reason = plain(error.read(REASON_BYTES_MAX).decode(errors="replace"))
            if error.code == 401:
                reason += ": name its file by --token-file FILE"
            said = f"the master at {self.url} refused: {reason or error.reason}"
            raise RefusedError(str(error.code), said) from None
        except TimeoutError:
            raise DeadlineError(
                f"the master at {self.url} did not answer within {ANSWER_SECONDS:g} s; `gradwire "
                "operate status` may show whether an order was carried out"
            ) from None
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise UnreachableError(
                f"no answer from {self.url}: {why}. Is that the HTTP address of a running "
                "master? The first line that it writes has it; say --http URL"
            ) from None
        except (ValueError, RecursionError):
            raise ProtocolError(f"{self.url}{path} is no JSON: is a master there?") from None


def read_token(path: str | Path | None) -> str | None:
    """Return the token of a file; None without one.

    Raises
    ------
    KeyFileError
        If it cannot be read, or other users can.
    """
    if path is None:
        return None
    return read_secret(Path(path), "the HTTP token in", TOKEN_BYTES_MAX).strip()


def plain(text: object) -> str:
    """Return a text that a terminal can be sent: other machines have written it."""
    shown = " ".join(text.split()) if isinstance(text, str) else ""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in shown)
