"""Something that answers HTTP requests as a test says, in place of a master."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Stub:
    """Where it listens, and what it was asked."""

    port: int
    close: Callable[[], None]
    """Stop listening."""
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    """Method, target, headers, body."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def answering(answer: Callable[[str], Answer], port: int = 0) -> Iterator[Stub]:
    """Answer every request by what a function makes of its target."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            stub.requests.append((self.command, self.path, dict(self.headers.items()), body))
            status, headers, content = answer(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)

    def close() -> None:
        if thread.is_alive():
            server.shutdown()
            thread.join()
            server.server_close()

    stub = Stub(server.server_port, close)
    thread.start()
    try:
        yield stub
    finally:
        close()
