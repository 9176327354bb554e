"""Sockets that do not do as they are told."""

import socket
from collections.abc import Iterable
from typing import Any


class FickleSocket(socket.socket):
    """A socket whose first calls fail.

    Of a list of failures `None` lets one call pass. `unknown` are options, by level and number,
    that it does not have.
    """

    failures_to_send: list[OSError | None]
    failures_to_receive: list[OSError | None]
    unknown: frozenset[tuple[int, int]]

    @classmethod
    def on_loopback(
        cls,
        *,
        to_send: Iterable[OSError | None] = (),
        to_receive: Iterable[OSError | None] = (),
        unknown: Iterable[tuple[int, int]] = (),
    ) -> "FickleSocket":
        sock = cls(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        sock.failures_to_send = list(to_send)
        sock.failures_to_receive = list(to_receive)
        sock.unknown = frozenset(unknown)
        return sock

    def sendmsg(self, *arguments: Any) -> int:
        if self.failures_to_send and (failure := self.failures_to_send.pop(0)):
            raise failure
        return super().sendmsg(*arguments)

    def recvmsg_into(self, *arguments: Any) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        if self.failures_to_receive and (failure := self.failures_to_receive.pop(0)):
            raise failure
        return super().recvmsg_into(*arguments)

    def setsockopt(self, *arguments: Any) -> None:
        if arguments[:2] in self.unknown:
            raise OSError("no such option")
        super().setsockopt(*arguments)
