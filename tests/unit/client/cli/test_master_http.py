import json
import socket

import pytest

from gradwire.cli.master_http import ANSWER_BYTES_MAX, MasterHttp
from gradwire.errors import DeadlineError, ProtocolError, RefusedError, UnreachableError, UsageError
from support.http_stub import Answer, answering
from support.wording import naming

TOKEN = "correct-horse-battery-staple"


def test_a_document_is_asked_for_with_the_token_and_an_order_is_sent() -> None:
    with answering(lambda target: (200, {}, b'{"done": "drained"}')) as stub:
        master = MasterHttp(stub.address, TOKEN)

        assert master.get("/api/v1/runs/a%20b?points=3") == {"done": "drained"}
        assert master.order("drain", run="bert") == "drained"

    (method, target, headers, _), (other_method, other_target, other_headers, body) = stub.requests
    assert (method, target) == ("GET", "/api/v1/runs/a%20b?points=3")
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert (other_method, other_target) == ("POST", "/api/v1/orders")
    assert other_headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"action": "drain", "name": "", "run": "bert"}


ERRORS: list[tuple[Answer, type[Exception], tuple[str, ...]]] = [
    ((401, {}, b"no"), RefusedError, ("--token-file",)),
    ((403, {}, b"closed\n\x1b[2J"), RefusedError, ("closed \N{REPLACEMENT CHARACTER}[2J",)),
    ((404, {}, b"there is no run bert"), RefusedError, ("there is no run bert",)),
    ((200, {}, b"<html>"), ProtocolError, ()),
    ((200, {}, b"[" * 100_000), ProtocolError, ()),
    ((200, {}, b" " * (ANSWER_BYTES_MAX + 1)), ProtocolError, ()),
]


@pytest.mark.parametrize(("answer", "kind", "words"), ERRORS)
def test_whatever_is_no_document_is_an_error_that_says_what_to_do(
    answer: Answer, kind: type[Exception], words: tuple[str, ...]
) -> None:
    with answering(lambda target: answer) as stub, pytest.raises(kind) as raised:
        MasterHttp(stub.address).overview()

    assert str(raised.value) == naming(stub.address, *words)
    assert "\x1b" not in str(raised.value)


def test_a_token_does_not_follow_a_redirection() -> None:
    with answering(lambda target: (200, {}, b"{}")) as other:
        moved = {"Location": f"http://{other.address}/api/v1/overview"}
        with answering(lambda target: (302, moved, b"")) as stub, pytest.raises(RefusedError):
            MasterHttp(stub.address, TOKEN).overview()

    assert other.requests == []


def test_nobody_listens() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"

        with pytest.raises(UnreachableError) as raised:
            MasterHttp(address).overview()

    assert str(raised.value) == naming(address, "--http")


def test_a_master_that_does_not_answer_is_waited_for_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gradwire.cli.master_http.ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"

        with pytest.raises(DeadlineError) as raised:
            MasterHttp(address).overview()

    assert str(raised.value) == naming(address, "0.05 s")


@pytest.mark.parametrize("address", ["", ":1", "ftp://a:1", "http://", "http://a:1?b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError) as raised:
        MasterHttp(address)

    assert "--http" in str(raised.value)
