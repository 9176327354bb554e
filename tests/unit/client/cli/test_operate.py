"""``gradwire operate``: what it sends, and what it says of what goes wrong."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from gradwire.cli.app import main
from gradwire_udp.files.keys import write_key
from support.wording import naming

SECRET = "correct-horse-battery-staple"
Operate = Callable[..., tuple[int, str, str]]


@dataclass
class StandIn:
    """Answers in place of a master."""

    status: int = 200
    body: bytes = b'{"done": "it is done"}'
    headers: dict[str, str] = field(default_factory=dict)
    heard: list[tuple[str, str | None, bytes]] = field(default_factory=list)
    """Method and path, token and body of each request."""
    url: str = ""

    @contextmanager
    def listening(self) -> Iterator[None]:
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                line = f"{self.command} {self.path}"
                stand_in.heard.append((line, self.headers.get("Authorization"), body))
                self.send_response(stand_in.status)
                for name, value in stand_in.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(stand_in.body)

            do_GET = do_POST = answer  # noqa: N815  # names of http.server's

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_port}"
            yield
            server.shutdown()
            thread.join()


@pytest.fixture
def master() -> Iterator[StandIn]:
    stand_in = StandIn()
    with stand_in.listening():
        yield stand_in


@pytest.fixture
def operate(capsys: pytest.CaptureFixture[str], master: StandIn) -> Operate:
    """Run the command; return exit status, stdout and stderr."""

    def run(*arguments: str, http: str | None = None) -> tuple[int, str, str]:
        status = main(["operate", *arguments, "--http", http or master.url])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    write_key(tmp_path / "http.token", f"{SECRET}\n")
    return str(tmp_path / "http.token")


def test_an_order_goes_with_its_token_and_the_answer_is_shown(
    operate: Operate, master: StandIn, token_file: str
) -> None:
    done = operate("expel", "gpu1", "--run", "bert", "--token-file", token_file)

    assert done == (0, "it is done\n", "")
    [(line, token, body)] = master.heard
    assert (line, token) == ("POST /api/v1/orders", f"Bearer {SECRET}")
    assert json.loads(body) == {"action": "expel", "name": "gpu1", "run": "bert"}


def test_the_status_is_the_overview(operate: Operate, master: StandIn) -> None:
    master.body = b'{"runs": []}'

    assert operate("status", http=master.url.removeprefix("http://")) == (0, '{"runs": []}\n', "")
    assert master.heard == [("GET /api/v1/overview", None, b"")]


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (401, ("refused", "it takes a token", "--token-file FILE")),
        (403, ("refused", "it takes a token")),
        (409, ("refused", "it takes a token")),
        (302, ("refused", "it takes a token")),
    ],
)
def test_what_is_refused_has_status_4_and_the_master_s_reason(
    operate: Operate, master: StandIn, status: int, named: tuple[str, ...]
) -> None:
    master.status, master.body = status, b"it takes a token\n"
    master.headers = {"Location": "http://127.0.0.1:9/"}

    code, shown, said = operate("drain")

    assert (code, shown) == (4, "")
    assert said == naming("gradwire:", master.url, *named)


def test_where_nobody_listens_it_has_status_5_and_says_what_to_try(operate: Operate) -> None:
    code, shown, said = operate("drain", http="http://127.0.0.1:9")

    assert (code, shown) == (5, "")
    assert said == naming("http://127.0.0.1:9", "refused", "--http URL")


def test_what_is_no_master_is_named(operate: Operate, master: StandIn) -> None:
    master.body = b"<html>"

    assert operate("drain") == (2, "", naming(master.url, "no JSON"))


@pytest.mark.parametrize("url", ["off", "file:///etc/passwd", "http://", "http://host?token=x"])
def test_what_is_no_url_is_refused_before_anything_is_sent(operate: Operate, url: str) -> None:
    code, _, said = operate("drain", http=url)

    assert (code, said) == (2, naming("--http", url))


def test_no_proxy_sees_the_token(
    operate: Operate, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert operate("drain", "--token-file", token_file)[0] == 0


def test_a_token_that_others_can_read_is_not_taken(operate: Operate, token_file: str) -> None:
    Path(token_file).chmod(0o644)

    code, _, said = operate("drain", "--token-file", token_file)

    assert (code, said) == (2, naming(token_file, "0644"))
