"""The worker against a scripted master: whatever comes, in whatever order it comes."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from gradwire.dialing import KEYS
from gradwire.errors import (
    ConnectionLostError,
    GradwireError,
    ProtocolError,
    RefusedError,
    UnreachableError,
    VersionMismatchError,
)
from gradwire.inbox import Rebase
from gradwire.stages import TRANSITIONS, Stage
from gradwire.worker import EARLY_UPDATES_MAX, Worker
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol import CloseCode, ConnectionConfig, Endpoint
from gradwire_protocol.layout import Layout, Tensor
from gradwire_protocol.link import Control, UpdateReceived
from gradwire_protocol.messages import (
    BLOCK_ELEMENTS,
    SEQUENCE_MAX,
    EncodedUpdate,
    EndCode,
    Finish,
    Finished,
    Join,
    Leave,
    Peer,
    Refuse,
    Roster,
    Snapshot,
    Stable,
    Welcome,
)
from gradwire_protocol.packets import INIT, VERSION, pack_versions, session_id_of
from support.network import SimulatedNetwork
from support.peer import LAYOUT, ScriptedPeer, join_request, said_by_peer

MASTER = "master"
ELEMENTS = LAYOUT.elements
VALUES: Int32Array = np.arange(ELEMENTS, dtype=np.int32)


class Listening:
    """A worker on a network, and everything that it tells its listener."""

    def __init__(
        self, network: SimulatedNetwork, *, layout: Layout = LAYOUT, connect_timeout: float = 60.0
    ) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.network = network
        self.worker = Worker(
            join_request(layout=layout, name="worker"), self, MASTER, random=Random(1).random
        )
        config = ConnectionConfig(connect_timeout_seconds=connect_timeout)
        endpoint = Endpoint(config, random_bytes=network.random.randbytes)
        self.worker.connect(endpoint, MASTER, network.now)
        self.host = network.add("worker", endpoint, self.worker)

    def on_welcome(self, welcome: Welcome) -> None:
        self.told.append(("welcome", welcome))

    def on_snapshot_progress(self, elements: int) -> None:
        self.told.append(("progress", elements))

    def on_live(self, snapshot: bytearray | None) -> None:
        self.told.append(("live", None if snapshot is None else bytes(snapshot)))

    def on_lost(self, reason: str) -> None:
        self.told.append(("lost", reason))

    def on_wanted(self) -> None: ...

    def on_resync(self) -> None:
        self.told.append(("resync",))

    def on_back(self, rebase: Rebase | None) -> None:
        self.told.append(("back", rebase))

    def on_update(self, rank: int, update: EncodedUpdate) -> None:
        self.told.append(("update", rank, update.sequence))

    def on_correction(self, correction: EncodedUpdate) -> None:
        self.told.append(("correction", correction.sequence))

    def on_delivered(self, size: int) -> None:
        self.told.append(("delivered", size))

    def on_roster(self, peers: Sequence[Peer]) -> None:
        self.told.append(("roster", *peers))

    def on_stable(self, versions: Mapping[int, int]) -> None:
        self.told.append(("stable", versions))

    def on_finished(self, versions: Mapping[int, int]) -> None:
        self.told.append(("finished", versions))

    def on_closed(self, error: GradwireError | None) -> None:
        self.told.append(("closed", error))

    @property
    def topics(self) -> list[str]:
        return [topic for topic, *_ in self.told]

    @property
    def error(self) -> GradwireError:
        """What it was told at the end."""
        assert self.told[-1][0] == "closed"
        error = self.told[-1][1]
        assert isinstance(error, GradwireError)
        return error

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

    def founder(self) -> "Conversation":
        """Let the worker in as the first one; return when it has heard so."""
        self.master.say(welcome_to(founder=True))
        self.side.wait_for("welcome")
        self.side.told.clear()
        return self

    def turn(self) -> None:
        self.network.turn(self.side.host)


def welcome_to(
    *,
    rank: int = 3,
    sequence: int = 0,
    layout: Layout = LAYOUT,
    founder: bool = False,
    versions: Mapping[int, int] | None = None,
) -> Welcome:
    roster = (Peer(rank, "worker", False),)
    return Welcome("default", rank, sequence, -24, layout, roster, founder, versions or {})


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
    talk.side.wait_for("progress")
    assert talk.worker.stage is Stage.JOINING
    talk.master.say(welcome_to())
    talk.side.wait_for("live")

    assert talk.side.topics == ["progress", "welcome", "live"]
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
    updates = [told for told in talk.side.told if told[0] == "update"]
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


def test_more_updates_than_can_come_before_the_welcome_are_nonsense() -> None:
    talk = Conversation()

    for sequence in range(1, EARLY_UPDATES_MAX + 2):
        talk.master.say_update(0, sequence, b"early")
    talk.side.wait_for("closed")

    assert isinstance(talk.side.error, ProtocolError)
    assert str(talk.side.error) == (
        "the master at master sent nonsense: 1024 updates before WELCOME"
    )


def test_a_refusal_is_told_with_its_code_and_reason() -> None:
    talk = Conversation()

    talk.master.say(Refuse("run_full", "2 workers take part, which is the limit"))
    end = talk.master.wait_for_end()

    assert isinstance(talk.side.error, RefusedError)
    assert talk.side.error.code == "run_full"
    assert str(talk.side.error) == (
        "the master at master refused: 2 workers take part, which is the limit"
    )
    assert end == said_by_peer(EndCode.ABORTED, "gave up")
    assert talk.worker.stage is Stage.CLOSED


# Founding.


def test_a_founder_is_live_when_the_master_has_all_its_blocks() -> None:
    elements = 2 * BLOCK_ELEMENTS + 5
    talk = Conversation(Layout((Tensor("weights", (elements,)),)))
    talk.master.say(welcome_to(founder=True, layout=Layout((Tensor("weights", (elements,)),))))
    talk.side.wait_for("welcome")
    values = np.arange(elements, dtype="<i4").tobytes()

    talk.worker.found(values, talk.network.now)
    talk.turn()
    talk.side.wait_for("live")

    blocks = sorted(talk.master.all(Snapshot), key=lambda block: block.start)
    assert [block.start for block in blocks] == [0, BLOCK_ELEMENTS, 2 * BLOCK_ELEMENTS]
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

    talk.worker.found(VALUES.tobytes(), talk.network.now)
    talk.turn()
    talk.network.run_for(1.0)

    assert talk.master.all(Snapshot) == []


# Updates.


def test_what_is_pushed_is_named_by_rank_and_sequence_and_its_delivery_is_told() -> None:
    talk = Conversation().live(rank=2, sequence=10)

    talk.worker.push([b"one", b"three"], 5, talk.network.now)
    talk.turn()
    talk.side.wait_for("delivered", 2)

    heard = [(u.rank, u.update) for u in talk.master.all(UpdateReceived)]
    assert heard == [(2, EncodedUpdate(11, 5, b"one")), (2, EncodedUpdate(12, 5, b"three"))]
    assert talk.side.told == [("delivered", 3), ("delivered", 5)]
    assert talk.worker.sequence == 12


def test_nothing_is_pushed_before_it_is_live_or_after_it_left() -> None:
    talk = Conversation()
    talk.worker.push([b"too early"], 0, talk.network.now)
    talk.live()
    talk.worker.leave("done", talk.network.now)

    talk.worker.push([b"too late"], 0, talk.network.now)
    talk.turn()
    talk.master.wait_for(Leave)
    talk.network.run_for(1.0)

    assert talk.master.all(UpdateReceived) == []


def test_an_update_of_one_s_own_that_comes_back_is_a_correction_in_whatever_order() -> None:
    talk = Conversation().live(rank=2, sequence=10)
    talk.worker.push([b"one", b"two", b"three"], 0, talk.network.now)
    talk.turn()

    talk.master.say_update(2, 13, b"less")
    talk.master.say_update(2, 11, b"less")
    talk.side.wait_for("correction", 2)

    assert [told for told in talk.side.told if told[0] == "correction"] == [
        ("correction", 13),
        ("correction", 11),
    ]
    assert talk.worker.sequence == 13


def test_a_correction_of_what_was_never_sent_ends_it() -> None:
    talk = Conversation().live(rank=2, sequence=10)

    talk.master.say_update(2, 11, b"less")
    talk.side.wait_for("closed")

    assert isinstance(talk.side.error, ProtocolError)
    assert str(talk.side.error) == (
        "the master at master sent nonsense: correction of update 11; 10 were sent"
    )


def test_sequences_are_not_used_twice_so_they_can_run_out() -> None:
    talk = Conversation().live(sequence=SEQUENCE_MAX - 1)

    talk.worker.push([b"last", b"one too many"], 0, talk.network.now)
    talk.turn()
    talk.master.wait_for_end()

    assert isinstance(talk.side.error, ProtocolError)
    assert str(talk.side.error) == f"{SEQUENCE_MAX} updates sent; join again"


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


# Leaving.


def test_finishing_says_which_update_was_the_last() -> None:
    talk = Conversation().live()
    talk.worker.push([b"one"], 0, talk.network.now)

    talk.worker.finish(talk.network.now)
    talk.turn()

    assert talk.master.wait_for(Finish) == Finish(1)
    assert talk.worker.stage is Stage.LIVE


def test_who_leaves_says_why_and_is_gone_when_the_master_says_so() -> None:
    talk = Conversation().live()
    talk.worker.push([b"one"], 0, talk.network.now)

    talk.worker.leave("enough", talk.network.now)
    talk.worker.leave("a second time", talk.network.now)
    talk.turn()
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

    talk.worker.leave("no time", talk.network.now)
    talk.turn()

    assert talk.master.wait_for(Leave) == Leave(0, "no time")


def test_who_leaves_before_it_was_let_in_is_gone_at_once() -> None:
    talk = Conversation()

    talk.worker.leave("no time", talk.network.now)
    talk.turn()

    assert talk.side.told == [("closed", None)]
    assert talk.master.wait_for_end() == said_by_peer(EndCode.ABORTED, "no time")


def test_who_gives_up_is_gone_at_once_and_says_why() -> None:
    talk = Conversation().live()

    talk.worker.abort("no memory", talk.network.now)
    talk.worker.abort("a second time", talk.network.now)
    talk.turn()

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
    assert isinstance(talk.side.error, ProtocolError)
    assert str(talk.side.error) == f"the master at master sent nonsense: {kind} from a master"
    assert end == said_by_peer(CloseCode.INVALID_MESSAGE, f"{kind} from a master")


def test_a_second_welcome_ends_it() -> None:
    talk = Conversation().live()

    talk.master.say(welcome_to())
    talk.side.wait_for("closed")

    assert isinstance(talk.side.error, ProtocolError)
    assert str(talk.side.error) == "the master at master sent nonsense: Welcome while LIVE"


def test_a_welcome_to_another_model_ends_it() -> None:
    talk = Conversation()

    talk.master.say(welcome_to(layout=Layout((Tensor("weights", (5,)),))))
    talk.side.wait_for("closed")

    assert isinstance(talk.side.error, ProtocolError)
    assert "Welcome with another layout: 'weights' of shape (6,)" in str(talk.side.error)


def test_a_block_behind_the_end_of_the_model_ends_it() -> None:
    talk = Conversation()

    talk.master.say_block(1, VALUES)
    talk.side.wait_for("closed")

    assert isinstance(talk.side.error, ProtocolError)
    assert "Snapshot: 24 bytes from element 1 on" in str(talk.side.error)


@pytest.mark.parametrize(
    ("code", "reason", "kind", "says"),
    [
        (
            EndCode.STOPPED,
            "maintenance at noon",
            ConnectionLostError,
            "the connection to the master at master is over: maintenance at noon",
        ),
        (
            EndCode.TOO_SLOW,
            "99 bytes wait for this worker; the limit is 9",
            ConnectionLostError,
            "99 bytes wait for this worker; the limit is 9",
        ),
        (EndCode.LEFT, "left", ConnectionLostError, "is over: left"),
        (CloseCode.FULL, "no room", RefusedError, "the master at master refused: no room"),
        (CloseCode.INVALID_MESSAGE, "that was no JOIN", ProtocolError, ": that was no JOIN"),
        (CloseCode.VIOLATION, "that was no packet", ProtocolError, ": that was no packet"),
        (CloseCode.FLOW_CONTROL, "that was too much", ProtocolError, ": that was too much"),
    ],
)
def test_why_the_master_ends_it_is_told(
    code: int, reason: str, kind: type[GradwireError], says: str
) -> None:
    talk = Conversation().live()

    talk.master.end(code, reason)
    talk.side.wait_for("closed")

    assert type(talk.side.error) is kind
    assert str(talk.side.error).endswith(says)


def test_a_master_that_was_left_and_stops_before_it_confirms_is_lost() -> None:
    talk = Conversation().live()
    talk.worker.leave("enough", talk.network.now)
    talk.turn()
    talk.master.wait_for(Leave)

    talk.master.end(EndCode.STOPPED, "maintenance")
    talk.side.wait_for("closed")

    assert isinstance(talk.side.error, ConnectionLostError)


def test_nobody_at_the_master_s_address_is_unreachable() -> None:
    network = SimulatedNetwork(3)
    side = Listening(network, connect_timeout=2.5)

    side.wait_for("closed")

    assert isinstance(side.error, UnreachableError)
    assert str(side.error) == (
        "no master answers at master (waited 2.5 s): is `gradwire master` running there, and does "
        f"UDP pass the firewalls between? {KEYS[False]}"
    )


def test_a_master_of_another_version_is_told_with_both_versions() -> None:
    network = SimulatedNetwork(4)

    def answer(source: str, target: str, datagram: bytes) -> bool:
        if datagram[0] == INIT:
            network.send(MASTER, source, pack_versions(session_id_of(datagram))[:-1] + b"\x07")
        return source == MASTER

    network.on_datagram = answer
    side = Listening(network)
    side.wait_for("closed")

    assert isinstance(side.error, VersionMismatchError)
    assert str(side.error) == (
        f"the master at master speaks protocol version 7, this gradwire {VERSION}: "
        "install the same version of gradwire on both"
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


def test_whatever_follows_a_refusal_is_not_heard() -> None:
    talk = Conversation()

    talk.master.say_out_of_order([Refuse("no", "not today"), welcome_to()], [1, 0])
    talk.side.wait_for("closed")
    talk.network.run_for(1.0)

    assert talk.side.topics == ["closed"]
    assert isinstance(talk.side.error, RefusedError)


def test_a_rule_that_we_broke_is_told_in_whole_sentences() -> None:
    talk = Conversation().live()

    talk.master.end(CloseCode.INVALID_MESSAGE, "that was no JOIN")
    talk.side.wait_for("closed")

    assert str(talk.side.error) == (
        "the master at master says we have broken the protocol: that was no JOIN"
    )


def test_when_the_master_confirms_that_we_left_everything_is_delivered() -> None:
    """Its goodbye may overtake the last acknowledgements."""
    talk = Conversation().live()
    talk.worker.push([b"one", b"three"], 0, talk.network.now)
    talk.worker.leave("enough", talk.network.now)
    talk.network.on_datagram = lambda source, target, _: source != MASTER
    talk.turn()
    talk.master.wait_for(Leave)
    talk.network.on_datagram = lambda source, target, _: True
    talk.master.end(EndCode.LEFT, "left")
    talk.side.wait_for("closed")

    assert [told for told in talk.side.told if told[0] == "delivered"] == [
        ("delivered", 3),
        ("delivered", 5),
    ]
