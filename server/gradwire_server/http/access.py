"""Access: a bearer token (RFC 6750) for every page but `/healthz`.

=========================  ==============  ==================  ====================  ==============
configured                 `/healthz`      `/metrics`          everything else       files of `/`
=========================  ==============  ==================  ====================  ==============
a token                    open            the token           the token             open
no token, on loopback      open            open                open                  open
no token, elsewhere        open            closed              closed                closed
``--public-metrics``       open            open                as above              as above
=========================  ==============  ==================  ====================  ==============

The files of the page say nothing about any run: they ask for the token, and read everything with
it. Orders take the operator's token, which also opens all that the other one does. Where there are
no tokens and no keys, on loopback, an order takes none, as over UDP: a token alone, for viewers,
says that others than this machine can reach the page, through a proxy or a tunnel.

A master without a token that other machines can reach starts all the same, and keeps its pages
closed: probing `/healthz`, or scraping public metrics, takes no token.

On loopback, a page is open only if the ``Host`` header is missing, or names localhost or an IP
address. Otherwise a web page whose name resolves to 127.0.0.1 (DNS rebinding) could have its
visitor's browser read it.
"""

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gradwire_server.metrics import HttpRefusal
from gradwire_udp.files.keys import credential
from gradwire_udp.files.tokens import check_token, read_token

HEALTH_PATH: Final = "/healthz"
METRICS_PATH: Final = "/metrics"

CREDENTIAL: Final = "http-token"
OPERATOR_CREDENTIAL: Final = "http-operator-token"
"""Names of the systemd credentials: ``LoadCredential=http-token:/etc/gradwire/http-token``."""


class Token:
    """A bearer token. Only its SHA-256 is stored, so that no dump of this object reveals it.

    It has at least `TOKEN_CHARACTERS_MIN` of the characters that RFC 6750 allows.

    Raises
    ------
    UsageError
        If it is malformed or too short. The message does not repeat it.
    """

    __slots__ = ("_digest",)

    def __init__(self, secret: bytes) -> None:
        check_token(secret)
        self._digest = sha256(secret).digest()

    def matches(self, offered: str) -> bool:
        """Return whether this is the token, in a time that does not depend on the token."""
        # aiohttp decodes header bytes that are not UTF-8 with surrogateescape.
        digest = sha256(offered.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Decides whether a client may see a page."""

    token: Token | None = None
    """Without it, pages other than `/healthz` are open on loopback only."""
    operator_token: Token | None = None
    """Of those who may also give orders."""
    public_metrics: bool = False
    """Whether every client may read the metrics."""

    @property
    def has_token(self) -> bool:
        """Whether clients need a token."""
        return self.token is not None or self.operator_token is not None

    def refusal(
        self, path: str, headers: Mapping[str, str], *, on_loopback: bool, is_of_page: bool = False
    ) -> HttpRefusal | None:
        """Return why a client may not see a page; None if it may.

        `headers` must ignore the case of names; `on_loopback` says whether only this machine can
        reach the server; `is_of_page` whether the path is a file that says nothing about any run.
        """
        if path == HEALTH_PATH or (path == METRICS_PATH and self.public_metrics):
            return None
        if not self.has_token:
            is_open = on_loopback and _is_own_name(headers.get("Host", ""))
            return None if is_open else HttpRefusal.CLOSED
        if is_of_page or _offers(headers, self.token, self.operator_token):
            return None
        return HttpRefusal.UNAUTHORIZED

    def may_order(self, headers: Mapping[str, str], *, keyless: bool) -> bool:
        """Return whether a client that may see pages may also give orders.

        `keyless` says whether anyone on this machine may give orders, and only it is reached.
        """
        if not _is_of_own_page(headers):
            return False
        if self.operator_token is None:
            return keyless and not self.has_token
        return _offers(headers, self.operator_token)


def find_token(
    path: Path | None,
    environ: Mapping[str, str] = os.environ,
    name: str = CREDENTIAL,
) -> Token | None:
    """Read a token from a file, or from a systemd credential.

    Parameters
    ----------
    path : Path or None
        The file. None for the credential `name`, if there is one.
    environ : mapping
        May name the folder of credentials, ``CREDENTIALS_DIRECTORY``.

    Raises
    ------
    UsageError
        If the file cannot be read, has no valid token, or other users can read it.
    """
    if path is not None:
        return Token(read_token(path))
    # systemd gives the service's user access by an access control list, which shows as a permission
    # of the group; no other user can enter the folder.
    found = credential(environ, name)
    return None if found is None else Token(read_token(found, must_be_private=False))


def _offers(headers: Mapping[str, str], *tokens: Token | None) -> bool:
    """Return whether a client offers one of some tokens."""
    scheme, _, offered = headers.get("Authorization", "").partition(" ")
    offered = offered.strip(" ")
    matches = [token.matches(offered) for token in tokens if token is not None]
    return scheme.lower() == "bearer" and any(matches)


def _is_of_own_page(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from no page, or from one of this server.

    A browser says from where a page came whose script makes a request (Fetch, section 3.2).
    """
    origin = headers.get("Origin")
    of_same_host = origin is None or origin.partition("://")[2] == headers.get("Host", "")
    return of_same_host and headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")


def _is_own_name(host: str) -> bool:
    """Return whether a ``Host`` header is one that no foreign name server can resolve."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.split(":")[0]
    name = name.lower().removesuffix(".")
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True  # every browser sends the header
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
