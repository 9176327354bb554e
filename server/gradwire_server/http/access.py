"""Access: a bearer token (RFC 6750) for every page but `/healthz`, and another one for orders.

======================  ==============  =================================  ====================
configured              `/healthz`      every other page                   orders
======================  ==============  =================================  ====================
no token, on loopback   open            open                               open without keys
no token, elsewhere     open            closed                             closed
the token               open            the token                          closed
an operator's token     open            that token; open on loopback       that token
both                    open            either token                       the operator's token
======================  ==============  =================================  ====================

Probing `/healthz` takes no token, so a master without one that others can reach starts all the
same. One with keys takes no orders without a token, not even on loopback: other users of its
machine could end a run that they cannot join.

Where no token is asked for, the ``Host`` header has to be missing, or to name localhost or an IP
address: a web page whose name resolves to 127.0.0.1 (DNS rebinding) could otherwise have its
visitor's browser read, and order. An order that a browser sends comes from a page of this server.
"""

import hmac
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from gradwire_protocol import UsageError
from gradwire_protocol.limits import KIB
from gradwire_udp.files.keys import credential, read_secret

HEALTH_PATH: Final = "/healthz"

CREDENTIAL: Final = "http-token"
OPERATOR_CREDENTIAL: Final = "http-operator-token"
"""Names of systemd credentials: ``LoadCredential=http-token:/etc/gradwire/http-token``."""

OPERATOR: Final = "operator"
HERE: Final = "on this machine"
"""How the log names who gives an order: by the token, or where none is asked for."""

TOKEN_CHARACTERS_MIN: Final = 16
"""16 random letters and digits have 95 bits: at 100 guesses a second, nobody finds them."""

TOKEN_BYTES_MAX: Final = 4 * KIB
"""Size of the token's file: half of the longest header line that aiohttp accepts, 8,190 bytes."""

B64TOKEN: Final = re.compile(rb"[A-Za-z0-9\-._~+/]+=*")
"""The syntax of a token (RFC 6750, section 2.1)."""

MAKE: Final = "make one with `gradwire keygen --token FILE`"

TOKEN_PARAMETERS: Final = frozenset({"token", "access_token"})


class Token:
    """A bearer token. Only its SHA-256 is stored, so that no dump of this object reveals it.

    `UsageError` if it is malformed or too short; the message does not repeat it.
    """

    __slots__ = ("_digest",)

    def __init__(self, secret: bytes) -> None:
        if not B64TOKEN.fullmatch(secret):
            raise UsageError(
                "the HTTP token is not one word of letters, digits and -._~+/ with = at its end; "
                + MAKE
            )
        if len(secret) < TOKEN_CHARACTERS_MIN:
            raise UsageError(
                f"the HTTP token has {len(secret)} characters, fewer than "
                f"{TOKEN_CHARACTERS_MIN}; {MAKE}"
            )
        self._digest = sha256(secret).digest()

    def matches(self, offered: str) -> bool:
        """Return whether this is the token, in a time that does not depend on the token."""
        # aiohttp decodes header bytes that are not UTF-8 with surrogateescape.
        digest = sha256(offered.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)


@dataclass(slots=True, kw_only=True)
class Access:
    """Decides who may read a page, and who may give orders."""

    token: Token | None = None
    operator_token: Token | None = None
    has_keys: bool = True
    """Whether the master has keys, or workers of other machines: then orders take a token."""
    on_loopback: bool = False
    """Whether only this machine can reach the server."""
    public: Collection[str] = ()
    """Paths that everyone may read besides `HEALTH_PATH`: the files of a page, which have nothing
    of a run."""

    @property
    def lacks_token(self) -> bool:
        """Whether other machines can reach it, and its pages are closed for want of a token."""
        return not self.on_loopback and self.token is None and self.operator_token is None

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise an exception of aiohttp's if a client may not read a page.

        `headers` must ignore the case of names.
        """
        if path == HEALTH_PATH or path in self.public:
            return
        tokens = [each for each in (self.token, self.operator_token) if each is not None]
        if any(each.matches(_offered(headers)) for each in tokens):
            return
        if self.token is None and self._is_own(headers):
            return
        if tokens:
            raise _unauthorized("send the token of the master's --http-token-file")
        raise web.HTTPForbidden(
            text="the master has no token, so it shows this only on its own machine, at a loopback "
            "address asked for as such. Start it with --http-token-file FILE"
        )

    def operator(self, headers: Mapping[str, str]) -> str:
        """Return how the log names who gives an order; raise as `check` for who may not."""
        origin, host = headers.get("Origin"), headers.get("Host", "")
        if self.operator_token is not None:
            if not self.operator_token.matches(_offered(headers)):
                raise _unauthorized("an order takes the token of --http-operator-token-file")
        elif self.token is not None or self.has_keys or not self._is_own(headers):
            raise web.HTTPForbidden(
                text="this master takes no orders, as it has no operator's token: start it with "
                f"--http-operator-token-file FILE; {MAKE}"
            )
        if origin is not None and origin.partition("://")[2] != host:
            raise web.HTTPForbidden(text="a page of another server cannot give orders")
        return HERE if self.operator_token is None else OPERATOR

    def may_order(self, headers: Mapping[str, str]) -> bool:
        """Return whether a client may give orders."""
        try:
            return bool(self.operator(headers))
        except web.HTTPException:
            return False

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a handler answer whoever may read its page. Who may order, `orders` asks."""
        if TOKEN_PARAMETERS & {name.lower() for name in request.query}:
            raise web.HTTPBadRequest(
                text="a URL must not have a token: logs and histories keep URLs. Send it as "
                "'Authorization: Bearer TOKEN', and take another token from now on"
            )
        self.check(request.path, request.headers)
        return await handler(request)

    def _is_own(self, headers: Mapping[str, str]) -> bool:
        return self.on_loopback and _is_own_name(headers.get("Host", ""))


def find_token(path: Path | None, name: str = CREDENTIAL) -> Token | None:
    """Read a token from a file; without one from the systemd credential, if there is that.

    `UsageError` if the file cannot be read, has no valid token, or other users can read it.
    """
    path = path or credential(os.environ, name)
    if path is None:
        return None
    secret = read_secret(path, "the HTTP token in", TOKEN_BYTES_MAX)
    try:
        return Token(secret.strip().encode())
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _offered(headers: Mapping[str, str]) -> str:
    """Return the token that a client has sent; empty for none."""
    scheme, _, credentials = headers.get("Authorization", "").partition(" ")
    return credentials.strip(" ") if scheme.lower() == "bearer" else ""


def _unauthorized(text: str) -> web.HTTPUnauthorized:
    return web.HTTPUnauthorized(
        text=f"{text} as 'Authorization: Bearer TOKEN'",
        headers={"WWW-Authenticate": 'Bearer realm="gradwire"'},
    )


def _is_own_name(host: str) -> bool:
    """Return whether a ``Host`` header is one that no foreign name server can resolve.

    Every browser sends one.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "localhost").removesuffix(".")
        return name == "localhost" or name.endswith(".localhost") or ip_address(name) is not None
    except ValueError:
        return False
