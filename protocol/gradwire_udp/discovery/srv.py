"""`SrvPlace`: addresses of a master and its standby in SRV records (RFC 2782). Uses dnspython.

Records of the lowest priority come first, those of one priority in an order that chance gives them
by their weights. Records have addresses and no settings.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Self

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.announcement import (
    ANSWER_SECONDS,
    MASTERS_MAX,
    Announcement,
    NotAnnouncedError,
)
from gradwire_udp.sockets import show_address, split_address

DNS_PORT: Final = 53
NAME_CHARACTERS_MAX: Final = 253
LABEL_CHARACTERS_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class SrvPlace:
    """A name with SRV records, and the IP address and port of the DNS server to ask."""

    name: str
    server: tuple[str, int] | None = None
    """None for those of this machine."""

    @classmethod
    def parse(cls, rest: str) -> Self:
        """Return the place behind ``dns+srv://``.

        Raises
        ------
        UsageError
            If it is not written as a name, or the server is no IP address.
        """
        text = f"dns+srv://{rest}"
        written, slash, name = rest.rpartition("/")
        labels = name.removesuffix(".").split(".")
        if (
            len(name) > NAME_CHARACTERS_MAX
            or not name.isascii()
            or not name.isprintable()
            or not all(1 <= len(label) <= LABEL_CHARACTERS_MAX for label in labels)
            or set(name) & set(' :@,*?#\\"')
        ):
            raise UsageError(
                f"{text!r} has to name SRV records, as dns+srv://_gradwire._udp.example.org does, "
                f"in {NAME_CHARACTERS_MAX} characters at most"
            )
        if not slash:
            return cls(name)
        server = split_address(written, DNS_PORT)
        try:
            ip_address(server[0])
        except ValueError:
            raise UsageError(
                f"{text!r}: the DNS server {server[0]!r} has to be an IP address"
            ) from None
        return cls(name, server)

    @property
    def text(self) -> str:
        """How users write it."""
        return (
            f"dns+srv://{'' if self.server is None else show_address(self.server) + '/'}{self.name}"
        )

    @property
    def question(self) -> str:
        """What to check where nothing is found there."""
        return (
            "does the zone have SRV records of that name, and does this machine reach its DNS "
            "server?"
        )

    def open(self) -> "SrvReader":
        """Return what reads there; `UsageError` without dnspython."""
        return SrvReader(self)


class SrvReader:
    """Asks for the records again and again."""

    def __init__(self, place: SrvPlace) -> None:
        try:
            from dns.resolver import Resolver  # an extra
        except ImportError:
            raise UsageError(f"{place.text} needs dnspython: pip install 'gradwire[dns]'") from None
        self._place = place
        self._resolver = Resolver(configure=place.server is None)
        if place.server is not None:
            self._resolver.nameservers = [place.server[0]]
            self._resolver.port = place.server[1]

    def read(self) -> Announcement:
        """Return the addresses; blocks for as long as an answer may take.

        Raises
        ------
        NotAnnouncedError
            If there are none.
        UnreachableError
            If DNS does not answer in time.
        """
        from dns.exception import DNSException  # an extra
        from dns.resolver import NXDOMAIN, NoAnswer

        name = self._place.name
        try:
            answer = self._resolver.resolve(name, "SRV", lifetime=ANSWER_SECONDS, search=True)
        except (NXDOMAIN, NoAnswer):
            raise NotAnnouncedError(f"DNS has no SRV records {name}") from None
        except (DNSException, OSError) as error:
            raise UnreachableError(
                f"no answer from DNS about {name} ({type(error).__name__})"
            ) from None
        # RFC 2782: the target "." says that there is decidedly no such service.
        records: list[Any] = answer.rrset.processing_order() if answer.rrset else []
        masters = [
            show_address((str(each.target).removesuffix("."), each.port))
            for each in records
            if str(each.target) != "." and each.port
        ]
        if not masters:
            raise NotAnnouncedError(f"the SRV records {name} say that there is no master")
        return Announcement(masters=tuple(masters[:MASTERS_MAX]))

    def close(self) -> None:
        """Do nothing: each question has a socket of its own."""
