"""Packets that come together are taken together, and it makes no difference to anything.

An `Endpoint` reads many packets of one size with a handful of operations where they look like what
a sender makes of a message, and one by one where they do not. Here two of them receive the same,
one as the kernel would hand it over and the other one a datagram at a time, and end up in the same
state to the last bit, having said the same: whatever it was that they received.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, Drop, Priority
from gradwire_protocol.connection.train import ECN_CAPABLE, ECN_MARKED, ECN_NOT
from gradwire_protocol.limits import (
    FINISHED_RANGES_MAX,
    MESSAGE_BYTES_MAX,
    RECEIVED_RANGES_MAX,
    STREAMS_MAX,
)
from gradwire_protocol.security.checksum import Checksum
from gradwire_protocol.wire.frames import (
    Data,
    pack_ack,
    pack_challenge,
    pack_close,
    pack_credit,
    pack_data,
    pack_ping,
)
from gradwire_protocol.wire.packets import ACCEPT, INIT, SINGLE, TRANSPORT, VERSIONS
from support.acks import ack
from support.state import state_of
from support.tiers import variants
from support.traces import ADDRESSES, Listener, Peer, Step, Trace

WHICH = st.integers(0, 2)
FIRST = st.just(0) | st.integers(0, 70)
COUNT = st.integers(4, 70) | st.integers(1, 6)
BACK = st.integers(1, 20)
ENDS = st.sampled_from([1, 2, 3, 4, 1000])

FRAMES = st.sampled_from(
    [
        pack_ping(),
        pack_credit(2**25),
        pack_challenge(b"whoisit?"),
        pack_ack(ack((0, 0), credit=2**24)),
        pack_ack(ack((9, 9), (2, 5), delay=0.001, credit=2**24)),
        pack_close(CloseCode.NONE, "bye"),
        b"\x07",
    ]
)


def step(method: object, **arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Step]:
    return st.builds(partial, st.just(method), **arguments)


MESSAGES = st.lists(
    step(
        Trace.message,
        total=st.sampled_from([1, 1160, 8 * 1160, 20 * 1160, 40 * 1160 + 1, 70 * 1160])
        | st.integers(1, 80_000),
        fragment_bytes=st.sampled_from([1160, 1360, 1148, 1150]),
        stream=st.integers(0, 1),
    ),
    min_size=1,
    max_size=2,
)


@st.composite
def traces(
    draw: st.DrawFn,
    others: Sequence[st.SearchStrategy[Step]],
    once: Sequence[st.SearchStrategy[Step]] = (),
) -> list[Step]:
    """Draw steps of which every other one sends what there is to be sent, and one happens once."""
    steps = [
        step
        for other in draw(st.lists(st.one_of(*others), min_size=3, max_size=15))
        for step in (other, draw(RUN))
    ]
    if once:
        steps.insert(draw(st.integers(0, len(steps))), draw(st.one_of(*once)))
    return steps


RUN = step(Trace.run, which=WHICH, first=FIRST, count=COUNT)

HONEST = [
    step(Trace.repeat, back=BACK, count=COUNT),
    step(Trace.overtake, by=BACK, count=BACK),
    step(Trace.reverse, count=BACK),
    step(Trace.pause),
    step(Trace.move, address=st.sampled_from(ADDRESSES),
         ecn=st.sampled_from([ECN_NOT, ECN_CAPABLE, ECN_MARKED])),
    step(Trace.go, by=st.integers(-20, 5)),
    step(Trace.turn_to, which=st.integers(0, 1)),
    step(Trace.mixed, parts=st.lists(st.tuples(WHICH, FIRST), max_size=3), frames=FRAMES),
    step(Trace.recut, which=WHICH, fragment_bytes=st.just(1148), new_shape=st.just(True)),
]  # fmt: skip

NOISE = [
    step(Trace.damage, back=BACK, at=st.integers(0, 40) | st.integers(0, 1400),
         by=st.integers(1, 255)),
    step(Trace.cut_short, back=BACK, by=ENDS),
    step(Trace.extend, back=BACK, by=ENDS),
    step(Trace.turn_to, which=st.integers(0, 3)),
    step(Trace.pause),
]  # fmt: skip

FALSEHOODS = [
    step(Trace.lie, which=WHICH, first=FIRST, count=COUNT),
    step(Trace.padded, which=WHICH, first=FIRST, count=COUNT),
    step(Trace.wrong_numbers, which=WHICH, count=COUNT),
    step(Trace.recut, which=WHICH, fragment_bytes=st.just(1148), new_shape=st.just(True)),
    step(Trace.pause),
]

CHANGES = st.sampled_from(
    [
        ("total", MESSAGE_BYTES_MAX),
        ("total", -1160),
        ("total", 1),
        ("kind", 1),
        ("fragment_bytes", -4),
        ("fragment_bytes", 4),
        ("index", 50),
        ("shape", 1),
    ]
)

VIOLATIONS = [
    step(Trace.changed, which=WHICH, first=FIRST, count=COUNT, change=CHANGES),
    step(Trace.changed, which=WHICH, first=FIRST, count=COUNT, flags=st.sampled_from([0, 2, 256])),
    step(Trace.changed, which=WHICH, first=FIRST, count=COUNT,
         behind=st.sampled_from([bytes(4), bytes(40), 4 * pack_ping(), b"\7\7\7\7"])),
    step(Trace.recut, which=WHICH, fragment_bytes=st.just(1152), new_shape=st.just(False)),
    step(Trace.like, which=WHICH, frames=FRAMES, flags=st.sampled_from([0, SINGLE, 2]),
         packet_type=st.sampled_from([TRANSPORT, TRANSPORT, INIT, ACCEPT, VERSIONS, 0])),
]  # fmt: skip


def listener() -> tuple[Listener, list[Peer]]:
    """Return an endpoint, two peers, one that has not opened its connection yet, and a stranger."""
    listener = Listener()
    peers = [listener.shake_hands(session_id) for session_id in (7, 8, 9)]
    trace = Trace(peers)
    for which in range(2):
        trace.turn_to(which)
        trace.packet(pack_ping())
    listener.receive(trace.datagrams[:1])
    listener.receive(trace.datagrams[1:])
    connection = next(iter(listener.endpoint.connections()))
    for number in range(10):
        connection.send(0, number, 1, bytes(1000), Priority.UPDATE)
    listener.turn()
    return listener, [*peers, Peer(1, peers[0].sealing)]


def written(steps: Iterable[Step], peers: Sequence[Peer], start: int = 1) -> Trace:
    """Return what peers send, beginning with this packet number."""
    for peer in peers:
        peer.number = start
    trace = Trace(peers)
    for step in steps:
        step(trace)
    return trace


def check(steps: Iterable[Step], *, start: int = 1, turn_every: int = 1) -> Listener:
    """Let two endpoints receive the same, the one at once and the other one by one; return one."""
    together, peers = listener()
    singly, _ = listener()
    trace = written(steps, peers, start)
    for count, read in enumerate(trace.reads(), 1):
        together.receive(read)
        for datagram in read:
            singly.receive([datagram])
        assert state_of(together.endpoint) == state_of(singly.endpoint)
        if not count % turn_every:
            assert together.turn() == singly.turn()
            for listening in (together, singly):
                listening.now += 0.003
                listening.release()
    return together


STARTS = st.sampled_from([1, 2, 2**32 - 20, 2**33 - 3, 2**40])


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(traces(HONEST), id="what an honest peer sends over any network"),
        pytest.param(traces([*HONEST, *NOISE]), id="what arrives damaged"),
        pytest.param(traces(FALSEHOODS), id="what a liar sends"),
        pytest.param(traces(HONEST, VIOLATIONS), id="what breaks a rule"),
    ],
)
@given(messages=MESSAGES, data=st.data(), start=STARTS, turn_every=st.integers(1, 4))
def test_packets_have_the_same_effect_together_and_one_by_one(
    steps: st.SearchStrategy[list[Step]],
    messages: list[Step],
    data: st.DataObject,
    start: int,
    turn_every: int,
) -> None:
    check(messages + data.draw(steps), start=start, turn_every=turn_every)


@given(
    messages=MESSAGES,
    steps=traces([*HONEST, *NOISE]),
    segment=st.sampled_from([1188, 1192, 1200, 1400]) | st.integers(1, 9000),
)
def test_however_a_read_is_cut_it_is_what_it_is_cut_into(
    messages: list[Step], steps: list[Step], segment: int
) -> None:
    together, peers = listener()
    singly, _ = listener()
    datagrams = written([*messages, *steps], peers).datagrams
    data = b"".join(datagram.data for datagram in datagrams)[:65_000]

    together.read(data, segment)
    for at in range(0, len(data), segment):
        piece = data[at : at + segment]
        singly.read(piece, len(piece))

    assert state_of(together.endpoint) == state_of(singly.endpoint)
    assert together.turn() == singly.turn()


def test_an_empty_datagram_is_too_short() -> None:
    receiving, _ = listener()

    receiving.read(b"", 1)
    receiving.read(b"", 0)

    assert receiving.endpoint.counters.drops[Drop.SHORT] == 2


def test_packets_that_come_together_before_the_handshake_is_over_are_of_no_session() -> None:
    dialling = Listener()
    connection = dialling.endpoint.connect("peer", dialling.now)
    stranger = Peer(connection.session_id, Checksum(b"guessed"))
    steps = [
        partial(Trace.message, total=9 * 1160, fragment_bytes=1160, stream=0),
        partial(Trace.run, which=0, first=0, count=9),
    ]

    dialling.receive(written(steps, [stranger]).datagrams)

    assert dialling.endpoint.counters.drops[Drop.UNKNOWN_SESSION] == 9


# At the limits.


@pytest.mark.parametrize("ranges", [RECEIVED_RANGES_MAX + n for n in (-1, 0, 1)])
@pytest.mark.parametrize("number", variants(50, 91, 101, 105, 131, 20_061, 20_071, 20_091, 10**6))
def test_forgetting_old_packet_numbers_has_the_same_effect(ranges: int, number: int) -> None:
    """Receive many ranges of packet numbers, and then a run between them, or touching one."""
    steps = [partial(Trace.message, total=9 * 1160, fragment_bytes=1160, stream=0)]
    for _ in range(ranges):
        steps += [partial(Trace.packet, frames=pack_ping()), partial(Trace.go, by=39)]
    steps += [
        partial(Trace.go, by=number - 100 - 40 * ranges),
        partial(Trace.run, which=0, first=0, count=9),
        partial(Trace.run, which=0, first=0, count=9),
    ]

    check(steps, start=100)


@pytest.mark.parametrize("names", [
    pytest.param([(stream, 0) for stream in range(STREAMS_MAX)], id="streams",
                 marks=pytest.mark.deep("as many streams as there may be")),
    pytest.param([(9, 2 * n) for n in range(FINISHED_RANGES_MAX)], id="gaps"),
])  # fmt: skip
@pytest.mark.parametrize("less", [0, 1])
def test_finishing_too_many_messages_has_the_same_effect(
    names: list[tuple[int, int]], less: int
) -> None:
    """Finish as many small messages as is allowed, and then a large one of another stream."""
    steps: list[Step] = []
    for at in range(less, len(names), 60):
        frames = b"".join(
            pack_data(Data(stream, number, 1, 1, 1160, 0, memoryview(b"x")))
            for stream, number in names[at : at + 60]
        )
        # So that they are released before the window is full.
        steps += [partial(Trace.packet, frames=frames), Trace.pause]
    steps += [
        partial(Trace.message, total=9 * 1160, fragment_bytes=1160, stream=9),
        partial(Trace.message, total=9 * 1160, fragment_bytes=1160, stream=STREAMS_MAX),
        partial(Trace.run, which=0, first=0, count=9),
        partial(Trace.run, which=1, first=0, count=9),
    ]

    listener = check(steps)

    assert listener.endpoint.counters.violations == 1 - less
