"""Messages that begin and do not go on: what they hold is freed, and an honest peer finishes all.

``pytest tests/simulation/test_unfinished.py -k '[17]'`` shows one history again.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Final

import pytest

from gradwire_protocol import (
    CloseCode,
    Connection,
    ConnectionConfig,
    Disconnected,
    Priority,
    State,
)
from gradwire_protocol.delivery.incoming import IncomingMessage
from gradwire_protocol.delivery.outgoing import SendQueue
from gradwire_protocol.limits import (
    MESSAGE_BYTES_MAX,
    UNFINISHED_IDLE_TIMEOUTS,
    WINDOW_BYTES,
    charge_of,
)
from support.endpoints import PLAIN
from support.insides import forget_begun, reassembly_of, unfinished_in
from support.network import Host, Link, SimulatedNetwork
from support.pair import Pair
from support.training import SimulatedRun
from support.wording import naming

IDLE_SECONDS: Final = 3.0
HASTY: Final = replace(PLAIN, idle_timeout_seconds=IDLE_SECONDS)
PATIENCE: Final = UNFINISHED_IDLE_TIMEOUTS * IDLE_SECONDS
HELD: Final = WINDOW_BYTES // charge_of(MESSAGE_BYTES_MAX)
"""Messages of the largest size that one peer may have under way."""
STREAM: Final = 60_000
"""Of no rank."""


# A peer with another program.


def begin_messages(network: SimulatedNetwork, host: Host, connection: Connection) -> None:
    """Let a peer begin as many messages as it has credit for, and send no more of them."""
    for number in range(HELD):
        connection.send(STREAM, number, 1, bytes(MESSAGE_BYTES_MAX), Priority.SNAPSHOT)
        network.turn(host)
        forget_begun(connection.sender.queue)
        network.run_for(0.1)


@pytest.mark.parametrize("master_attacks", [False, True], ids=["a worker", "a master"])
def test_what_a_peer_never_finishes_is_freed_and_it_is_told(master_attacks: bool) -> None:
    pair = Pair(config=HASTY).connect()
    attacker, victim = pair.initiator, pair.responder
    if master_attacks:
        attacker, victim = victim, attacker
    since = pair.network.now

    begin_messages(pair.network, attacker.host, attacker.connection)
    pair.network.run_for(PATIENCE - IDLE_SECONDS)

    assert victim.connection.bytes_held == HELD * charge_of(MESSAGE_BYTES_MAX)
    assert victim.connection.state is State.OPEN
    pair.network.run(lambda: victim.connection.state is not State.OPEN, seconds=3 * IDLE_SECONDS)
    assert PATIENCE <= pair.network.now - since <= PATIENCE + 2 * IDLE_SECONDS
    pair.network.run_for(1.0)
    [_, ended] = victim.events
    assert ended == Disconnected(
        CloseCode.STALLED,
        naming(f"stream {STREAM}", "of 3112 fragments", "48 s", "limit"),
        by_peer=False,
    )
    assert attacker.events[1:] == [replace(ended, by_peer=True)]
    assert victim.endpoint.counters.stalls == 1
    assert len(victim.endpoint) == len(attacker.endpoint) == 0


def test_a_worker_that_trains_on_cannot_hold_memory_for_ever_and_may_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = SimulatedRun(idle_timeout_seconds=IDLE_SECONDS)
    attacker, other = run.join_and_wait(2)
    [connection] = attacker.endpoint.connections()
    begin_messages(run.network, attacker.host, connection)
    since, held = run.network.now, HELD * charge_of(MESSAGE_BYTES_MAX)
    assert bytes_held(run) >= held

    while not attacker.reconnections and run.network.now < since + 2 * PATIENCE:
        run.train(5, interval=0.5)
        run.network.run_for(0.5)

    assert run.network.now > since + PATIENCE - IDLE_SECONDS
    told = [record.getMessage() for record in caplog.records if record.name == "gradwire.session"]
    assert naming(f"stream {STREAM}", "48 s", "limit") in told
    assert run.master_endpoint.counters.stalls == 1
    assert bytes_held(run) < held
    assert (attacker.reconnections, other.reconnections) == (1, 0)
    run.train(5)
    run.finish()


def bytes_held(run: SimulatedRun) -> int:
    """Return what all connections of the master hold."""
    return sum(connection.bytes_held for connection in run.master_endpoint.connections())


# Honest peers.


def check_healthy(pair: Pair) -> None:
    """Check that neither side has ended the connection."""
    for side in (pair.initiator, pair.responder):
        assert side.endpoint.counters.stalls == 0
        assert side.connection.state is State.OPEN


def overtake(pair: Pair, *, seconds: float, size: int, until: Callable[[], bool]) -> None:
    """Send so many updates that messages which are less urgent never get a turn by themselves."""
    connection, numbers = pair.initiator.connection, count()
    over_at = pair.network.now + seconds
    while pair.network.now < over_at and not until():
        unsent = MESSAGE_BYTES_MAX + 2 * size
        while connection.bytes_queued - connection.bytes_in_flight < unsent:
            pair.initiator.send(bytes(size), stream=1, number=next(numbers))
        pair.network.run_for(0.1)


SLOW: Final = Link(delay=0.02, rate=100e3)
SLOW_TCP: Final = Link(delay=0.02, rate=10e6, queue_bytes=10**9)
"""4 MiB, which may be under way over TCP, take longer than the idle timeout."""


@pytest.mark.parametrize(
    ("link", "config", "size"),
    [(SLOW, HASTY, 6_000), (SLOW_TCP, HASTY.over_tcp, 1_000_000)],
    ids=["UDP", "TCP"],
)
def test_a_message_that_others_overtake_goes_on_all_the_same(
    link: Link, config: ConnectionConfig, size: int
) -> None:
    pair = Pair(link, config=config).connect()
    pair.initiator.send(bytes(3 * size))
    pair.initiator.send(bytes(MESSAGE_BYTES_MAX), stream=STREAM, priority=Priority.SNAPSHOT)
    reassembly = reassembly_of(pair.responder.connection)

    def begun() -> list[IncomingMessage]:
        return [each for each in unfinished_in(reassembly) if each.shaped.stream == STREAM]

    pair.network.run(lambda: bool(begun()), seconds=10)
    [message] = begun()
    received = message.received

    overtake(pair, seconds=1.5 * PATIENCE, size=size, until=lambda: message.complete)

    assert message.received > received
    check_healthy(pair)


def test_without_its_turn_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above is about can happen."""
    monkeypatch.setattr(SendQueue, "check_progress", lambda _: None)
    pair = Pair(SLOW, config=HASTY).connect()
    pair.initiator.send(bytes(MESSAGE_BYTES_MAX), priority=Priority.SNAPSHOT)
    pair.network.run_for(0.5)
    connection = pair.initiator.connection

    overtake(
        pair,
        seconds=1.5 * PATIENCE,
        size=6_000,
        until=lambda: connection.state is not State.OPEN,
    )

    assert pair.responder.endpoint.counters.stalls == 1


def test_a_path_that_is_down_half_of_the_time_is_lived_through() -> None:
    pair = Pair(Link(delay=0.02, rate=100e3), config=HASTY).connect()
    pair.lets_pass = lambda passing: passing.at % 4.0 < 2.0
    payload = pair.network.random.randbytes(1_000_000)
    begun = pair.network.now

    pair.initiator.send(payload)
    pair.network.run(lambda: bool(pair.initiator.delivered), seconds=10 * PATIENCE)

    assert pair.network.now > begun + PATIENCE
    assert pair.responder.payloads == [payload]
    check_healthy(pair)


@pytest.mark.seeds(20)
def test_no_honest_peer_is_ended_whatever_the_line_does(seed: int) -> None:
    """Messages of all sizes and urgencies, in both directions, over lines that are full."""
    random = Random(seed)
    rate = random.choice([100e3, 200e3, 400e3])
    link = Link(
        delay=random.choice([0.01, 0.1, 0.4]),
        jitter=random.choice([0.0, 0.05]),
        rate=rate,
        queue_bytes=random.choice([None, 20_000]),
        loss=random.choice([0.0, 0.02, 0.05]),
    )
    over_tcp = seed % 8 == 0
    if over_tcp:
        link = Link(delay=link.delay, rate=20 * rate, queue_bytes=10**9)
    pair = Pair(link, config=HASTY.over_tcp if over_tcp else HASTY, seed=seed).connect()
    down = 0.0 if over_tcp else random.choice([0.0, 0.5, 1.5])
    pair.lets_pass = lambda passing: passing.at % 20.0 >= down
    sides, numbers = (pair.initiator, pair.responder), count()
    over_at = pair.network.now + 1.5 * PATIENCE
    while pair.network.now < over_at:
        for side in sides:
            if side.connection.bytes_queued < random.choice([20_000, 100_000, 1_000_000]):
                payload = bytes(random.choice([10, 3_000, 50_000, 500_000]))
                number = next(numbers)
                priority = random.choice([*Priority])
                side.send(payload, stream=random.randrange(3), number=number, priority=priority)
        pair.network.run_for(random.choice([0.01, 0.2, 1.0]))

    check_healthy(pair)
