"""Viewers of benchmark `watching` count as such only where the master has taken them."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from threading import Thread

import pytest

from benchmarks.viewers import FRAME, Reader, open_stream
from support.wording import naming


@contextmanager
def master_that_says(answer: bytes) -> Iterator[str]:
    """Answer one viewer, and end the stream; yield ``host:port``."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(10)
                connection.recv(4096)
                connection.sendall(answer)

        serving = Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            serving.join()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Busy\r\n\r\n", b"HTTP/1.1", b"\r\n", b""])
def test_a_viewer_that_is_not_taken_is_an_error(answer: bytes) -> None:
    with master_that_says(answer) as http, pytest.raises(ConnectionError, match="viewer"):
        open_stream(http, "bert")


def test_a_stream_that_ends_is_an_error_after_its_frames() -> None:
    with master_that_says(b"HTTP/1.1 200 OK\r\n\r\n" + FRAME + b"data: {}\n\n") as http:
        connection = open_stream(http, "bert")
    reader = Reader(connection)

    with closing(connection), pytest.raises(ConnectionError, match=naming("ended", 1)):
        read_on(reader)
    assert reader.frames == 1


def read_on(reader: Reader) -> None:
    for _ in range(100):
        reader.read()
