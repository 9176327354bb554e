"""`Acceptor`: lets TCP connections in one after the other, also when no descriptors are left.

`loop.create_server` does not do for a daemon. Where the process has no descriptors left, asyncio's
calls the loop's exception handler a hundred times, which ends the daemon, and uvloop's lets who
waits in and closes the connection at once. Here they wait in the kernel's queue.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from gradwire_udp.sockets import SocketAddress

ACCEPT_PAUSE_SECONDS: Final = 1.0
"""How long nobody is let in when the process has no descriptors left."""


class Acceptor:
    """Accepts connections until it is closed.

    Parameters
    ----------
    loop : asyncio.AbstractEventLoop
    listener : socket.socket
        Listening and non-blocking; closed with this.
    on_accept : callable
        Given a non-blocking socket and the address of the other end.
    name : str
        Of what is spoken there, for the log.
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
        """Let nobody in for a while; whoever comes waits."""
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._listen)

    def close(self) -> None:
        """Let nobody in any more; those who are in stay."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        """Let one in; before the next one, others have their turn."""
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Whoever waits would wake us again and again.
            logger = logging.getLogger(f"gradwire.{self._name.lower()}")
            logger.warning("no %s connection can be accepted: %s", self._name, error.strerror)
            self.pause(ACCEPT_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        self._on_accept(connection, address)
