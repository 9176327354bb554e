"""What the driver does first, and how much of it before others have their turn."""

import asyncio
import logging
import socket
from contextlib import suppress
from itertools import pairwise
from time import thread_time

import pytest

from gradwire_protocol import Connection, Event
from gradwire_protocol.connection.train import Train
from gradwire_udp import Features, SocketCounters, UdpDriver, open_socket
from gradwire_udp.endpoint_driver import BLOCKED_SECONDS, REST_RATIO
from gradwire_udp.udp import driver
from support.datagrams import HERE, NOTHING, needs_overflow, train
from support.driven_side import Alarm, close_in_the_end, on_loops
from support.fickle_socket import FickleSocket
from support.scripted_endpoint import ScriptedEndpoint
from support.waiting import until


class Silence(Alarm):
    """An application that wants nothing but its timer."""

    def handle_event(self, connection: Connection, event: Event, now: float) -> None:
        raise NotImplementedError


class Driven:
    """A scripted endpoint on a driver, and a socket to send it something and hear from it."""

    def __init__(
        self,
        sock: socket.socket | None = None,
        features: Features = HERE,
        endpoint: ScriptedEndpoint | None = None,
        application: Silence | None = None,
    ) -> None:
        self.endpoint = ScriptedEndpoint() if endpoint is None else endpoint
        self.application = application or Silence()
        self.socket = sock or open_socket(("127.0.0.1", 0))
        self.counters = SocketCounters()
        self.driver = UdpDriver(
            self.socket,
            self.endpoint,
            self.application,
            asyncio.get_running_loop(),
            self.counters,
            features,
        )
        self.peers = [open_socket(("127.0.0.1", 0)) for _ in range(2)]
        for close in (self.driver.close, *(peer.close for peer in self.peers)):
            close_in_the_end(close)

    def give(self, n: int, sizes: tuple[int, ...] = (10, 10)) -> list[Train]:
        """Let the endpoint have so many trains for the first peer."""
        address = self.peers[0].getsockname()
        given = [train(sizes, address, fill=i) for i in range(n)]
        self.endpoint.trains.extend(given)
        return given

    def send_alternately(self, n: int) -> None:
        """Send it so many datagrams, no two of which are one read."""
        for i in range(n):
            self.peers[i % 2].sendto(bytes([i % 256]), self.driver.address)

    def heard(self) -> list[bytes]:
        """Return what has come to the first peer."""
        payloads = []
        with suppress(BlockingIOError):
            while True:
                payloads.append(self.peers[0].recv(2**16))
        return payloads


async def rounds(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


# Reading.


@on_loops
@pytest.mark.parametrize("features", [HERE, NOTHING], ids=["all on", "none on"])
async def test_datagrams_reach_the_endpoint_in_order_and_with_what_is_known_of_them(
    features: Features,
) -> None:
    it = Driven(features=features)
    for i in range(200):
        it.peers[0].sendto(bytes([i]) * (1 + i // 50), it.driver.address)
    await until(lambda: len(it.endpoint.received) == 200, "all datagrams")

    expected = [bytes([i]) * (1 + i // 50) for i in range(200)]
    sender = it.peers[0].getsockname()
    assert it.endpoint.received == [(payload, sender, 0) for payload in expected]
    assert it.endpoint.received_at == sorted(it.endpoint.received_at)
    assert it.counters.datagrams_received == 200


@on_loops
async def test_while_much_arrives_trains_are_sent_every_sixteen_reads() -> None:
    it = Driven()
    it.send_alternately(40)

    await until(lambda: len(it.endpoint.reads) == 40, "all reads")

    assert it.endpoint.steps == "r" * 16 + "n" + "r" * 16 + "n" + "r" * 8 + "n"


@on_loops
@pytest.mark.parametrize("n", [64, 65, 66, 128, 129, 200])
async def test_after_sixty_four_reads_others_have_their_turn_and_none_is_forgotten(n: int) -> None:
    """What the socket had read ahead, no event loop would know of."""
    it = Driven()
    it.send_alternately(n)
    seen = [0]
    while seen[-1] < n:
        await asyncio.sleep(0)
        seen.append(len(it.endpoint.reads))

    assert all(after - before <= 64 for before, after in pairwise(seen))
    assert [payload for payload, _, _ in it.endpoint.received] == [
        bytes([i % 256]) for i in range(n)
    ]


@on_loops
async def test_who_closes_the_driver_while_it_reads_hears_no_more() -> None:
    it = Driven()

    def close_after_64() -> None:
        if len(it.endpoint.reads) == 64:
            it.driver.close()

    it.endpoint.on_receive = close_after_64
    it.send_alternately(100)

    await until(lambda: it.socket.fileno() == -1, "the end")
    await rounds(5)

    assert len(it.endpoint.reads) == 64


# Sending.


@on_loops
async def test_after_sixteen_trains_others_have_their_turn() -> None:
    it = Driven()
    given = it.give(40)
    left = []

    it.driver.turn()
    while it.endpoint.trains:
        left.append(len(it.endpoint.trains))
        await asyncio.sleep(0)

    assert left[0] == 24
    assert 8 in left
    assert it.heard() == [d for one in given for d in one.datagrams()]
    assert it.counters.datagrams_sent == 80


@on_loops
async def test_an_endpoint_that_always_has_something_to_send_still_hears() -> None:
    class Talker(ScriptedEndpoint):
        def next_train(self, now: float) -> Train | None:
            return None if self.received else train([10], ("127.0.0.1", 9))

    it = Driven(endpoint=Talker())
    it.endpoint.deadline = it.driver.now() + 0.001
    it.driver.turn()
    await rounds(10)
    it.peers[1].sendto(b"enough", it.driver.address)

    await until(lambda: it.endpoint.received, "what it was told")
    await until(lambda: it.endpoint.fired_at, "the timer")

    assert it.endpoint.received[0][0] == b"enough"


@on_loops
async def test_the_next_train_is_asked_for_when_the_one_before_it_is_gone() -> None:
    """Asking for it may change the buffers of the one before."""
    never: list[OSError | None] = [BlockingIOError()] * 20
    it = Driven(FickleSocket.on_loopback(to_send=[None, *never]))
    given = it.give(3)

    it.driver.turn()
    assert it.endpoint.steps == "tt"
    it.driver.turn()
    it.send_alternately(1)
    await until(lambda: it.endpoint.received, "a datagram meanwhile")
    assert it.endpoint.steps.startswith("ttr")
    await until(lambda: not it.endpoint.trains, "the last train")
    await until(lambda: it.counters.datagrams_sent == 6, "all of it")

    assert it.heard() == [d for one in given for d in one.datagrams()]
    assert it.counters.send_errors == 0


@on_loops
async def test_while_the_socket_takes_nothing_the_timer_leaves_the_processor_alone() -> None:
    class Urgent(ScriptedEndpoint):
        def handle_timer(self, now: float) -> None:
            self.fired_at.append(now)  # and it is due again, because something is to be sent

    never: list[OSError | None] = [BlockingIOError()] * 10_000
    it = Driven(FickleSocket.on_loopback(to_send=never), endpoint=Urgent())
    it.endpoint.deadline = it.driver.now()
    it.give(1)

    it.driver.turn()
    await until(lambda: len(it.endpoint.fired_at) > 3, "the timer")

    for before, after in pairwise(it.endpoint.fired_at):
        assert after - before >= BLOCKED_SECONDS


# Timers.


@on_loops
async def test_the_endpoint_s_timer_and_the_application_s_both_fire() -> None:
    it = Driven()
    now = it.driver.now()
    it.endpoint.deadline, it.application.deadline = now + 0.0002, now + 0.003
    it.driver.turn()

    await until(lambda: it.application.fired_at, "the later timer")

    [first], [second] = it.endpoint.fired_at, it.application.fired_at
    assert first >= now + 0.0002
    assert second >= now + 0.003


@on_loops
async def test_what_is_due_at_once_is_done_before_anything_is_sent() -> None:
    class Prompt(ScriptedEndpoint):
        def next_train(self, now: float) -> Train | None:
            order.append("train")
            return super().next_train(now)

    class Due(Silence):
        def handle_timer(self, now: float) -> None:
            order.append("timer")
            super().handle_timer(now)

    order: list[str] = []
    it = Driven(endpoint=Prompt(), application=Due())
    it.application.deadline = it.driver.now()

    it.driver.turn()

    assert order == ["timer", "train"]


@on_loops
async def test_an_application_that_takes_long_is_left_alone_for_longer() -> None:
    class Busy(Silence):
        def handle_timer(self, now: float) -> None:
            self.fired_at.append(now)  # and it is due again
            began = thread_time()
            while thread_time() < began + work:
                pass

    work = 0.002
    it = Driven(application=Busy())
    it.application.deadline = it.driver.now()

    it.driver.turn()
    await until(lambda: len(it.application.fired_at) > 3, "the timer")

    for before, after in pairwise(it.application.fired_at):
        assert after - before >= (1 + REST_RATIO) * work


@on_loops
async def test_what_of_the_kernel_is_in_use_can_be_asked() -> None:
    it = Driven(features=NOTHING)
    assert it.driver.features == NOTHING


# Telling.


@needs_overflow
@on_loops
@pytest.mark.parametrize("seconds", [3_600.0, 0.0])
async def test_of_datagrams_dropped_by_the_kernel_there_is_a_line_but_not_too_often(
    seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver, "WARNING_SECONDS", seconds)

    it = Driven()
    it.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    drops = []
    for i in range(3):
        for _ in range(1_000):
            it.peers[0].sendto(bytes(100), it.driver.address)
        await until(lambda: len(it.endpoint.reads) > 2 * i, "what came through")  # noqa: B023
        it.peers[0].sendto(b"last", it.driver.address)
        await until(lambda: it.endpoint.received[-1][0] == b"last", "the last one")
        drops.append(it.counters.receive_drops)

    assert 0 < drops[0] < drops[1] < drops[2]
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(lines) == (1 if seconds else 3)
    assert f"batches of them, {drops[0]} in all" in lines[0]
