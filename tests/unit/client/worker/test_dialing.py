"""Dialing: what is tried, in which order and for how long, and what is said of it."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from random import Random
from typing import cast, get_args

import pytest

from gradwire.errors import GradwireError
from gradwire.settings.settings import Transport
from gradwire.worker.dialing import (
    ADDRESS_SECONDS,
    KEYS,
    MASTERS_MAX,
    REFUSED,
    SHARES,
    TCP,
    TRIES,
    UDP,
    Dialing,
    Way,
)
from gradwire.worker.membership import Membership
from gradwire.worker.state import Stage
from gradwire.worker.worker import Worker
from gradwire_protocol import (
    CloseCode,
    Connected,
    Connection,
    ConnectionConfig,
    Disconnected,
    Endpoint,
)
from gradwire_protocol.connection.states import State
from gradwire_protocol.messages.admission import Join
from gradwire_protocol.messages.link import Link
from gradwire_protocol.messages.replicas import Blocks
from support.endpoints import dialling
from support.network import SimulatedNetwork
from support.peer import ScriptedPeer, join_request
from support.wording import naming


class Dialled:
    """Ways that lead nowhere, and when each was tried."""

    def __init__(
        self,
        transport: Transport,
        timeout: float = 10.0,
        *,
        start_timeout: float = 0.0,
        accepts: bool = False,
        has_key: bool = False,
    ) -> None:
        self.tried: list[tuple[float, str]] = []
        self.accepts: Callable[[], bool] = lambda: accepts
        self._endpoint = dialling()
        ways = [Way(name, self._noting(name)) for name in TRIES[transport]]
        self.dialing = Dialing(
            ways, "gpu7:1", timeout, start_timeout=start_timeout,
            accepts=lambda: self.accepts(), has_key=has_key,
        )  # fmt: skip

    def _noting(self, name: str) -> Callable[[float], Connection]:
        def dial(now: float) -> Connection:
            self.tried.append((now, name))
            return self._endpoint.connect(name, now)

        return dial

    def fail(self, lasting: dict[str, float], reasons: dict[str, str]) -> float:
        """Let every try fail after so many seconds; return when it is over."""
        now = 100.0
        self.dialing.dial(now)
        while True:
            name = self.dialing.way.name
            now += lasting[name]
            if not self.dialing.failed(reasons[name], now):
                return now
            assert self.dialing.next_at is not None
            now = max(now, self.dialing.next_at)
            self.dialing.dial(now)


NO_KEY = KEYS[False]
NO_ANSWER = "no answer to 3 datagrams"
SILENCE = {UDP: 1.0, TCP: 4.0}
NOBODY = {UDP: 1.0, TCP: 0.0}


def test_udp_has_three_seconds_of_ten_before_tcp_has_its_turn() -> None:
    dialled = Dialled("auto")
    timeout = {name: share * 10.0 for name, share in SHARES.items()}

    dialled.fail(timeout, {UDP: NO_ANSWER, TCP: NO_ANSWER})

    assert dialled.tried == [
        (100.0, UDP), (101.0, UDP), (102.0, UDP), (103.0, TCP),
        (107.0, UDP), (108.0, UDP), (109.0, UDP),
    ]  # fmt: skip


def test_who_refuses_tcp_is_asked_over_udp_again() -> None:
    """The master may be about to start: then it has both, and UDP is better."""
    dialled = Dialled("auto")

    dialled.fail(NOBODY, {UDP: NO_ANSWER, TCP: REFUSED})

    assert [name for _, name in dialled.tried[:6]] == [UDP, UDP, UDP, TCP, UDP, UDP]
    assert dialled.tried[4][0] - dialled.tried[3][0] == 0.5


@pytest.mark.parametrize("transport", get_args(Transport))
@pytest.mark.parametrize("lasting", [SILENCE, NOBODY], ids=["silence", "nobody"])
def test_it_takes_about_the_time_it_was_given(
    transport: Transport, lasting: dict[str, float]
) -> None:
    over = Dialled(transport).fail(lasting, {UDP: NO_ANSWER, TCP: REFUSED})

    assert 9.5 <= over - 100.0 <= 13.5


@pytest.mark.parametrize(
    ("lasting", "reasons"),
    [
        (SILENCE, {UDP: NO_ANSWER, TCP: NO_ANSWER}),
        (NOBODY, {UDP: NO_ANSWER, TCP: "No route to host"}),
    ],
    ids=["silent", "without a route"],
)
@pytest.mark.parametrize(
    ("accepts", "seconds"), [(False, 60.0), (True, 10.0)], ids=["nobody", "something"]
)
def test_a_machine_that_is_silent_may_come_up_but_what_listens_has_to_answer(
    lasting: dict[str, float], reasons: dict[str, str], *, accepts: bool, seconds: float
) -> None:
    dialled = Dialled("auto", start_timeout=60.0, accepts=accepts)

    over = dialled.fail(lasting, reasons)

    assert seconds - 0.5 <= over - 100.0 <= seconds + 4.5
    limit = f"{seconds:g} s at most"
    assert dialled.dialing.purpose == naming("gpu7:1", "to answer", "no answer over UDP", limit)


@pytest.mark.parametrize("transport", get_args(Transport))
def test_a_port_that_refuses_is_named_at_once_and_waited_for_no_longer(
    transport: Transport,
) -> None:
    dialled = Dialled(transport, start_timeout=60.0)
    dialled.dialing.dial(100.0)
    assert dialled.dialing.failed(REFUSED, 100.5)
    assert dialled.dialing.purpose == naming("gpu7:1", "nothing listens", "10 s")

    over = dialled.fail({UDP: 0.2, TCP: 0.0}, {UDP: REFUSED, TCP: REFUSED})

    assert 9.0 <= over - 100.0 <= 11.0
    waited = f"waited {round(over - 100.0, 1):g} s"
    assert str(dialled.dialing.error()) == naming("nothing listens at gpu7:1", waited, "port")


def test_where_udp_is_silent_tcp_tells_that_nothing_listens() -> None:
    dialled = Dialled("auto", start_timeout=60.0)

    over = dialled.fail(NOBODY, {UDP: NO_ANSWER, TCP: REFUSED})

    assert 9.0 <= over - 100.0 <= 13.5
    assert dialled.dialing.purpose == naming("gpu7:1", "nothing listens", "10 s")
    error = str(dialled.dialing.error())
    assert error == naming(
        "nothing listens at gpu7:1", REFUSED, f"waited {round(over - 100.0, 1):g} s"
    )


@pytest.mark.parametrize("up_after", [20.0, 55.0])
@pytest.mark.parametrize("accepts", [False, True], ids=["refuses", "accepts"])
def test_a_machine_that_comes_up_has_the_short_timeout_from_then_on(
    up_after: float, *, accepts: bool
) -> None:
    """Its master may still be starting; but it has no longer than a silent machine has."""
    dialled = Dialled("auto", start_timeout=60.0)
    dialing, now = dialled.dialing, 100.0
    dialing.dial(now)

    def is_up() -> bool:
        return now >= 100.0 + up_after

    dialled.accepts = lambda: accepts and is_up()
    while True:
        is_refused = is_up() and not accepts
        now += 0.0 if is_refused else SILENCE[dialing.way.name]
        if not dialing.failed(REFUSED if is_refused else NO_ANSWER, now):
            break
        assert dialing.next_at is not None
        now = max(now, dialing.next_at)
        dialing.dial(now)

    expected = min(up_after + 10.0, 60.0)
    assert expected - 1.0 <= now - 100.0 <= expected + 8.0
    assert str(dialing.error()) == naming("gpu7:1", f"waited {round(now - 100.0, 1):g} s")


def test_a_firewall_that_refuses_udp_is_no_refusal() -> None:
    dialled = Dialled("auto", start_timeout=60.0)

    over = dialled.fail({UDP: 0.2, TCP: 4.0}, {UDP: REFUSED, TCP: NO_ANSWER})

    assert over - 100.0 > 55.0


def test_where_tcp_finds_a_master_that_has_just_started_udp_has_its_turn_first() -> None:
    dialled = Dialled("auto", start_timeout=60.0)
    dialing, now = dialled.dialing, 100.0

    def try_until_tcp() -> Connection:
        """Let UDP fail until it is the turn of TCP, whose connection is returned."""
        nonlocal now
        while True:
            connection = dialing.dial(now)
            if dialing.way.name == TCP:
                return connection
            now += 1.0
            assert dialing.failed(NO_ANSWER, now)

    try_until_tcp()
    assert dialing.failed(REFUSED, now)
    connection = try_until_tcp()
    now += 50.0
    assert dialing.link_for(Link(connection), connection, Connected(), now) is None
    assert connection.state is State.CLOSED
    assert dialing.next_at == now

    connection = try_until_tcp()  # after three tries of UDP
    link = dialing.link_for(Link(connection), connection, Connected(), now)

    assert [name for _, name in dialled.tried[-5:]] == [TCP, UDP, UDP, UDP, TCP]
    assert link is not None
    assert link.connection is connection


# What is said.


@pytest.mark.parametrize(
    ("transport", "tried", "not_tried"),
    [
        ("udp", ("UDP",), ("TCP",)),
        ("auto", ("over UDP", "over TCP: No route"), ()),
    ],
)
def test_the_error_names_what_was_tried_and_what_to_look_at(
    transport: Transport, tried: tuple[str, ...], not_tried: tuple[str, ...]
) -> None:
    dialled = Dialled(transport)

    over = dialled.fail(NOBODY, {UDP: NO_ANSWER, TCP: "No route to host"})

    error, waited = str(dialled.dialing.error()), f"waited {round(over - 100.0, 1):g} s"
    assert error == naming("gpu7:1", waited, *tried, "`gradwire master`", "firewalls", NO_KEY)
    assert not any(way in error for way in not_tried)


@pytest.mark.parametrize(
    ("has_key", "named"), [(False, ("no key",)), (True, ("run key", "denied"))]
)
def test_the_error_tells_what_a_key_may_have_to_do_with_it(
    has_key: bool, named: tuple[str, ...]
) -> None:
    dialled = Dialled("udp", has_key=has_key)

    dialled.fail(SILENCE, {UDP: NO_ANSWER})

    assert str(dialled.dialing.error()) == naming(*named)


# A worker that dials.


class Told:
    """Nothing but the end is of interest here."""

    def __init__(self) -> None:
        self.closed: list[GradwireError | None] = []

    def on_closed(self, error: GradwireError | None) -> None:
        self.closed.append(error)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def on_partial_replica(self, values: memoryview, blocks: Blocks) -> tuple[int, ...]:
        raise NotImplementedError


def idle_worker(told: Told) -> Worker:
    return Worker(join_request(), cast("Membership", told), "gpu7:1", random=Random(1).random)


Ways = Callable[[Endpoint, Sequence[str]], list[Way]]


def two_ways(endpoint: Endpoint, addresses: Sequence[str]) -> list[Way]:
    """Return a way to each of two addresses: over UDP, and over TCP."""
    dials = [partial(endpoint.connect, address) for address in addresses]
    return [Way(name, dial) for name, dial in zip((UDP, TCP), dials, strict=True)]


def one_way(endpoint: Endpoint, addresses: Sequence[str]) -> list[Way]:
    """Return the way to a name that has these addresses."""
    first, *others = (partial(endpoint.connect, address) for address in addresses)
    return [Way(UDP, first, others=tuple(others))]


def dialling_worker(
    network: SimulatedNetwork, ways: Ways, addresses: Sequence[str], timeout: float = 3.0
) -> tuple[Worker, Told]:
    """Return a worker that dials these addresses, and what it is told."""
    endpoint = Endpoint(
        ConnectionConfig(connect_timeout_seconds=0.5), random_bytes=network.random.randbytes
    )
    told = Told()
    worker = idle_worker(told)
    worker.dial(Dialing(ways(endpoint, addresses), "gpu7:1", timeout), network.now)
    network.add("worker", endpoint, worker)
    return worker, told


NOWHERE = pytest.mark.parametrize(
    ("ways", "addresses"),
    [(two_ways, ["nowhere", "neither"]), (one_way, ["nowhere", "neither", "nor there"])],
    ids=["two ways", "three addresses"],
)


@NOWHERE
def test_a_worker_that_gets_nowhere_says_so_when_its_time_is_up(
    ways: Ways, addresses: list[str]
) -> None:
    network = SimulatedNetwork(2)
    began = network.now
    worker, told = dialling_worker(network, ways, addresses)

    network.run(lambda: bool(told.closed), seconds=10)

    assert worker.stage is Stage.CLOSED
    assert worker.next_timer() is None
    [error] = told.closed
    waited = network.now - began
    named = f"waited {round(waited, 1):g} s"
    assert str(error) == naming("gpu7:1", named, "UDP", *["TCP"] * (ways is two_ways))
    assert 2.8 <= waited <= (3.5 if ways is two_ways else 4.5)


# Several addresses of one name.


@pytest.mark.parametrize("silent", [0, 1, 3])
def test_a_silent_address_costs_a_moment_and_the_next_one_is_tried(silent: int) -> None:
    network = SimulatedNetwork(1)
    master = ScriptedPeer(network, "master")
    addresses = [*(f"nowhere-{n}" for n in range(silent)), "master", "nowhere"]
    began = network.now
    worker, told = dialling_worker(network, one_way, addresses)

    master.wait_for(Join)

    assert worker.stage is Stage.JOINING
    waited = network.now - began
    assert silent * ADDRESS_SECONDS <= waited < (silent + 1) * ADDRESS_SECONDS
    network.run_for(3.0)
    assert (worker.stage, told.closed) == (Stage.JOINING, [])


def test_an_address_that_fails_at_once_gives_the_next_one_its_turn_at_once() -> None:
    network = SimulatedNetwork(5)
    began = network.now
    endpoint = Endpoint(ConnectionConfig(), random_bytes=network.random.randbytes)
    first, second = (partial(endpoint.connect, address) for address in ("refused", "master"))
    dialing = Dialing([Way(TCP, first, others=(second,))], "gpu7:1", 3.0)
    link = Link(dialing.dial(began))
    assert dialing.next_at == began + ADDRESS_SECONDS

    refused = Disconnected(CloseCode.UNREACHABLE, "Connection refused", by_peer=False)
    assert dialing.link_for(link, link.connection, refused, began + 0.01) is None
    assert dialing.next_at == began + 0.01

    newest = Link(dialing.dial(began + 0.01))
    assert newest.connection.address == "master"
    assert dialing.next_at != began + 0.01 + ADDRESS_SECONDS, "there is no further address"
    assert dialing.link_for(newest, newest.connection, refused, began + 0.02) is newest


def test_the_address_that_answered_is_the_first_to_be_dialled_again() -> None:
    dialled: list[str] = []
    endpoint = dialling()

    def dial(address: str, now: float) -> Connection:
        dialled.append(address)
        return endpoint.connect(address, now)

    way = Way(UDP, partial(dial, "a"), others=(partial(dial, "b"), partial(dial, "c")))
    dialing = Dialing([way], "gpu7:1", 9.0)
    link = Link(dialing.dial(0.0))
    late = Link(dialing.dial(0.25))

    taken = dialing.link_for(late, link.connection, Connected(), 0.3)
    assert taken is not None
    assert taken.connection is link.connection, "the first one was slow, and has answered"
    assert dialing.next_at is None
    assert dialing.link_for(taken, late.connection, Connected(), 0.31) is None

    again = dialing.for_reconnection(9.0, repeat(0.1))
    dialled.clear()
    slow = Link(again.dial(1.0))
    quick = Link(again.dial(1.25))
    assert again.link_for(quick, quick.connection, Connected(), 1.3) is quick
    assert slow.connection.state is State.CLOSED
    once_more = again.for_reconnection(9.0, repeat(0.1))
    once_more.dial(2.0)

    assert dialled == ["a", "b", "b"]


# Two masters.


def test_a_master_is_noted_once_and_no_more_of_them_than_there_can_be() -> None:
    dialing, dialled = dialing_with_others()
    for number in [1, 1, 2, 3, 4, 5]:
        dialing.add_master(f"other:{number}")
    dialing.add_master(None)
    for _ in range(MASTERS_MAX):
        dialing.dial(0.0)

    assert sorted(dialled) == ["", "other:1", "other:2", "other:3"]


def dialing_with_others() -> tuple[Dialing, list[str]]:
    """Return a dialing, and the masters that it dials, in their order."""
    dialled: list[str] = []

    def reach(name: str, master: str) -> Way:
        return Way(name, connection_to(dialled, master), master)

    return Dialing([Way(UDP, connection_to(dialled, ""))], "first:1", 9.0, reach=reach), dialled


def connection_to(dialled: list[str], master: str) -> Callable[[float], Connection]:
    """Return a way to dial that notes it, and leads nowhere."""
    endpoint = Endpoint(ConnectionConfig(), random_bytes=Random(1).randbytes)
    connection = endpoint.connect("nowhere", 0.0)

    def dial(now: float) -> Connection:
        dialled.append(master)
        return connection

    return dial


def test_each_try_dials_where_the_name_leads_by_then_and_so_does_one_to_come_back() -> None:
    """Ways to another master stay as they are: their names are looked up when they are dialled."""
    dialled: list[str] = []
    endpoint = dialling()

    def way(where: str, master: str = "") -> Way:
        def dial(now: float) -> Connection:
            dialled.append(where)
            return endpoint.connect(where, now)

        return Way(UDP, dial, master)

    def refresh(old: Way) -> Way:
        return old if old.master else way(f"address {len(dialled)}")

    dialing = Dialing(
        [way("first")], "gpu7:1", 100.0, refresh=refresh, reach=lambda _, name: way(name, name)
    )
    dialing.dial(0.0)
    assert dialing.failed("silent", 1.0)
    dialing.dial(6.0)
    again = dialing.for_reconnection(100.0, repeat(1.0))
    again.begin(10.0)
    again.add_master("standby:1")

    for now in (11.0, 12.0, 13.0):
        again.dial(now)
        assert again.failed("silent", now)

    assert dialled == ["address 0", "address 1", "address 2", "standby:1", "address 4"]
