"""Who may see which page, and where the token comes from and never goes to."""

import pickle
import re
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_server.http.access import TOKEN_BYTES_MAX, Access, Token, find_token
from gradwire_server.metrics import HttpRefusal
from support.wording import naming

SECRET = "correct-horse-battery-staple"
LOCKED = Access(token=Token(SECRET.encode()))
HERE = {"Host": "127.0.0.1:40124"}
PATHS = ("/healthz", "/metrics", "/status")


def refusals(
    access: Access, headers: Mapping[str, str] | None = None, *, on_loopback: bool
) -> list[HttpRefusal | None]:
    """Return what is said at each of `PATHS`."""
    headers = HERE if headers is None else headers
    return [access.refusal(path, headers, on_loopback=on_loopback) for path in PATHS]


# The rules.


def test_without_a_token_loopback_is_open_and_elsewhere_only_health() -> None:
    closed = HttpRefusal.CLOSED

    assert refusals(Access(), on_loopback=True) == [None, None, None]
    assert refusals(Access(), on_loopback=False) == [None, closed, closed]


@pytest.mark.parametrize("on_loopback", [True, False])
def test_a_token_is_asked_for_everywhere_but_at_health(on_loopback: bool) -> None:
    bearer = {"Authorization": f"Bearer {SECRET}"}
    no = HttpRefusal.UNAUTHORIZED

    assert refusals(LOCKED, on_loopback=on_loopback) == [None, no, no]
    assert refusals(LOCKED, bearer, on_loopback=on_loopback) == [None, None, None]


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

    assert LOCKED.refusal("/status", headers, on_loopback=True) is HttpRefusal.UNAUTHORIZED


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
    refusal = Access().refusal("/status", {"Host": host}, on_loopback=True)

    assert (refusal is None) == is_open


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


def test_without_file_and_credential_there_is_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)

    assert find_token(None) is None
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert find_token(None) is None
