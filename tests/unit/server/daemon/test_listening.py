"""Where a master listens: over UDP, over TCP, over both, and where it cannot."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from gradwire_protocol import Connected, Connection, Event, UsageError
from gradwire_protocol.crypto.keys import SECRET_BYTES, Keyring, RunKey
from gradwire_protocol.limits import RESET_DATAGRAM_BYTES_MIN
from gradwire_protocol.wire.packets import TRANSPORT, TRANSPORT_HEADER
from gradwire_server.config import MasterConfig
from gradwire_server.daemon import listening as module
from gradwire_server.daemon.listening import AddressInUseError, Listening, Transport
from gradwire_udp import open_listener, open_socket, show_address
from support.applications import Untimed
from support.waiting import SOON
from support.wording import naming


@dataclass
class Heard(Untimed):
    """In place of a master: what it hears."""

    events: list[tuple[Connection, Event]] = field(default_factory=list)

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        self.events.append((connection, event))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def last_connection(self) -> Connection:
        return [connection for connection, event in self.events if event == Connected()][-1]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def opened(
    loop: asyncio.AbstractEventLoop, transport: Transport, listen: str = "127.0.0.1:0"
) -> tuple[str, int, tuple[bool, bool]]:
    """Return where a master listens, and whether its port is taken for UDP and for TCP."""
    listening = Listening(MasterConfig(), transport, insecure=True)
    drivers = listening.open(listen, Heard(), loop)
    host, port = listening.address[:2]
    taken = (
        is_taken(host, port, socket.SOCK_DGRAM),
        is_taken(host, port, socket.SOCK_STREAM),
    )
    drivers.close()
    return host, port, taken


def is_taken(host: str, port: int, kind: socket.SocketKind) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as sock:
        try:
            sock.bind((host, port))
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("transport", "udp", "tcp"),
    [("auto", True, True), ("udp", True, False), ("tcp", False, True)],
)
def test_it_listens_where_it_is_told_at_one_port(
    loop: asyncio.AbstractEventLoop, transport: Transport, udp: bool, tcp: bool
) -> None:
    host, port, taken = opened(loop, transport)

    assert (host, taken) == ("127.0.0.1", (udp, tcp))
    assert port


def test_where_any_port_will_do_one_is_found_that_is_free_for_both(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[int] = []

    def first_time_busy(address: tuple[str, int], family: socket.AddressFamily) -> socket.socket:
        if not busy:
            busy.append(address[1])
            raise OSError(98, "Address already in use")
        return open_listener(address, family)

    monkeypatch.setattr(module, "open_listener", first_time_busy)

    _, port, taken = opened(loop, "auto")

    assert busy
    assert port
    assert taken == (True, True)


def test_a_port_that_is_taken_for_tcp_leaves_udp_and_a_warning(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    with open_listener(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        _, _, taken = opened(loop, "auto", address)

    assert taken == (True, True)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == naming(
        "TCP", address, "Address already in use", "--listen", "--transport udp"
    )


def test_where_no_port_is_free_for_both_there_is_a_warning_too(
    loop: asyncio.AbstractEventLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def busy(address: tuple[str, int], family: socket.AddressFamily) -> socket.socket:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(module, "open_listener", busy)

    _, _, taken = opened(loop, "auto")

    assert taken == (True, False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_port_that_is_taken_for_tcp_where_only_tcp_is_wanted_is_an_error(
    loop: asyncio.AbstractEventLoop,
) -> None:
    with open_listener(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(AddressInUseError, match=naming("TCP", address, "--listen")):
            opened(loop, "tcp", address)


@pytest.mark.parametrize("transport", ["auto", "udp"])
def test_a_port_that_is_taken_for_udp_is_an_error(
    loop: asyncio.AbstractEventLoop, transport: Transport
) -> None:
    with open_socket(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        with pytest.raises(AddressInUseError, match=naming("UDP", address, "--listen")):
            opened(loop, transport, address)


def test_only_these_transports_are_known() -> None:
    with pytest.raises(UsageError, match=naming("transport", "sctp", "auto", "udp", "tcp")):
        Listening(MasterConfig(), "sctp")  # type: ignore[arg-type]


# Who may join.


@pytest.mark.parametrize("transport", ["auto", "udp", "tcp"])
@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_where_others_can_reach_it_without_a_key_it_does_not_listen(
    loop: asyncio.AbstractEventLoop, transport: Transport, listen: str
) -> None:
    ways_out = ("gradwire keygen run.key", "--key-file run.key", "--insecure")

    with pytest.raises(UsageError, match=naming(listen, *ways_out)):
        Listening(MasterConfig(), transport).open(listen, Heard(), loop)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.1.2.3:0", "localhost:0"])
def test_on_loopback_it_needs_no_key(loop: asyncio.AbstractEventLoop, listen: str) -> None:
    listening = Listening(MasterConfig(), "auto")

    drivers = listening.open(listen, Heard(), loop)

    assert listening.address[0].startswith("127.")
    drivers.close()


# Another master in its place.


def answer_to_a_stranger(loop: asyncio.AbstractEventLoop, listen: str) -> tuple[str, bytes]:
    """Return where a master listens, and what it says to a packet of a session it does not know."""
    listening = Listening(MasterConfig(), "udp", Keyring([RunKey(bytes(SECRET_BYTES))]))
    drivers = listening.open(listen, Heard(), loop)
    packet = TRANSPORT_HEADER.pack(TRANSPORT, 0, 0, 77, 1).ljust(RESET_DATAGRAM_BYTES_MIN, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
        worker.connect(listening.address)
        worker.setblocking(False)
        worker.send(packet)
        answer = loop.run_until_complete(asyncio.wait_for(loop.sock_recv(worker, 100), SOON))
    drivers.close()
    return show_address(listening.address), answer


def test_one_that_took_any_free_port_is_known_when_it_is_started_again_there(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Else workers that have not noticed its end wait for the idle timeout."""
    address, first = answer_to_a_stranger(loop, "127.0.0.1:0")

    assert answer_to_a_stranger(loop, address) == (address, first)


# A standby.


def test_a_standby_dials_over_udp_with_a_key_of_its_own(loop: asyncio.AbstractEventLoop) -> None:
    keyring = Keyring([RunKey(bytes(SECRET_BYTES))])
    listening = Listening(MasterConfig(standby_of="127.0.0.1:1"), "auto", keyring)
    drivers = listening.open("127.0.0.1:0", Heard(), loop)

    connection = listening.dial("127.0.0.1:1", 0.0)

    assert connection.address == ("127.0.0.1", 1)
    drivers.close()


def test_a_standby_reaches_nobody_over_another_version_of_ip(
    loop: asyncio.AbstractEventLoop,
) -> None:
    listening = Listening(MasterConfig(standby_of="[::1]:1"), "auto")
    drivers = listening.open("127.0.0.1:0", Heard(), loop)

    with pytest.raises(UsageError, match=naming("IPv4", "IPv6")):
        listening.dial("[::1]:1", 0.0)
    drivers.close()


def test_a_standby_needs_udp() -> None:
    with pytest.raises(UsageError, match=naming("standby", "UDP")):
        Listening(MasterConfig(standby_of="127.0.0.1:1"), "tcp")
