"""Two connections, and on the way between them an attacker who has everything but a key.

He sees, drops, holds back, repeats, changes, reflects and invents datagrams, under any address, and
keeps what he saw of older sessions. What he can do is to keep the two from talking, as long as he
goes on; he can neither read nor change nor repeat what they say, and no state is left behind.
"""

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gradwire_protocol import (
    CloseCode,
    Disconnected,
    InvalidDatagramError,
    MessageReceived,
    Priority,
    State,
    Suite,
)
from gradwire_protocol.limits import (
    AMPLIFICATION_MAX,
    PACKET_HEADER_BYTES,
    TAG_BYTES,
)
from gradwire_protocol.wire.packets import (
    INIT,
    INIT_BYTES,
    TRANSPORT,
    Accept,
    Init,
    pack_reset,
    pack_retry,
)
from support.keyed import SEALED_SUITES
from support.link import Link
from support.pair import INITIATOR, RESPONDER, Pair, Passing
from support.tiers import examples

ATTACKER: Final = "attacker"
ADDRESSES: Final = (INITIATOR, RESPONDER, ATTACKER)
SIZES: Final = (20, 1400, 30_000)
MARK: Final = b"nobody else's business "
CONNECTIONS_MAX: Final = 5
OVER: Final = 99
"""What the two close with."""

SUITES = st.sampled_from(SEALED_SUITES)
WHICH = st.integers(0, 2**16)
WHOM = st.sampled_from(ADDRESSES[:2])
AS_WHOM = st.sampled_from(ADDRESSES)
BYTES = st.binary(max_size=60)
SIXTEEN = st.binary(min_size=16, max_size=16)


def is_init(datagram: bytes) -> bool:
    """Return whether this is an INIT; the attacker changes some."""
    try:
        Init.parse(datagram)
    except InvalidDatagramError:
        return False
    return len(datagram) == INIT_BYTES


class Attack(RuleBasedStateMachine):
    """What the three do, in any order.

    `Pair.invariants` checks after every turn that a message comes once and as it was sent, that
    nothing is acknowledged but what has arrived, and that no stranger is told more than he said.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Passing] = []
        self.held: list[Passing] = []
        self.fates: list[Callable[[Passing], bool]] = []
        """What is to become of the next datagrams."""
        self.counter = count()

    @initialize(
        suite=st.sampled_from(SEALED_SUITES), seed=st.integers(0, 2**32), second=st.booleans()
    )
    def begin(self, suite: Suite, seed: int, second: bool) -> None:
        self.pair = Pair(Link(delay=0.01), suite=suite, seed=seed, connections_max=CONNECTIONS_MAX)
        self.pair.lets_pass = self._on_passing
        self.network = self.pair.network
        self.pair.connect()
        if second:
            self.pair.connect()

    # The two.

    @rule(size=st.sampled_from(SIZES), answers=st.booleans(), which=WHICH)
    def say(self, size: int, answers: bool, which: int) -> None:
        """Send a message that nobody else sends."""
        side = self.pair.responder if answers else self.pair.initiator
        open_ones = [c for c in side.connections if c.state is State.OPEN]
        if open_ones:
            number = next(self.counter)
            text = MARK + f"{side.host.address} {number} ".encode()
            payload = (text * (size // len(text) + 1))[: max(size, len(text))]
            open_ones[which % len(open_ones)].send(0, number, 1, payload, Priority.UPDATE)
            self.network.turn(side.host)

    @rule()
    def dial(self) -> None:
        if len(self.pair.initiator.endpoint) < CONNECTIONS_MAX - 1:
            self.pair.dial()

    @rule(answers=st.booleans())
    def close(self, answers: bool) -> None:
        side = self.pair.responder if answers else self.pair.initiator
        if side.connections:
            side.close(OVER, "over")

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.3, 3.0]))
    def wait(self, seconds: float) -> None:
        self.network.run_for(seconds)

    # The attacker.

    @rule(n=st.integers(1, 10))
    def drop(self, n: int) -> None:
        self.fates += [lambda _: False] * n

    @rule(n=st.integers(1, 10))
    def hold_back(self, n: int) -> None:
        self.fates += [self._hold] * n

    @rule()
    def let_go(self) -> None:
        held, self.held = self.held, []
        for passing in reversed(held):
            self.network.send(passing.source, passing.target, passing.datagram)

    @rule(at=WHICH, by=st.integers(1, 255))
    def change(self, at: int, by: int) -> None:
        """Change a byte of the next datagram."""

        def changed(passing: Passing) -> bool:
            datagram = bytearray(passing.datagram)
            if datagram:  # the attacker can have sent an empty one himself
                datagram[at % len(datagram)] ^= by
            self.network.send(passing.source, passing.target, bytes(datagram))
            return False

        self.fates.append(changed)

    @rule(source=AS_WHOM)
    def divert(self, source: str) -> None:
        """Let the next datagram come from somewhere else."""

        def diverted(passing: Passing) -> bool:
            self.network.send(source, passing.target, passing.datagram)
            return False

        self.fates.append(diverted)

    @rule(which=WHICH, n=st.integers(1, 20), source=AS_WHOM, whom=WHOM)
    def repeat(self, which: int, n: int, source: str, whom: str) -> None:
        """Send again what was seen, whenever that was, to whom it was sent or back."""
        first = which % len(self.seen)
        for passing in self.seen[first : first + n]:
            self.network.send(source, whom, passing.datagram)

    @rule(which=WHICH, at=WHICH, tail=BYTES, source=AS_WHOM, whom=WHOM)
    def splice(self, which: int, at: int, tail: bytes, source: str, whom: str) -> None:
        """Send a part of what was seen with something else behind it."""
        datagram = self.seen[which % len(self.seen)].datagram
        self.network.send(source, whom, datagram[: at % max(1, len(datagram))] + tail)

    @rule(which=WHICH, number=st.integers(0, 2**62), body=BYTES, source=AS_WHOM)
    def invent_a_packet(self, which: int, number: int, body: bytes, source: str) -> None:
        """Send a packet of a session that there is, but for key and tag."""
        packet = self._some(which, TRANSPORT)
        if packet is not None:
            header = packet.datagram[:8] + number.to_bytes(8, "little")
            body = body + bytes(-len(body) % 4 + TAG_BYTES)
            self.network.send(source, packet.target, header[:PACKET_HEADER_BYTES] + body)

    @rule(which=WHICH, key_id=SIXTEEN | st.none(), cookie=SIXTEEN | st.just(b""), source=AS_WHOM)
    def forge_an_init(self, which: int, key_id: bytes | None, cookie: bytes, source: str) -> None:
        """Ask for a connection with somebody's key id and a cookie that is guessed."""
        asked = Init.parse(self._sure(which, INIT).datagram)
        public_key = bytes([which & 0xFF]) * 32
        init = Init(
            asked.suite, which + 1, key_id or asked.key_id, public_key, asked.sealed, cookie
        )
        self.network.send(source, RESPONDER, init.pack())

    @rule(which=WHICH, sealed=st.binary(min_size=56, max_size=56))
    def forge_an_accept(self, which: int, sealed: bytes) -> None:
        asked = Init.parse(self._sure(which, INIT).datagram)
        accept = Accept(asked.suite, asked.session_id, asked.public_key, sealed)
        self.network.send(RESPONDER, INITIATOR, accept.pack())

    @rule(which=WHICH, cookie=SIXTEEN, token=SIXTEEN, version=st.integers(2, 255))
    def forge_short_answers(self, which: int, cookie: bytes, token: bytes, version: int) -> None:
        """Whoever is open takes none of them; who connects has to begin anew at worst."""
        asked = Init.parse(self._sure(which, INIT).datagram)
        session_id = asked.session_id.to_bytes(4, "little")
        packet = self._some(which, TRANSPORT)
        session = 0 if packet is None else int.from_bytes(packet.datagram[4:8], "little")
        for datagram in (
            pack_retry(asked.session_id, cookie),
            bytes([0x13, 1, 0, 0]) + session_id + bytes([version]),
            pack_reset(asked.session_id, token),
            pack_reset(session, token),
        ):
            self.network.send(RESPONDER, INITIATOR, datagram)

    # What always holds.

    @invariant()
    def nothing_that_was_said_can_be_read(self) -> None:
        assert not any(MARK in passing.datagram for passing in self.seen[-200:])

    @invariant()
    def every_message_comes_once_and_is_one_that_was_sent(self) -> None:
        if not hasattr(self, "pair"):
            return
        said = {
            side: [
                payload
                for end in self.pair.invariants.accounts()
                if end.connection in side.connections
                for payload in end.said.values()
            ]
            for side in (self.pair.initiator, self.pair.responder)
        }
        for side, other in ((self.pair.initiator, self.pair.responder),
                            (self.pair.responder, self.pair.initiator)):  # fmt: skip
            heard = [bytes(e.payload) for e in side.events if isinstance(e, MessageReceived)]
            assert len(set(heard)) == len(heard)
            assert set(heard) <= set(said[other])

    @invariant()
    def a_connection_ends_only_as_its_owners_want_or_because_nothing_gets_through(self) -> None:
        if not hasattr(self, "pair"):
            return
        usual = {OVER, CloseCode.UNREACHABLE, CloseCode.VERSION, CloseCode.IDLE}
        for side, other in ((self.pair.initiator, self.pair.responder),
                            (self.pair.responder, self.pair.initiator)):  # fmt: skip
            codes = Counter(event.code for event in side.events if isinstance(event, Disconnected))
            assert codes.keys() <= usual | {CloseCode.RESET}
            # Where all that said so was lost, the other side says it with a RESET.
            there = sum(each.state is State.OPEN for each in other.connections)
            gone = max(0, len(side.connections) - there)
            assert codes[CloseCode.RESET] <= min(gone, other.endpoint.counters.resets_sent)

    @invariant()
    def an_attacker_leaves_nothing_behind(self) -> None:
        if hasattr(self, "pair"):
            responder = self.pair.responder.endpoint
            assert len(responder) + responder.half_open <= len(self.pair.initiator.connections)
            assert responder.counters.violations == 0
            assert self.pair.initiator.endpoint.counters.violations == 0

    def teardown(self) -> None:
        """When he is gone, whatever was said over connections that are still there arrives."""
        if not hasattr(self, "pair"):
            return
        self.fates.clear()
        self.let_go()
        self.network.run_for(120.0)
        self.pair.invariants.check_all_arrived()
        self.pair.connect()
        self.pair.initiator.send(b"it is as if nothing had been", stream=9)
        self.network.run(lambda: not self.pair.initiator.connection.bytes_queued, seconds=5.0)
        assert self.pair.responder.endpoint.half_open == 0

    # Private.

    def _on_passing(self, passing: Passing) -> bool:
        self.seen.append(passing)
        return self.fates.pop(0)(passing) if self.fates and passing.source != ATTACKER else True

    def _hold(self, passing: Passing) -> bool:
        self.held.append(passing)
        return False

    def _some(self, which: int, packet_type: int) -> Passing | None:
        packets = [
            passing
            for passing in self.seen
            if passing.source in ADDRESSES[:2]
            and passing.datagram[:1] == bytes([packet_type])
            and (packet_type != INIT or is_init(passing.datagram))
        ]
        return packets[which % len(packets)] if packets else None

    def _sure(self, which: int, packet_type: int) -> Passing:
        packet = self._some(which, packet_type)
        assert packet is not None, "both have connected"
        return packet


assert AMPLIFICATION_MAX == 1, "what the invariants check is that no stranger is answered with more"

TestAttack = pytest.mark.timeout(120)(Attack.TestCase)
TestAttack.settings = settings(max_examples=examples(100), stateful_step_count=50)


def test_an_end_of_which_no_word_gets_through_is_heard_of_by_a_reset() -> None:
    """And the invariants of an attack hold then."""
    attack = Attack()
    attack.begin(suite=Suite.AES, seed=0, second=False)
    attack.drop(n=10)
    attack.drop(n=4)
    attack.say(which=0, answers=False, size=20)
    attack.close(answers=True)
    attack.wait(seconds=3.0)

    attack.a_connection_ends_only_as_its_owners_want_or_because_nothing_gets_through()
    ends = [e.code for e in attack.pair.initiator.events if isinstance(e, Disconnected)]
    assert ends == [CloseCode.RESET]
