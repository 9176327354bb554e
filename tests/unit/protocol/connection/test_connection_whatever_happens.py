"""Whatever a peer sends and whatever the network does, a connection keeps its promises."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gradwire_protocol import (
    Connected,
    ConnectionConfig,
    Disconnected,
    Priority,
    State,
    Suite,
)
from gradwire_protocol.limits import MESSAGE_BYTES_MAX, WINDOW_BYTES_MIN
from gradwire_protocol.wire.frames import (
    pack_ack,
    pack_challenge,
    pack_close,
    pack_credit,
    pack_ping,
    pack_response,
)
from support.acks import ack
from support.endpoints import PLAIN
from support.network import Link
from support.pair import FRAGMENT_BYTES, Pair, data_frame
from support.puppet import Puppet
from support.tiers import count, examples

FRAMES = st.one_of(
    st.builds(
        data_frame,
        st.binary(min_size=1, max_size=20) | st.just(bytes(FRAGMENT_BYTES)),
        stream=st.integers(0, 2),
        number=st.integers(0, 3),
        kind=st.integers(1, 2),
        index=st.integers(0, 1),
        total=st.sampled_from([None, FRAGMENT_BYTES + 1, 2 * FRAGMENT_BYTES, MESSAGE_BYTES_MAX]),
        shape=st.integers(0, 1),
    ),
    st.builds(
        lambda first, run: pack_ack(ack((first, first + run))),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    st.builds(pack_credit, st.integers(0, 2**64 - 1)),
    st.builds(pack_challenge, st.binary(min_size=8, max_size=8)),
    st.builds(pack_response, st.binary(min_size=8, max_size=8)),
    st.just(pack_ping()),
    st.builds(pack_close, st.integers(0, 100), st.text(max_size=5)),
    st.binary(max_size=3),
)


@settings(max_examples=count(100, quick=10, of="examples of a hostile peer"))
@given(
    packets=st.lists(
        st.tuples(
            st.lists(FRAMES, max_size=4),
            st.integers(0, 40),
            st.sampled_from([Puppet.ADDRESS, "moved"]),
            st.sampled_from([0.0, 0.001, 0.1, 5.0]),
        ),
        max_size=20,
    )
)
def test_whatever_an_authentic_peer_sends_the_connection_keeps_its_bounds_and_ends(
    packets: list[tuple[list[bytes], int, str, float]],
) -> None:
    puppet = Puppet(replace(PLAIN, window_bytes=WINDOW_BYTES_MIN))
    connection = puppet.connection
    connection.send(0, 0, 1, bytes(5000), Priority.UPDATE)

    for frames, number, address, seconds in packets:
        puppet.send(*frames, number=number, address=address)
        assert 0 <= connection.bytes_held <= WINDOW_BYTES_MIN
        assert connection.bytes_in_flight >= 0
        puppet.wait(puppet.now + seconds)
    puppet.wait(puppet.now + 1000.0)  # the round trip may have come out as a hundred seconds

    events = puppet.events()
    ends = [event for event in events if isinstance(event, Disconnected)]
    assert len(ends) == 1
    assert events[0] == Connected()
    assert events[-1] == ends[0]
    assert connection.state is State.CLOSED
    assert len(puppet.endpoint) == 0


class Conversation(RuleBasedStateMachine):
    """Two connected sides, and a network that loses, repeats, damages and reorders.

    `Pair.invariants` checks everything after every turn of a side.
    """

    suite = Suite.CHECKSUM

    def __init__(self) -> None:
        super().__init__()
        config = ConnectionConfig(window_bytes=WINDOW_BYTES_MIN, idle_timeout_seconds=600.0)
        self.pair = Pair(config=config, suite=self.suite).connect()
        self.sides = (self.pair.initiator, self.pair.responder)
        self.moves = 0

    @initialize(seed=st.integers(0, 2**32))
    def choose_a_history(self, seed: int) -> None:
        self.pair.network.random.seed(seed)

    @rule(
        loss=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        duplication=st.sampled_from([0.0, 0.2]),
        corruption=st.sampled_from([0.0, 0.1]),
        jitter=st.sampled_from([0.0, 0.002, 0.1]),
        rate=st.sampled_from([None, 10e6]),
        mtu=st.sampled_from([None, 1228, 1500]),
    )
    def change_the_network(
        self,
        loss: float,
        duplication: float,
        corruption: float,
        jitter: float,
        rate: float | None,
        mtu: int | None,
    ) -> None:
        self.pair.network.link = Link(
            loss=loss,
            duplication=duplication,
            corruption=corruption,
            jitter=jitter,
            rate=rate,
            mtu=mtu,
        )

    @rule(gro=st.booleans())
    def change_how_datagrams_are_read(self, gro: bool) -> None:
        self.pair.network.gro = gro

    @rule()
    def move(self) -> None:
        self.moves += 1
        self.pair.network.move(self.pair.initiator.host, f"nat {self.moves}")

    @rule(
        side=st.integers(0, 1),
        size=st.sampled_from([1, 100, FRAGMENT_BYTES, FRAGMENT_BYTES + 1, 20_000, 100_000]),
        stream=st.integers(0, 3),
        priority=st.sampled_from(Priority),
        count=st.sampled_from([1, 20]),
    )
    def say(self, side: int, size: int, stream: int, priority: Priority, count: int) -> None:
        for _ in range(count):
            payload = self.pair.network.random.randbytes(size)
            self.sides[side].send(payload, stream=stream, priority=priority)

    @rule(side=st.integers(0, 1), releases=st.booleans())
    def release(self, side: int, releases: bool) -> None:
        self.sides[side].releases = releases
        if releases:
            self.sides[side].release()

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.pair.network.run_for(seconds)

    @invariant()
    def they_stay_connected(self) -> None:
        for side in self.sides:
            assert side.connection.state is State.OPEN

    def teardown(self) -> None:
        """Over a network that does nothing bad any more, everything arrives."""
        self.pair.network.link = Link()
        for side in self.sides:
            side.releases = True
            side.release()
        self.pair.network.run(self._is_all_delivered, seconds=120)
        self.pair.invariants.check_all_arrived()

    def _is_all_delivered(self) -> bool:
        return not any(side.connection.bytes_queued for side in self.sides)


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=examples(25), stateful_step_count=20)


class SealedConversation(Conversation):
    """The same, sealed."""

    suite = Suite.AES


TestSealedConversation = SealedConversation.TestCase
TestSealedConversation.settings = settings(max_examples=examples(25), stateful_step_count=20)
