"""Files with a bearer token (RFC 6750) for the master's pages, read by the master and by viewers.

As with keys, a file that other users can read is refused, and no message repeats anything from it.
"""

import os
import re
import stat
from pathlib import Path
from typing import Final

from gradwire_protocol.errors import UsageError
from gradwire_protocol.limits import KIB
from gradwire_udp.files.keys import ACCESS_BITS, CHANGE_BITS, is_among_secrets

TOKEN_CHARACTERS_MIN: Final = 16
"""16 random letters and digits have 95 bits: at 100 guesses a second, nobody finds them."""

TOKEN_BYTES_MAX: Final = 4 * KIB
"""Size of the token's file: half of the longest header line that aiohttp accepts, 8,190 bytes."""

B64TOKEN: Final = re.compile(rb"[A-Za-z0-9\-._~+/]+=*")
"""The syntax of a token (RFC 6750, section 2.1)."""


def read_token(path: Path, *, must_be_private: bool = True) -> bytes:
    """Read the token in a file.

    Parameters
    ----------
    path : Path
    must_be_private : bool
        Whether to refuse a file that other users can read or change.

    Raises
    ------
    UsageError
        If the file cannot be read, has no valid token, or other users can read it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            forbidden = CHANGE_BITS if is_among_secrets(path) else ACCESS_BITS
            if must_be_private and mode & forbidden:
                raise UsageError(
                    f"the HTTP token in {path} can be read or changed by other users (mode "
                    f"{mode:04o}); run: chmod 600 {path}"
                )
            content = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"the HTTP token in {path} cannot be read: {error.strerror}") from None
    if len(content) > TOKEN_BYTES_MAX:
        raise UsageError(
            f"the HTTP token in {path} has more than {TOKEN_BYTES_MAX} bytes, which is the limit: "
            "is this the right file?"
        )
    secret = content.strip()
    try:
        check_token(secret)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return secret


def check_token(secret: bytes) -> None:
    """Raise `UsageError` if a token is malformed or too short. The message does not repeat it."""
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
