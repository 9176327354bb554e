"""Something between a worker and its master that passes TCP on, until it is told otherwise."""

import socket
import threading
from contextlib import suppress
from typing import Self

from support.waiting import PROCESS

CHUNK_BYTES = 2**16


class TcpProxy:
    """Listens on loopback and passes on what comes, both ways.

    Parameters
    ----------
    target : str
        ``host:port`` to pass it on to.
    """

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._targets: list[socket.socket] = []
        self._passing = threading.Event()
        self._passing.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cut()
        self._listener.close()

    @property
    def address(self) -> str:
        """``host:port`` where it listens."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def hold(self) -> None:
        """Pass nothing on any more."""
        self._passing.clear()

    def go_on(self) -> None:
        """Pass on what was held up, and all that follows."""
        self._passing.set()

    def cut(self) -> None:
        """End every connection."""
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._passing.set()

    def cut_from_target(self) -> None:
        """End the target's side of every connection; while held up, the other side hears nothing.

        The target is then the first to notice.
        """
        for sock in self._targets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                self._targets.append(far)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with source:
            with suppress(OSError):
                while data := source.recv(CHUNK_BYTES):
                    self._passing.wait(PROCESS)
                    target.sendall(data)
            self._passing.wait(PROCESS)
            # Also after a reset, which a process leaves that was killed with something to read.
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)
