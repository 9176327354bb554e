"""The worker against a scripted master: whatever comes, in whatever order it comes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from gradwire.errors import (
    ConnectionLostError,
    GradwireError,
    ProtocolError,
    RefusedError,
    UnreachableError,
    VersionMismatchError,
)
from gradwire.worker.dialing import KEYS
from gradwire.worker.inbox import Rebase
from gradwire.worker.membership import Membership
from gradwire.worker.peer_sequences import Sum
from gradwire.worker.state import TRANSITIONS, Stage
from gradwire.worker.worker import Worker
from gradwire_codecs import unpack_block
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol import CloseCode, ConnectionConfig, Endpoint
from gradwire_protocol.limits import WINDOW_BYTES, charge_of
from gradwire_protocol.messages.admission import Join, Peer, RefusalCode, Refuse, Roster, Welcome
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS, SEQUENCE_MAX
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.link import Control, UpdateReceived
from gradwire_protocol.messages.replicas import Blocks, Digest, Snapshot, Want
from gradwire_protocol.messages.snapshots import expand_block
from gradwire_protocol.messages.standby import Promise
from gradwire_protocol.messages.states.buffers import BufferLayout, BufferTensor, BufferValues
from gradwire_protocol.messages.states.records import Buffers
from gradwire_protocol.messages.updates import (
    Conflated,
    EncodedUpdate,
    Finish,
    Finished,
    Leave,
    Span,
    Stable,
    Stopping,
)
from gradwire_protocol.wire.packets import INIT, VERSION, pack_versions, session_id_of
from support.dialling import dial
from support.network import SimulatedNetwork
from support.peer import LAYOUT, ScriptedPeer, join_request, said_by_peer, welcome
from support.pushing import push
from support.wording import naming

MASTER = "master"
BUFFER_LAYOUT = BufferLayout((BufferTensor("var", (1,), "float"),), (), 4)
ELEMENTS = LAYOUT.elements
VALUES: Int32Array = np.arange(ELEMENTS, dtype=np.int32)


class Listening(Membership):
    """A worker on a network, and everything that it tells its listener."""

    def __init__(
        self, network: SimulatedNetwork, *, layout: Layout = LAYOUT, connect_timeout: float = 60.0
    ) -> None:
        super().__init__(layout.elements)
        self.told: list[tuple[Any, ...]] = []
        self.differing: tuple[int, ...] = ()
        self.network = network
        self.worker = Worker(
            join_request(layout=layout, name="worker"),
            self,
            MASTER,
            random=Random(1).random,
            buffers=BUFFER_LAYOUT,
        )
        config = ConnectionConfig(connect_timeout_seconds=connect_timeout)
        endpoint = Endpoint(config, random_bytes=network.random.randbytes)
        dial(self.worker, endpoint, MASTER, network.now)
        self.host = network.add("worker", endpoint, self.worker)

    def on_welcome(self, welcome: Welcome) -> None:
        self.told.append(("welcome", welcome))

    def on_snapshot_progress(self, elements: int) -> None:
        self.told.append(("progress", elements))

    def on_live(self, snapshot: memoryview | None) -> None:
        self.told.append(("live", None if snapshot is None else bytes(snapshot)))

    def on_lost(self, reason: str) -> None:
        self.told.append(("lost", reason))

    def on_replica_wanted(self) -> None: ...

    def on_resync(self, versions: Mapping[int, int]) -> None:
        self.told.append(("resync", versions))

    def on_new_snapshot(self) -> None:
        self.told.append(("anew",))

    def on_partial_replica(self, values: memoryview, blocks: Blocks) -> tuple[int, ...]:
        self.told.append(("part", bytes(values), blocks))
        return self.differing

    def on_resumed(self, rebase: Rebase | None) -> None:
        self.told.append(("back", rebase))

    def on_blocks(self, blocks: Blocks, *, missed: bool) -> None:
        self.told.append(("blocks", blocks, missed))

    def on_repaired(self, rebase: Rebase | None) -> None:
        self.told.append(("mended", rebase))

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        self.told.append(("update", rank, update.sequence))

    def on_sum(self, total: Sum) -> None:
        self.told.append(("sum", total))

    def on_correction(self, correction: EncodedUpdate) -> None:
        self.told.append(("correction", correction.sequence))

    def on_delivered(self, size: int, seconds: float | None = None) -> None:
        self.told.append(("delivered", size))

    def on_roster(self, peers: Sequence[Peer]) -> None:
        self.told.append(("roster", *peers))

    def on_buffers(self, buffers: Mapping[int, Buffers]) -> None:
        self.told.append(("buffers", buffers))

    def on_stable(self, versions: Mapping[int, int]) -> None:
        super().on_stable(versions)
        self.told.append(("stable", versions))

    def on_finished(self, versions: Mapping[int, int]) -> None:
        self.told.append(("finished", versions))

    def on_stopping(self, reason: str) -> None:
        self.told.append(("stopping", reason))

    def on_closed(self, error: GradwireError | None) -> None:
        self.told.append(("closed", error))

    @property
    def topics(self) -> list[str]:
        return [topic for topic, *_ in self.told]

    @property
    def error_told(self) -> GradwireError:
        """What it was told at the end."""
        assert self.told[-1][0] == "closed"
        error = self.told[-1][1]
        assert isinstance(error, GradwireError)
        return error

    def about(self, topic: str) -> list[tuple[Any, ...]]:
        return [told for told in self.told if told[0] == topic]

    def message_of(self, kind: type[GradwireError] = ProtocolError) -> str:
        """Wait for the end by an error of this kind; return what it says."""
        self.wait_for("closed")
        assert type(self.error_told) is kind
        return str(self.error_told)

    def wait_for(self, topic: str, n: int = 1) -> None:
        self.network.run(lambda: self.topics.count(topic) >= n, seconds=60)


class Conversation:
    """A worker that has asked to join, and the master that it asked."""

    def __init__(self, layout: Layout = LAYOUT) -> None:
        self.network = SimulatedNetwork(1)
        self.master = ScriptedPeer(self.network, MASTER)
        self.side = Listening(self.network, layout=layout)
        self.worker = self.side.worker
        self.master.wait_for(Join)

    def live(self, **welcome: Any) -> "Conversation":
        """Let the worker in as one of several; return when it is live."""
        self.master.say(welcome_to(**welcome))
        self.master.say_block(0, VALUES)
        self.side.wait_for("live")
        self.side.told.clear()
        return self

    def act(self, do: Callable[..., None], *arguments: object) -> None:
        """Have the worker do something now, and send what it says."""
        do(*arguments, self.network.now)
        self.turn()

    def push(self, *bodies: bytes, based_on: int = 0) -> None:
        """Have the worker push updates, and send them."""
        push(self.worker, bodies, based_on, self.network.now)
        self.turn()

    def turn(self) -> None:
        self.network.turn(self.side.host)


def with_zeros(elements: int) -> Conversation:
    """Return a conversation with a live worker whose replica is all zeros."""
    layout = Layout((Tensor("a", (elements,)),))
    talk = Conversation(layout)
    talk.master.say(welcome_to(layout=layout))
    for start in range(0, elements, BLOCK_ELEMENTS):
        talk.master.say_block(start, zeros(min(BLOCK_ELEMENTS, elements - start)))
    talk.side.wait_for("live")
    talk.side.told.clear()
    return talk


def zeros(elements: int) -> Int32Array:
    return np.zeros(elements, np.int32)


def welcome_to(*, rank: int = 3, **others: Any) -> Welcome:
    return welcome(rank, roster=(Peer(rank, "worker", False),), **others)


# Joining.


def test_it_asks_to_join_as_soon_as_it_is_connected() -> None:
    talk = Conversation()

    assert talk.master.heard == [join_request(name="worker")]
    assert talk.worker.stage is Stage.JOINING


def test_a_joiner_is_live_when_the_welcome_and_the_snapshot_are_there() -> None:
    talk = Conversation()

    talk.master.say(welcome_to(sequence=7))
    talk.side.wait_for("welcome")
    talk.master.say_block(0, VALUES)
    talk.side.wait_for("live")

    assert talk.side.told == [
        ("welcome", welcome_to(sequence=7)),
        ("progress", ELEMENTS),
        ("live", VALUES.astype("<i4").tobytes()),
    ]
    assert (talk.worker.rank, talk.worker.sequence) == (3, 7)
    assert talk.worker.stage is Stage.LIVE


def test_a_snapshot_may_overtake_the_welcome() -> None:
    talk = Conversation()

    talk.master.say_block(0, VALUES)
    talk.network.run(lambda: bool(talk.worker._admission._early), seconds=60)
    assert talk.worker.stage is Stage.JOINING
    talk.master.say(welcome_to())
    talk.side.wait_for("live")

    assert talk.side.topics == ["welcome", "progress", "live"]
    assert talk.side.told[-1] == ("live", VALUES.astype("<i4").tobytes())


def test_blocks_come_in_any_order() -> None:
    values = np.arange(BLOCK_ELEMENTS + 2, dtype=np.int32)
    layout = Layout((Tensor("a", values.shape),))
    talk = Conversation(layout)
    talk.master.say(welcome_to(layout=layout))

    talk.master.say_block(BLOCK_ELEMENTS, values[BLOCK_ELEMENTS:])
    talk.side.wait_for("progress")
    talk.master.say_block(0, values[:BLOCK_ELEMENTS])
    talk.side.wait_for("live")

    assert talk.side.told[1:] == [
        ("progress", 2),
        ("progress", len(values)),
        ("live", values.astype("<i4").tobytes()),
    ]


def test_updates_may_overtake_welcome_and_snapshot_and_are_not_lost() -> None:
    talk = Conversation()

    talk.master.say_update(1, 6, b"later")
    talk.master.say_update(0, 1, b"first")
    talk.master.say_update(1, 5, b"sooner")
    talk.network.run_for(1.0)
    assert talk.side.told == []
    talk.master.say(welcome_to(versions={1: 4}))
    talk.master.say_block(0, VALUES)
    talk.side.wait_for("live")

    assert talk.side.topics[0] == "welcome"
    updates = talk.side.about("update")
    assert updates == [("update", 0, 1), ("update", 1, 5), ("update", 1, 6)]


def test_updates_that_the_snapshot_contains_are_not_applied_again() -> None:
    talk = Conversation()
    talk.master.say_update(1, 4, b"known")
    talk.network.run_for(1.0)

    talk.live(versions={0: 2, 1: 4})
    talk.master.say_update(0, 2, b"known")
    talk.master.say_update(0, 3, b"new")
    talk.side.wait_for("update")

    assert talk.side.told == [("update", 0, 3)]


def test_updates_that_overtake_the_welcome_wait_for_it_however_many_they_are() -> None:
    talk = Conversation()
    updates = 2 * WINDOW_BYTES // charge_of(0)
    usual = talk.network.link

    talk.network.link = replace(usual, loss=1.0)
    talk.master.say(welcome_to(versions={0: 0, 1: 0}))
    talk.network.run_for(1e-3)
    talk.network.link = usual
    for sequence in range(1, updates + 1):
        talk.master.say_update(0, sequence, b"early")
    talk.network.run(lambda: len(talk.side.worker.state.peers.early) > 100, seconds=1)
    talk.master.say_block(0, VALUES)
    talk.network.run(lambda: talk.side.topics.count("update") == updates, seconds=60)

    assert talk.side.about("update") == [
        ("update", 0, sequence) for sequence in range(1, updates + 1)
    ]


def test_a_refusal_is_told_with_its_code_and_reason() -> None:
    talk = Conversation()

    talk.master.say(Refuse("run_full", "2 workers take part, which is the limit"))
    end = talk.master.wait_for_end()

    assert isinstance(talk.side.error_told, RefusedError)
    assert talk.side.error_told.code == "run_full"
    assert str(talk.side.error_told) == naming(
        "master at master", "2 workers take part, which is the limit"
    )
    assert end == said_by_peer(EndCode.ABORTED, "gave up")
    assert talk.worker.stage is Stage.CLOSED


def test_a_block_that_is_none_is_nonsense() -> None:
    talk = Conversation()
    talk.master.say(welcome_to())

    talk.master.link.send_block(Snapshot(0, b"abc"))
    talk.network.turn(talk.master.host)

    assert talk.side.message_of() == naming("3 bytes", "6 elements")


# Founding.


def test_a_founder_is_live_when_the_master_has_all_its_blocks() -> None:
    elements = 2 * BLOCK_ELEMENTS + 5
    layout = Layout((Tensor("weights", (elements,)),))
    talk = Conversation(layout)
    talk.master.say(welcome_to(founder=True, layout=layout))
    talk.side.wait_for("welcome")
    values = np.arange(elements, dtype="<i4").tobytes()

    talk.act(talk.worker.found, values, None)
    talk.side.wait_for("live")

    came = sorted(talk.master.all(Snapshot), key=lambda block: block.start)
    blocks = [expand_block(block, elements, unpack_block) for block in came]
    assert [block.start for block in blocks] == [0, BLOCK_ELEMENTS, 2 * BLOCK_ELEMENTS]
    assert sum(len(block.values) for block in came) < len(values)
    assert b"".join(block.values for block in blocks) == values
    assert talk.side.told[-1] == ("live", None)
    assert talk.worker.stage is Stage.LIVE


def test_who_waits_for_the_first_parameters_knows_who_takes_part() -> None:
    talk = Conversation()

    talk.master.say(Roster((Peer(0, "first", False), Peer(1, "me", False))))
    talk.side.wait_for("roster")

    assert talk.worker.stage is Stage.JOINING


def test_only_a_founder_sends_parameters() -> None:
    talk = Conversation().live()

    talk.act(talk.worker.found, VALUES.tobytes(), None)
    talk.network.run_for(1.0)

    assert talk.master.all(Snapshot) == []


# Updates.


def test_what_is_pushed_is_named_by_rank_and_sequence_and_its_delivery_is_told() -> None:
    talk = Conversation().live(rank=2, sequence=10)

    talk.push(b"one", b"three", based_on=5)
    talk.side.wait_for("delivered", 2)

    heard = [(u.rank, u.update) for u in talk.master.all(UpdateReceived)]
    assert heard == [(2, EncodedUpdate(11, 5, b"one")), (2, EncodedUpdate(12, 5, b"three"))]
    assert talk.side.told == [("delivered", 3), ("delivered", 5)]
    assert talk.worker.sequence == 12


def test_nothing_is_pushed_before_it_is_live_or_after_it_left() -> None:
    talk = Conversation()
    push(talk.worker, [b"too early"], 0, talk.network.now)
    talk.live()
    talk.worker.leave("done", talk.network.now)

    talk.push(b"too late")
    talk.master.wait_for(Leave)
    talk.network.run_for(1.0)

    assert talk.master.all(UpdateReceived) == []


def test_an_update_of_one_s_own_that_comes_back_is_a_correction_in_whatever_order() -> None:
    talk = Conversation().live(rank=2, sequence=10)
    talk.push(b"one", b"two", b"three")

    talk.master.say_update(2, 13, b"less")
    talk.master.say_update(2, 11, b"less")
    talk.side.wait_for("correction", 2)

    assert talk.side.about("correction") == [
        ("correction", 13),
        ("correction", 11),
    ]
    assert talk.worker.sequence == 13


def test_sequences_are_not_used_twice_so_they_can_run_out() -> None:
    talk = Conversation().live(sequence=SEQUENCE_MAX - 1)

    talk.push(b"last", b"one too many")
    talk.master.wait_for_end()

    assert talk.side.message_of() == naming(SEQUENCE_MAX, "join again")


def say_part(talk: Conversation, body: bytes, span: Span | None) -> None:
    talk.master.link.send_conflated(Conflated(0, body, span))
    talk.network.turn(talk.master.host)


def test_a_sum_takes_the_place_of_the_updates_in_it() -> None:
    talk = Conversation().live(versions={1: 4})
    talk.master.say_update(1, 5, b"?")
    talk.master.say_update(1, 9, b"waits")
    talk.master.say_update(0, 3, b"waits")
    talk.side.wait_for("update")

    say_part(talk, b"body", Span({1: 5, 0: 0}, {1: 8, 0: 2}, 5, 1))
    talk.side.wait_for("update", 3)
    talk.master.say_update(1, 10, b"?")
    talk.side.wait_for("update", 4)

    assert talk.side.told == [
        ("update", 1, 5),
        ("sum", Sum((b"body",), {1: 8, 0: 2}, 5)),
        ("update", 1, 9),
        ("update", 0, 3),
        ("update", 1, 10),
    ]
    [connection] = talk.side.host.endpoint.connections()
    assert connection.bytes_held == 0


def test_a_sum_may_overtake_the_welcome() -> None:
    talk = Conversation()

    say_part(talk, b"body", Span({1: 4}, {1: 6}, 2, 1))
    talk.network.run_for(1.0)
    assert talk.side.told == []
    talk.master.say(welcome_to(versions={1: 4}))
    talk.master.say_block(0, VALUES)
    talk.side.wait_for("live")

    assert talk.side.about("sum") == [("sum", Sum((b"body",), {1: 6}, 2))]


def test_updates_of_every_origin_are_put_in_order() -> None:
    talk = Conversation().live(versions={1: 7})

    talk.master.say_update(1, 9, b"?")
    talk.master.say_update(0, 1, b"?")
    talk.master.say_update(1, 8, b"?")
    talk.side.wait_for("update", 3)

    assert talk.side.told == [("update", 0, 1), ("update", 1, 8), ("update", 1, 9)]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (Roster((Peer(0, "a", True),)), ("roster", Peer(0, "a", True))),
        (Stable({0: 4}), ("stable", {0: 4})),
        (Finished({0: 4, 3: 1}), ("finished", {0: 4, 3: 1})),
    ],
    ids=["roster", "stable", "finished"],
)
def test_what_the_master_says_is_told(message: Control, told: tuple[Any, ...]) -> None:
    talk = Conversation().live()

    talk.master.say(message)
    talk.side.wait_for(told[0])

    assert talk.side.told == [told]


def test_control_messages_are_told_in_the_order_they_were_meant() -> None:
    talk = Conversation().live()

    talk.master.say_out_of_order([Stable({0: 1}), Stable({0: 2}), Stable({0: 3})], [2, 0, 1])
    talk.side.wait_for("stable", 3)

    assert talk.side.told == [("stable", {0: 1}), ("stable", {0: 2}), ("stable", {0: 3})]


def test_a_block_that_comes_after_all_changes_nothing() -> None:
    talk = Conversation().live()

    talk.master.say_block(0, VALUES)
    talk.network.run_for(1.0)

    assert talk.side.told == []
    assert talk.worker.stage is Stage.LIVE


# A replica that is compared with the master's.

BLOCKS = Blocks({0: 4}, bytes(8))


def test_what_a_replica_is_the_master_is_told_as_long_as_there_is_one() -> None:
    talk = Conversation()
    digest = Digest({3: 0}, 7, 0)
    talk.worker.tell_digest(digest, talk.network.now)
    talk.live()

    talk.act(talk.worker.tell_digest, digest)
    talk.master.wait_for(Digest)
    talk.network.run_for(1.0)

    assert talk.master.all(Digest) == [digest]


def test_damaged_blocks_are_asked_for_and_told_when_all_are_here() -> None:
    talk = with_zeros(2 * BLOCK_ELEMENTS + 2)
    blocks = Blocks({0: 4}, bytes(24))

    talk.master.say(blocks)
    talk.side.wait_for("blocks")
    [(_, said, missed)] = talk.side.told
    talk.act(talk.worker.want, said, (1, 2))
    assert talk.master.wait_for(Want) == Want((1, 2))
    talk.master.say_block(2 * BLOCK_ELEMENTS, zeros(2))
    talk.master.say_block(BLOCK_ELEMENTS, zeros(BLOCK_ELEMENTS))
    talk.side.wait_for("mended")

    assert (said, missed) == (blocks, False)
    rebase = talk.side.told[-1][1]
    assert rebase.blocks is said
    assert {number: len(block) for number, block in rebase.values.items()} == {
        1: 4 * BLOCK_ELEMENTS,
        2: 8,
    }


def test_where_nothing_differs_nothing_comes() -> None:
    talk = Conversation().live()
    talk.master.say(BLOCKS)
    talk.side.wait_for("blocks")

    talk.act(talk.worker.want, talk.side.told[0][1], ())

    assert talk.master.wait_for(Want) == Want(())
    assert talk.side.told[1:] == [("mended", None)]


def test_what_was_found_of_another_comparison_is_not_asked_for() -> None:
    talk = Conversation().live()
    talk.worker.want(BLOCKS, (0,), talk.network.now)
    talk.master.say(BLOCKS)
    talk.side.wait_for("blocks")

    talk.act(talk.worker.want, BLOCKS, (0,))
    talk.network.run_for(1.0)

    assert talk.master.all(Want) == []


@pytest.mark.parametrize("asked", [False, True])
def test_a_block_that_was_not_asked_for_is_nonsense(asked: bool) -> None:
    talk = with_zeros(BLOCK_ELEMENTS + 2)
    talk.master.say(Blocks({}, bytes(16)))
    talk.side.wait_for("blocks")
    if asked:
        talk.worker.want(talk.side.told[-1][1], (1,), talk.network.now)

    talk.master.say_block(0, zeros(BLOCK_ELEMENTS))

    assert talk.side.message_of() == naming("block", "not asked")


# A connection that is lost while the replica comes.


class Interrupted(Conversation):
    """A worker that has one block of two, and asks another master to go on."""

    LAYOUT = Layout((Tensor("a", (BLOCK_ELEMENTS + 2,)),))
    FIRST = np.arange(BLOCK_ELEMENTS, dtype=np.int32)

    def __init__(self) -> None:
        super().__init__(self.LAYOUT)
        self.master.say(welcome_to(layout=self.LAYOUT, versions={0: 4}))
        self.master.say_block(0, self.FIRST)
        self.master.say_update(0, 5, b"known")
        self.side.wait_for("progress")
        self.side.wait_for("update")
        self.network.kill(self.master.host)
        self.side.wait_for("lost")
        self.master = ScriptedPeer(self.network, MASTER)
        self.request = self.master.wait_for(Join)
        self.side.told.clear()

    def welcome(self, *, resumed: bool = True, compares: bool = True) -> Welcome:
        plain = welcome_to(layout=self.LAYOUT, versions={0: 6}, rank=2)
        return replace(plain, resumed=resumed, compares=compares)


def test_who_was_lost_while_the_replica_came_says_what_is_in_its_part() -> None:
    talk = Interrupted()

    assert talk.request.partial == {0: 5}
    assert talk.request.resume is None
    assert talk.request.run == "default"


def test_a_part_is_compared_when_the_updates_that_it_lacks_are_here() -> None:
    talk = Interrupted()
    blocks = Blocks({0: 6}, bytes(16))
    talk.side.differing = (1,)

    talk.master.say(talk.welcome(), blocks)
    talk.network.run_for(1.0)
    assert talk.side.topics == ["resync", "welcome"]
    talk.master.say_update(0, 6, b"missed")
    assert talk.master.wait_for(Want) == Want((1,))
    talk.master.say_block(BLOCK_ELEMENTS, talk.FIRST[:2])
    talk.side.wait_for("live")

    part = talk.FIRST.astype("<i4").tobytes() + bytes(8)
    assert talk.side.about("part") == [("part", part, blocks)]
    whole = np.append(talk.FIRST, talk.FIRST[:2]).astype("<i4").tobytes()
    assert talk.side.told[-1] == ("live", whole)
    assert talk.worker.rank == 2


@pytest.mark.parametrize("differing", [(), (0, 1)])
def test_a_part_is_compared_at_once_when_nothing_more_comes(differing: tuple[int, ...]) -> None:
    talk = Interrupted()
    talk.side.differing = differing

    talk.master.say(talk.welcome(resumed=False), Blocks({0: 6}, bytes(16)))

    assert talk.master.wait_for(Want) == Want(differing)
    assert ("live" in talk.side.topics) == (not differing)


def test_what_has_come_of_it_by_then_is_kept_once_more() -> None:
    talk = Interrupted()
    talk.side.differing = (0, 1)
    talk.master.say(talk.welcome(resumed=False), Blocks({0: 6}, bytes(16)))
    talk.master.wait_for(Want)
    talk.master.say_block(BLOCK_ELEMENTS, talk.FIRST[:2])
    talk.network.run_for(1.0)
    talk.network.kill(talk.master.host)
    talk.network.run_for(60.0)
    talk.master = ScriptedPeer(talk.network, MASTER)
    assert talk.master.wait_for(Join).partial == {0: 6}
    talk.side.differing = ()

    talk.master.say(talk.welcome(), Blocks({0: 6}, bytes(16)))
    talk.side.wait_for("live")

    whole = np.append(talk.FIRST, talk.FIRST[:2]).astype("<i4").tobytes()
    assert talk.side.told[-1] == ("live", whole)


def test_a_part_that_the_master_does_not_want_to_hear_of_is_forgotten() -> None:
    talk = Interrupted()

    talk.master.say_block(BLOCK_ELEMENTS, talk.FIRST[:2])
    talk.master.say(talk.welcome(resumed=False, compares=False))
    talk.network.run_for(1.0)
    talk.master.say_block(0, talk.FIRST[::-1])
    talk.side.wait_for("live")

    whole = np.append(talk.FIRST[::-1], talk.FIRST[:2]).astype("<i4").tobytes()
    assert "anew" in talk.side.topics
    assert talk.side.told[-1] == ("live", whole)


def test_who_is_lost_before_any_block_has_come_has_a_part_of_nothing() -> None:
    talk = Conversation()
    talk.master.say(welcome_to(versions={0: 4}))
    talk.side.wait_for("welcome")
    talk.network.kill(talk.master.host)
    talk.side.wait_for("lost")

    assert ScriptedPeer(talk.network, MASTER).wait_for(Join).partial == {0: 4}


# Leaving.


def test_finishing_says_which_update_was_the_last() -> None:
    talk = Conversation().live()
    push(talk.worker, [b"one"], 0, talk.network.now)

    talk.act(talk.worker.finish)

    assert talk.master.wait_for(Finish) == Finish(1)
    assert talk.worker.stage is Stage.LIVE


def test_who_leaves_says_why_and_is_gone_when_the_master_says_so() -> None:
    talk = Conversation().live()
    push(talk.worker, [b"one"], 0, talk.network.now)

    talk.worker.leave("enough", talk.network.now)
    talk.act(talk.worker.leave, "a second time")
    assert talk.master.wait_for(Leave) == Leave(1, "enough")
    talk.master.end(EndCode.LEFT, "left")
    talk.side.wait_for("closed")

    assert talk.side.told[-1] == ("closed", None)
    assert talk.worker.stage is Stage.CLOSED
    assert talk.master.all(Leave) == [Leave(1, "enough")]


@pytest.mark.parametrize("founder", [True, False])
def test_one_can_leave_before_the_parameters_are_there(founder: bool) -> None:
    talk = Conversation()
    talk.master.say(welcome_to(founder=founder))
    talk.side.wait_for("welcome")

    talk.act(talk.worker.leave, "no time")

    assert talk.master.wait_for(Leave) == Leave(0, "no time")


def test_who_is_told_that_the_master_is_about_to_end_complies_by_leaving() -> None:
    talk = Conversation().live()
    push(talk.worker, [b"one"], 0, talk.network.now)

    talk.master.say(Stopping("maintenance"))
    talk.side.wait_for("stopping")
    push(talk.worker, [b"two"], 0, talk.network.now)
    talk.act(talk.worker.comply, "maintenance")

    assert talk.master.wait_for(Leave) == Leave(2, "maintenance")
    assert ("stopping", "maintenance") in talk.side.told


def test_who_has_finished_has_said_before_which_update_is_its_last() -> None:
    talk = Conversation().live()
    talk.worker.finish(talk.network.now)

    talk.act(talk.worker.comply, "maintenance")
    talk.master.wait_for(Finish)
    talk.network.run_for(1.0)

    assert talk.master.all(Leave) == []
    assert talk.worker.stage is Stage.LIVE


def test_who_leaves_before_it_was_let_in_is_gone_at_once() -> None:
    talk = Conversation()

    talk.act(talk.worker.leave, "no time")

    assert talk.side.told == [("closed", None)]
    assert talk.master.wait_for_end() == said_by_peer(EndCode.ABORTED, "no time")


def test_who_only_leaves_gets_no_blocks_and_claims_no_replica_any_more() -> None:
    talk = Conversation().live(versions={0: 4})
    talk.push(b"own", based_on=4)
    resumes = []
    for _ in range(2):
        talk.network.kill(talk.master.host)
        talk.network.run_for(60.0)
        talk.master = ScriptedPeer(talk.network, MASTER)
        talk.worker.leave("done", talk.network.now)
        resume = talk.master.wait_for(Join).resume
        assert resume is not None
        resumes.append(resume)
        talk.master.say(
            replace(welcome_to(versions={0: 6}), resumed=False), Blocks({0: 6}, bytes(8))
        )
        assert talk.master.wait_for(Want) == Want(())
        assert talk.master.wait_for(Leave).reason == "done"
        talk.master.say_update(0, 7, b"late")
        talk.network.run_for(1.0)

    assert [resume.versions for resume in resumes] == [{0: 4}, {}]
    assert [resume.sequence for resume in resumes] == [1, 1]
    assert [resume.kept for resume in resumes] == [{3: 1}, {3: 1}]
    assert [resume.leaving for resume in resumes] == [True, True]
    assert "update" not in talk.side.topics


def test_who_gives_up_is_gone_at_once_and_says_why() -> None:
    talk = Conversation().live()

    talk.worker.abort("no memory", talk.network.now)
    talk.act(talk.worker.abort, "a second time")

    assert talk.side.told == [("closed", None)]
    assert talk.master.wait_for_end() == said_by_peer(EndCode.ABORTED, "no memory")


def test_who_gives_up_before_there_is_an_answer_is_gone_too() -> None:
    network = SimulatedNetwork(2)
    side = Listening(network)

    side.worker.abort("no time", network.now)
    network.turn(side.host)

    assert side.told == [("closed", None)]


def test_nothing_is_told_after_the_end() -> None:
    talk = Conversation().live()
    talk.worker.abort("enough", talk.network.now)

    talk.master.say(Stable({0: 1}))
    talk.network.run_for(1.0)

    assert talk.side.told == [("closed", None)]


# What ends it.


@pytest.mark.parametrize(
    "message", [join_request(), Finish(0), Leave(0, "")], ids=lambda m: type(m).__name__
)
def test_what_a_master_does_not_say_ends_it(message: Control) -> None:
    talk = Conversation().live()

    talk.master.say(message)
    end = talk.master.wait_for_end()

    kind = type(message).__name__
    assert talk.side.message_of() == naming("the master at master", f"{kind} from a master")
    assert end == said_by_peer(CloseCode.INVALID_MESSAGE, f"{kind} from a master")


@pytest.mark.parametrize(
    ("say", "named"),
    [
        (lambda talk: talk.master.say(welcome_to()), ("the master at master", "Welcome", "LIVE")),
        (lambda talk: talk.master.say_update(2, 11, b"less"), ("update 11", 10)),
        (
            lambda talk: say_part(talk, b"body", Span({1: 5}, {1: 6}, 1, 1)),
            ("updates 6 to 6", "rank 1", 4),
        ),
        (lambda talk: talk.master.say(Blocks({}, bytes(16))), ("digests", 2, 1)),
        (lambda talk: talk.master.say(Blocks({}, bytes(12))), ("digests", 1.5, 1)),
    ],
    ids=[
        "a second welcome",
        "a correction of nothing",
        "a sum that leaves something out",
        "digests of too many blocks",
        "a part of a digest",
    ],
)
def test_what_cannot_be_ends_it(
    say: Callable[[Conversation], None], named: tuple[object, ...]
) -> None:
    talk = Conversation().live(rank=2, sequence=10, versions={1: 4})

    say(talk)

    assert talk.side.message_of() == naming("master at master", *named)


@pytest.mark.parametrize(
    ("say", "named"),
    [
        (
            lambda master: master.say(welcome_to(layout=Layout((Tensor("weights", (5,)),)))),
            ("Welcome", "'weights'", "(6,)", "(5,)"),
        ),
        (
            lambda master: (master.say_block(1, VALUES), master.say(welcome_to())),
            ("Snapshot", "24 bytes", "element 1", 6),
        ),
        (
            lambda master: [master.say_block(0, VALUES) for _ in range(9)],
            ("blocks before WELCOME",),
        ),
        (lambda master: master.say(welcome_to(), BLOCKS), ("no replica",)),
        (lambda master: master.say(buffers_of(0, 1.0)), ("the master at master", "Buffers")),
    ],
    ids=[
        "another model",
        "a block behind the end",
        "many early blocks",
        "nothing to compare",
        "early buffers",
    ],
)
def test_what_cannot_be_before_it_is_live_ends_it(
    say: Callable[[ScriptedPeer], None], named: tuple[object, ...]
) -> None:
    talk = Conversation()

    say(talk.master)

    assert talk.side.message_of() == naming(*named)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (EndCode.STOPPED, "maintenance at noon", ConnectionLostError),
        (EndCode.LEFT, "left", ConnectionLostError),
        (CloseCode.FULL, "no room", RefusedError),
        (CloseCode.INVALID_MESSAGE, "that was no JOIN", ProtocolError),
        (CloseCode.VIOLATION, "that was no packet", ProtocolError),
        (CloseCode.FLOW_CONTROL, "that was too much", ProtocolError),
    ],
)
def test_why_the_master_ends_it_is_told(code: int, reason: str, kind: type[GradwireError]) -> None:
    talk = Conversation().live()

    talk.master.end(code, reason)
    talk.side.wait_for("closed")

    broken = ("we", "protocol") if kind is ProtocolError else ()
    assert type(talk.side.error_told) is kind
    assert str(talk.side.error_told) == naming("master at master", *broken, reason)


def test_who_is_dropped_as_too_slow_is_told_why_and_dials_again() -> None:
    talk = Conversation().live()

    talk.master.end(EndCode.TOO_SLOW, "it has taken nothing for 60 s; the limit is 60 s")
    talk.side.wait_for("lost")

    assert talk.side.told[-1] == ("lost", "it has taken nothing for 60 s; the limit is 60 s")
    assert talk.worker.stage is Stage.CONNECTING
    assert talk.worker.next_timer() is not None


def test_a_master_that_was_left_and_stops_before_it_confirms_is_lost() -> None:
    talk = Conversation().live()
    talk.act(talk.worker.leave, "enough")
    talk.master.wait_for(Leave)

    talk.master.end(EndCode.STOPPED, "maintenance")

    assert talk.side.message_of(ConnectionLostError)


def test_nobody_at_the_master_s_address_is_unreachable() -> None:
    network = SimulatedNetwork(3)
    side = Listening(network, connect_timeout=2.5)

    assert side.message_of(UnreachableError) == naming(
        "at master", "2.5 s", "`gradwire master`", "UDP", "firewalls", KEYS[False]
    )


def test_a_master_of_another_version_is_told_with_both_versions() -> None:
    network = SimulatedNetwork(4)

    def answer(source: str, target: str, datagram: bytes) -> bool:
        if datagram[0] == INIT:
            network.send(MASTER, source, pack_versions(session_id_of(datagram))[:-1] + b"\x07")
        return source == MASTER

    network.on_datagram = answer
    side = Listening(network)

    assert side.message_of(VersionMismatchError) == naming(
        "master at master", 7, VERSION, "install"
    )


# The rest.


def test_the_round_trip_is_known_once_something_was_answered() -> None:
    network = SimulatedNetwork(5)
    master = ScriptedPeer(network, MASTER)
    side = Listening(network)
    assert side.worker.rtt is None

    master.wait_for(Join)
    network.run_for(1.0)

    assert side.worker.rtt == pytest.approx(2 * network.link.delay, abs=0.01)


def test_a_worker_that_never_dialled_knows_nothing() -> None:
    side = Listening(SimulatedNetwork(6))
    idle = Worker(join_request(), side, MASTER, random=Random(1).random)

    idle.abort("nothing to end", 0.0)
    idle.finish(0.0)
    idle.handle_timer(0.0)

    assert (idle.stage, idle.rtt, idle.next_timer()) == (Stage.CONNECTING, None, None)
    assert side.told == []


def test_whatever_stage_it_is_in_it_can_be_closed_but_once() -> None:
    assert {stage for stage in Stage if Stage.CLOSED in TRANSITIONS[stage]} == (
        set(Stage) - {Stage.CLOSED}
    )
    assert TRANSITIONS[Stage.CLOSED] == frozenset()


@pytest.mark.parametrize("unsent", [False, True])
def test_who_leaves_and_hears_that_the_run_is_finished_has_left_if_all_was_delivered(
    unsent: bool,
) -> None:
    """The goodbye was lost, and the master knows the connection no more: it is dialled again."""
    talk = Conversation().live()
    if unsent:
        push(talk.worker, [b"not delivered yet"], 0, talk.network.now)
    talk.worker.leave("done", talk.network.now)

    talk.master.say(Refuse(RefusalCode.RUN_FINISHED, "it was finished"))
    talk.side.wait_for("closed")

    error = talk.side.told[-1][1]
    assert (error is not None) == unsent


def test_whatever_follows_a_refusal_is_not_heard() -> None:
    talk = Conversation()

    talk.master.say_out_of_order([Refuse("no", "not today"), welcome_to()], [1, 0])
    talk.side.wait_for("closed")
    talk.network.run_for(1.0)

    assert talk.side.topics == ["closed"]
    assert isinstance(talk.side.error_told, RefusedError)


def test_when_the_master_confirms_that_we_left_everything_is_delivered() -> None:
    """Its goodbye may overtake the last acknowledgements."""
    talk = Conversation().live()
    push(talk.worker, [b"one", b"three"], 0, talk.network.now)
    talk.worker.leave("enough", talk.network.now)
    talk.network.on_datagram = lambda source, target, _: source != MASTER
    talk.turn()
    talk.master.wait_for(Leave)
    talk.network.on_datagram = lambda source, target, _: True
    talk.master.end(EndCode.LEFT, "left")
    talk.side.wait_for("closed")

    assert talk.side.about("delivered") == [
        ("delivered", 3),
        ("delivered", 5),
    ]


# Two masters.


def test_who_is_told_that_a_master_is_not_in_charge_goes_to_the_one_that_it_names() -> None:
    talk = Conversation()
    other = ScriptedPeer(talk.network, "other")

    talk.master.say(Refuse(RefusalCode.NOT_IN_CHARGE, "try the other one", "other"))
    other.wait_for(Join)
    other.say(welcome_to())
    other.say_block(0, VALUES)
    talk.side.wait_for("live")

    assert talk.worker.stage is Stage.LIVE


def test_who_finds_no_master_in_charge_for_as_long_as_connecting_may_take_says_so() -> None:
    network = SimulatedNetwork(1)
    master = ScriptedPeer(network, MASTER)
    side = Listening(network, connect_timeout=2.0)
    refused = Refuse(RefusalCode.NOT_IN_CHARGE, "try again")
    for n in range(1, 100):
        network.run(lambda n=n: len(master.all(Join)) == n or "closed" in side.topics, seconds=60)  # type: ignore[misc]
        if "closed" in side.topics:
            break
        master.say(refused)

    assert isinstance(side.error_told, RefusedError)
    assert "try again" in str(side.error_told)


def test_a_promise_is_given_and_kept() -> None:
    talk = Conversation().live()

    talk.master.say(Promise(5), Promise(4))

    talk.master.wait_for(Promise, 2)
    assert talk.master.all(Promise) == [Promise(5), Promise(5)]
    talk.master.end(EndCode.STEPPED_DOWN, "another one is in charge")
    talk.side.wait_for("lost")
    back = talk.master.wait_for(Join, 2)
    assert back.resume is not None
    assert back.resume.term == 5


def test_a_master_of_an_earlier_term_is_not_followed_any_more() -> None:
    talk = Conversation().live()
    talk.master.say(Promise(5), Stable({3: 0, 1: 2}))
    talk.side.wait_for("stable")
    talk.master.end(EndCode.STEPPED_DOWN, "another one is in charge")
    join = talk.master.wait_for(Join, 2)
    assert join.resume is not None

    talk.master.say(replace(welcome_to(), resumed=True, term=4))
    talk.master.wait_for(Join, 3)
    assert "back" not in talk.side.topics
    talk.master.say(replace(welcome_to(), resumed=True, term=6))

    talk.side.wait_for("back")


def test_an_attempt_to_come_back_that_was_turned_away_without_a_word_is_repeated() -> None:
    talk = Conversation().live()
    talk.master.end(EndCode.STEPPED_DOWN, "another one is in charge")
    talk.master.wait_for(Join, 2)

    talk.master.end(EndCode.NO_JOIN, "nothing was asked for in time")

    talk.master.wait_for(Join, 3)
    assert "closed" not in talk.side.topics


# Buffers.


def buffers_of(rank: int, value: float, *, final: bool = False) -> Buffers:
    values = BufferValues(np.array([value], np.float32), np.zeros(0, np.int64))
    return BUFFER_LAYOUT.pack_values(rank, values, final=final)


def test_what_the_buffers_of_others_hold_is_told_as_it_comes() -> None:
    talk = Conversation().live()

    talk.master.say(buffers_of(0, 1.0), buffers_of(1, 2.0))
    talk.side.wait_for("buffers", 2)

    assert talk.side.told == [
        ("buffers", {0: buffers_of(0, 1.0)}),
        ("buffers", {0: buffers_of(0, 1.0), 1: buffers_of(1, 2.0)}),
    ]


def test_own_buffers_go_out_before_it_is_said_that_no_more_comes() -> None:
    talk = Conversation().live()

    talk.worker.share_buffers(buffers_of(3, 1.0, final=True), talk.network.now)
    talk.act(talk.worker.finish)
    talk.master.wait_for(Finish)

    assert talk.master.heard[-2:] == [buffers_of(3, 1.0, final=True), Finish(0)]


def test_buffers_of_no_use_are_counted() -> None:
    talk = Conversation().live()

    talk.master.say(buffers_of(0, float("nan")))
    talk.side.wait_for("buffers")

    assert (talk.side.told, talk.worker.buffers_refused) == ([("buffers", {})], 1)
