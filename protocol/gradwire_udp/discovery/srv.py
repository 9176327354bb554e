"""`SrvPlace`: addresses of a master in SRV records (RFC 2782). Uses dnspython.

Records of the lowest priority come first, those of one priority in an order that chance gives them
by their weights. Such a record has an address and no settings.
"""

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Self

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.announcement import OTHERS_MAX, Announcement
from gradwire_udp.discovery.reading import ANSWER_SECONDS, NotAnnouncedError, Reader
from gradwire_udp.sockets import show_address, split_address

if TYPE_CHECKING:
    from dns.resolver import Answer, Resolver

DNS_PORT: Final = 53
NAME_CHARACTERS_MAX: Final = 253


@dataclass(frozen=True, slots=True)
class SrvPlace:
    """A name with SRV records, and the DNS server to ask; None for those of this machine."""

    name: str
    server: str | None = None

    @classmethod
    def parse(cls, rest: str) -> Self:
        """Return the place behind ``dns+srv://``."""
        text = f"dns+srv://{rest}"
        server, slash, name = rest.rpartition("/")
        if slash:
            split_address(server, DNS_PORT)
        labels = name.rstrip(".").split(".")
        if (
            len(name) > NAME_CHARACTERS_MAX
            or not all(1 <= len(each) <= 63 for each in labels)
            or not name.isprintable()
            or set(name) & set(" /:@,*?#")
        ):
            raise UsageError(
                f"{text!r} has to name SRV records, as dns+srv://_gradwire._udp.example.org does, "
                f"in {NAME_CHARACTERS_MAX} characters at most"
            )
        return cls(name, server if slash else None)

    @property
    def text(self) -> str:
        """How users write it."""
        return f"dns+srv://{'' if self.server is None else f'{self.server}/'}{self.name}"

    @property
    def question(self) -> str:
        """What to look at where nothing is found there."""
        return (
            "does the zone have SRV records of that name, and does this machine reach its DNS "
            "server?"
        )

    def open(self) -> Reader:
        """Return what reads there."""
        try:
            import dns.resolver  # noqa: F401  # an extra
        except ImportError:
            raise UsageError(f"{self.text} needs dnspython: pip install 'gradwire[dns]'") from None
        return SrvReader(self)


class SrvReader:
    """Asks for the records again and again."""

    def __init__(self, place: SrvPlace) -> None:
        self._place = place

    def read(self, seconds: float) -> Announcement:
        """Return the addresses; see `Reader.read`."""
        import dns.exception  # an extra
        import dns.resolver

        place = self._place
        try:
            answer = self._resolver().resolve(
                place.name, "SRV", lifetime=min(seconds, ANSWER_SECONDS), search=False
            )
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
            raise NotAnnouncedError(f"DNS has no SRV records {place.name}: {error}") from None
        except dns.exception.SyntaxError as error:
            raise UsageError(f"{place.text}: {error}") from None
        except (dns.exception.DNSException, OSError) as error:
            why = type(error).__name__  # the text of some names every try
            raise UnreachableError(f"no answer from DNS about {place.name} ({why})") from None
        found = _addresses(answer)
        if not found:
            raise NotAnnouncedError(f"the SRV records {place.name} say that there is no master")
        return Announcement(master=found[0], others=tuple(found[1 : OTHERS_MAX + 1]))

    def close(self) -> None:
        """Do nothing: a question has a socket of its own."""

    def _resolver(self) -> "Resolver":
        """Return what asks the server."""
        import dns.resolver  # an extra

        server = self._place.server
        if server is None:
            return dns.resolver.Resolver()
        host, port = split_address(server, DNS_PORT)
        try:
            address = str(ip_address(host))
        except ValueError:
            address = str(socket.getaddrinfo(host, port)[0][4][0])
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers = [address]
        resolver.port = port
        return resolver


def _addresses(answer: "Answer") -> list[str]:
    """Return ``host:port`` of each record, in the order to try them in.

    A server that knows the addresses of a target sends them along, and it may be the only one that
    knows. Those of IPv4 come first.
    """
    sent_along: dict[Any, list[str]] = {}
    for rrset in sorted(answer.response.additional, key=lambda each: each.rdtype):
        if rrset.rdtype in (1, 28):  # A, AAAA
            sent_along.setdefault(rrset.name, []).extend(str(each.address) for each in rrset)
    assert answer.rrset is not None
    records: list[Any] = answer.rrset.processing_order()
    return list(
        dict.fromkeys(
            show_address((host, each.port))
            for each in records
            if each.port and str(each.target) != "."  # RFC 2782: decidedly no such service
            for host in sent_along.get(each.target, [str(each.target).rstrip(".")])
        )
    )
