"""A DNS server on loopback, which has the records that a test gives it."""

import socket
from collections.abc import Sequence
from threading import Thread
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from support.waiting import wait_until


class DnsServer:
    """Answers questions over UDP, on a thread of its own.

    Parameters
    ----------
    records : sequence of (name, type, text)
        Such as ``("_gradwire._udp.test.", "SRV", "0 5 40123 host.test.")``. What is asked for is
        the answer, and what else there is comes along.
    """

    def __init__(self, records: Sequence[tuple[str, str, str]] = (), *, is_silent: bool = False):
        self.records = list(records)
        self.is_silent = is_silent
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        wait_until(lambda: not self._thread.is_alive(), "the DNS server to end")
        self._socket.close()

    @property
    def address(self) -> str:
        """``host:port`` to ask."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def _serve(self) -> None:
        while True:
            datagram, client = self._socket.recvfrom(65536)
            if not datagram:
                return
            self.asked += 1
            if not self.is_silent:
                self._socket.sendto(self._answer(dns.message.from_wire(datagram)), client)

    def _answer(self, query: dns.message.Message) -> bytes:
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA
        [question] = query.question
        sets: dict[tuple[str, str], list[str]] = {}
        for name, kind, text in self.records:
            sets.setdefault((name, kind), []).append(text)
        for (name, kind), texts in sets.items():
            rrset = dns.rrset.from_text(name, 60, "IN", kind, *texts)
            if rrset.name == question.name and rrset.rdtype == question.rdtype:
                answer.answer.append(rrset)
            else:
                answer.additional.append(rrset)
        if not answer.answer:
            answer.additional.clear()
            answer.set_rcode(dns.rcode.NXDOMAIN)
        wire: bytes = answer.to_wire()
        return wire
