"""`Acceptor`: accepts TCP connections one by one, and survives a lack of file descriptors.

`loop.create_server` is not good enough for a daemon. If the process has no descriptors left,
asyncio's server calls the loop's exception handler a hundred times, which ends the daemon, and
uvloop's accepts each connection and closes it at once. An `Acceptor` leaves them in the kernel's
queue.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from gradwire_udp.sockets import SocketAddress

ACCEPT_PAUSE_SECONDS: Final = 1.0
"""Pause after a connection could not be accepted, for lack of descriptors."""


class Acceptor:
    """Accepts connections until it is closed.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    listener : socket.socket
        Listening and non-blocking; the acceptor closes it.
    on_accept : callable
        Called with each connection, a non-blocking socket, and the address of the peer.
    name : str
        Of the protocol, for the log.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        on_accept: Callable[[socket.socket, SocketAddress], None],
        name: str,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._on_accept = on_accept
        self._name = name
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def pause(self, seconds: float) -> None:
        """Accept no connection for `seconds`; new ones wait in the kernel's queue."""
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._listen)

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept one connection; the rest of the loop runs before the next."""
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Without a pause, a waiting connection would wake the loop again and again.
            logger = logging.getLogger(f"gradwire.{self._name.lower()}")
            logger.warning(
                "cannot accept %s connections: %s; trying again in %g s",
                self._name, error.strerror, ACCEPT_PAUSE_SECONDS,
            )  # fmt: skip
            self.pause(ACCEPT_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        self._on_accept(connection, address)
