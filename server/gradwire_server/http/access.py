"""Access: a bearer token (RFC 6750) for every page but `/healthz`.

=========================  ==============  ====================
configured                 `/healthz`      everything else
=========================  ==============  ====================
a token                    open            the token
no token, on loopback      open            open
no token, elsewhere        open            closed
=========================  ==============  ====================

A master without a token that other machines can reach starts all the same, and keeps its pages
closed: probing `/healthz` takes no token.

On loopback, a page is open only if the ``Host`` header is missing, or names localhost or an IP
address. Otherwise a web page whose name resolves to 127.0.0.1 (DNS rebinding) could have its
visitor's browser read it.
"""

import hmac
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from gradwire_protocol import UsageError
from gradwire_protocol.limits import KIB
from gradwire_server.metrics import HttpRefusal
from gradwire_udp.files.keys import credential, read_secret

HEALTH_PATH: Final = "/healthz"

CREDENTIAL: Final = "http-token"
"""Name of the systemd credential: ``LoadCredential=http-token:/etc/gradwire/http-token``."""

TOKEN_CHARACTERS_MIN: Final = 16
"""16 random letters and digits have 95 bits: at 100 guesses a second, nobody finds them."""

TOKEN_BYTES_MAX: Final = 4 * KIB
"""Size of the token's file: half of the longest header line that aiohttp accepts, 8,190 bytes."""

B64TOKEN: Final = re.compile(rb"[A-Za-z0-9\-._~+/]+=*")
"""The syntax of a token (RFC 6750, section 2.1)."""


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
        if not B64TOKEN.fullmatch(secret):
            raise UsageError(
                "the HTTP token is not one word of letters, digits and -._~+/ with = at its end; "
                "make one with: openssl rand -base64 32"
            )
        if len(secret) < TOKEN_CHARACTERS_MIN:
            raise UsageError(
                f"the HTTP token has {len(secret)} characters, fewer than "
                f"{TOKEN_CHARACTERS_MIN}; make one with: openssl rand -base64 32"
            )
        self._digest = sha256(secret).digest()

    def matches(self, offered: str) -> bool:
        """Return whether this is the token, in a time that does not depend on the token."""
        # aiohttp decodes header bytes that are not UTF-8 with surrogateescape.
        digest = sha256(offered.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(digest, self._digest)


@dataclass(frozen=True, slots=True)
class Access:
    """Decides whether a client may see a page."""

    token: Token | None = None
    """Without it, pages other than `/healthz` are open on loopback only."""

    def refusal(
        self, path: str, headers: Mapping[str, str], *, on_loopback: bool
    ) -> HttpRefusal | None:
        """Return why a client may not see a page; None if it may.

        `headers` must ignore the case of names; `on_loopback` says whether only this machine can
        reach the server.
        """
        if path == HEALTH_PATH:
            return None
        if self.token is None:
            is_open = on_loopback and _is_own_name(headers.get("Host", ""))
            return None if is_open else HttpRefusal.CLOSED
        scheme, _, credentials = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.token.matches(credentials.strip(" ")):
            return None
        return HttpRefusal.UNAUTHORIZED


def find_token(path: Path | None) -> Token | None:
    """Read the token from a file, or from a systemd credential.

    Parameters
    ----------
    path : Path or None
        The file. None for the credential ``http-token``, if there is one.

    Raises
    ------
    UsageError
        If the file cannot be read, has no valid token, or other users can read it.
    """
    path = path or credential(os.environ, CREDENTIAL)
    if path is None:
        return None
    secret = read_secret(path, "the HTTP token in", TOKEN_BYTES_MAX)
    try:
        return Token(secret.strip().encode())
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


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
