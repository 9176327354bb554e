"""Who may see which page, and where the token comes from and never goes to."""

import pickle
import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_server.http.access import (
    OPERATOR_CREDENTIAL,
    TOKEN_BYTES_MAX,
    Access,
    Token,
    find_token,
)
from support.wording import naming

SECRET = "correct-horse-battery-staple"
OTHER = "another-horse-another-battery"
BEARER, OPERATOR = ({"Authorization": f"Bearer {secret}"} for secret in (SECRET, OTHER))
LOCKED = Access(token=Token(SECRET.encode()))
HERE = {"Host": "127.0.0.1:40124"}
PATH = "/api/v1/overview"


def may(access: Access, headers: Mapping[str, str] | None = None) -> tuple[Any, Any]:
    """Return who may read, and order: True or a name, or why not."""

    def tried(act: Callable[[], object]) -> object:
        try:
            return act() or True
        except web.HTTPException as error:
            return error.status

    headers = {**HERE, **(headers or {})}
    return tried(lambda: access.check(PATH, headers)), tried(lambda: access.operator(headers))


# The rules.

NO, CLOSED = 401, 403


@pytest.mark.parametrize("on_loopback", [True, False])
@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("ordering", [True, False])
def test_who_may_read_and_who_may_order(
    on_loopback: bool, has_keys: bool, reading: bool, ordering: bool
) -> None:
    access = Access(
        token=Token(SECRET.encode()) if reading else None,
        operator_token=Token(OTHER.encode()) if ordering else None,
        has_keys=has_keys,
        on_loopback=on_loopback,
    )
    open_here = on_loopback and not reading
    nobody = NO if reading or ordering else CLOSED
    here = "on this machine" if open_here and not has_keys else CLOSED

    assert may(access) == (open_here or nobody, NO if ordering else here)
    assert may(access, BEARER) == (open_here or reading or nobody, NO if ordering else here)
    assert may(access, OPERATOR) == (
        open_here or ordering or nobody, "operator" if ordering else here
    )  # fmt: skip
    assert access.may_order(HERE | OPERATOR) == (ordering or here != CLOSED)
    access.check("/healthz", {})
    assert access.lacks_token == (not (on_loopback or reading or ordering))


def test_the_files_of_a_page_have_no_secrets() -> None:
    access = Access(token=Token(SECRET.encode()), public=("/page.js",))

    access.check("/page.js", {})
    with pytest.raises(web.HTTPUnauthorized):
        access.check("/page.json", {})


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        SECRET,
        f"Basic {SECRET}",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET.upper()}",
        f"Bearer {SECRET} {SECRET}",
        f"Bearer x {SECRET}",
        f"Bearer\u00a0{SECRET}",
        f"Bearer {SECRET}\x00",
        "Bearer \udcff",
        "Bearer café-café-café-café",
    ],
)
def test_anything_but_the_token_is_refused(authorization: str) -> None:
    headers = {"Authorization": authorization}

    assert may(LOCKED, headers)[0] == NO


@given(offered=st.text(st.characters(exclude_categories=())))
def test_only_the_token_matches_and_no_text_is_an_error(offered: str) -> None:
    token = Token(SECRET.encode())

    try:
        matches = token.matches(offered)
    except UnicodeEncodeError:
        # Lone surrogates that stand for no byte: no header that came over a socket has them.
        assert re.search("[\ud800-\udc7f\udd00-\udfff]", offered)
    else:
        assert matches == (offered == SECRET)


@pytest.mark.parametrize(
    ("host", "is_open"),
    [
        ("", True),
        ("localhost", True),
        ("LOCALHOST:40124", True),
        ("localhost.", True),
        ("master.localhost:1", True),
        ("127.0.0.1:40124", True),
        ("[::1]:40124", True),
        ("[::1]", True),
        ("192.0.2.1", True),
        ("rebound.example", False),
        ("rebound.example:40124", False),
        ("127.0.0.1.example", False),
        ("localhost.example", False),
        ("notlocalhost", False),
        ("[rebound.example]", False),
    ],
)
def test_open_loopback_answers_only_to_names_that_nobody_else_can_give_it(
    host: str, is_open: bool
) -> None:
    access = Access(on_loopback=True, has_keys=False)
    expected = (True, "on this machine") if is_open else (CLOSED, CLOSED)

    assert may(access, {"Host": host}) == expected


# The token never shows.


def test_nothing_that_shows_an_access_shows_its_token() -> None:
    shown = [repr(LOCKED), str(LOCKED), repr(LOCKED.token), repr(pickle.dumps(LOCKED))]

    assert not any(SECRET in text for text in shown)
    assert LOCKED.token is not None
    slots = (getattr(LOCKED.token, name) for name in Token.__slots__)
    assert not any(SECRET.encode() in value for value in slots)


@pytest.mark.parametrize("content", ["se cret-of-ours", "sécret-of-ours-of-ours", "secret-of-ours"])
def test_no_error_and_no_traceback_repeats_what_the_file_holds(
    tmp_path: Path, content: str
) -> None:
    file = written(tmp_path / "token", content)

    with pytest.raises(UsageError) as refused:
        find_token(file)

    assert content not in "".join(traceback.format_exception(refused.value))


# Where it comes from.


def written(path: Path, content: str, mode: int = 0o600) -> Path:
    """Write a file; return its path."""
    path.write_text(content, encoding="utf-8")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o644, 0o677])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    file = written(tmp_path / "token", SECRET, mode)

    with pytest.raises(UsageError, match=naming(file, f"{mode:04o}", f"chmod 600 {file}")):
        find_token(file)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ("one word", "-._~+/")),
        ("two words of some length", ("one word",)),
        ("line-of-some-length\nline-of-some-length", ("one word",)),
        ("=================", ("one word",)),
        ("fifteen-letters", (15, 16)),
        ("x" * (TOKEN_BYTES_MAX + 1), (4096,)),
    ],
)
def test_a_file_without_a_token_is_named_with_what_is_wrong(
    tmp_path: Path, content: str, named: tuple[object, ...]
) -> None:
    file = written(tmp_path / "token", content)

    with pytest.raises(UsageError, match=naming(file, *named)):
        find_token(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=naming(tmp_path / "nothing", "No such file")):
        find_token(tmp_path / "nothing")


def test_without_a_file_the_credential_of_systemd_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    # An access control list of systemd's shows as a right of the group.
    written(tmp_path / "http-token", SECRET, 0o440)

    token = find_token(None)

    assert token is not None
    assert token.matches(SECRET)
    assert find_token(None, OPERATOR_CREDENTIAL) is None


def test_without_file_and_credential_there_is_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)

    assert find_token(None) is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert find_token(None) is None
