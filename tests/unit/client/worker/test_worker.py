"""The worker against a scripted master: whatever comes, in whatever order it comes."""

from collections.abc import Callable, Mapping
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
from gradwire.worker.state import Stage
from gradwire.worker.sums import Sum
from gradwire.worker.worker import Worker
from gradwire_codecs.arrays import Int32Array
from gradwire_protocol import CloseCode, ConnectionConfig, Endpoint
from gradwire_protocol.limits import WINDOW_BYTES, charge_of
from gradwire_protocol.messages.admission import (
    Join,
    LogName,
    Peer,
    Place,
    Promise,
    RefusalCode,
    Refuse,
    Welcome,
)
from gradwire_protocol.messages.buffers.layout import (
    BufferLayout,
    Buffers,
    BufferTensor,
    BufferValues,
)
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS, SEQUENCE_MAX
from gradwire_protocol.messages.kinds import EndCode
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.link import Control, EntriesReceived, UpdateReceived
from gradwire_protocol.messages.replicas import Blocks, Contents, Snapshot, Want
from gradwire_protocol.messages.updates import Entries, Finish, Leave, Span, Stable
from gradwire_protocol.wire.packets import INIT, VERSION, pack_versions, session_id_of
from support.dialling import dial
from support.network import SimulatedNetwork
from support.peer import LAYOUT, LOG, ScriptedPeer, join_request, said_by_peer, welcome
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

    def on_live(self, snapshot: memoryview | None) -> None:
        self.told.append(("live", None if snapshot is None else bytes(snapshot)))

    def on_replica_wanted(self, accepted: int) -> None:
        self.told.append(("replica wanted", accepted))

    def on_blocks(self, blocks: Blocks, *, missed: bool) -> None:
        self.told.append(("blocks", blocks, missed))

    def on_entries(self, total: Sum) -> None:
        if total.origin is not None:
            self.told.append(("update", *next(iter(total.versions.items()))))
            return
        own = [(each.sequence, each.body) for each in total.own]
        self.told.append(("sum", total.versions, own))

    def on_delivered(self, size: int, seconds: float | None = None) -> None:
        self.told.append(("delivered", size))

    def on_lost(self, reason: str) -> None:
        self.told.append(("lost", reason))

    def on_resumed(self, rebase: Rebase | None) -> None:
        self.told.append(("back", rebase))

    def on_stable(self, versions: Mapping[int, int]) -> None:
        super().on_stable(versions)
        self.told.append(("stable", versions))

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
        let_in = welcome_to(**welcome)
        self.master.position = let_in.place.position
        self.master.say(let_in)
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
    talk.network.run(lambda: len(talk.worker.state.log._assembly._spans) > 100, seconds=1)
    assert talk.worker.stage is Stage.JOINING, "or this would test nothing"
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


# Updates.


def test_sequences_are_not_used_twice_so_they_can_run_out() -> None:
    talk = Conversation().live(sequence=SEQUENCE_MAX - 1)

    talk.push(b"last", b"one too many")
    talk.master.wait_for_end()

    assert talk.side.message_of() == naming(SEQUENCE_MAX, "join again")


def say_sum(
    talk: Conversation,
    stop: int,
    body: bytes,
    updates: int,
    after: Mapping[int, int],
    start: int | None = None,
) -> None:
    """Say so many updates of the log as one, up to a position; what is before them is ours."""
    span = Span(stop - updates if start is None else start, after, updates, 1, {})
    talk.master.link.send_log(Entries(stop, body, span))
    talk.network.turn(talk.master.host)


def test_a_sum_is_taken_after_what_comes_before_it_and_less_our_own_updates() -> None:
    talk = Conversation().live(rank=3, sequence=4, versions={0: 1, 1: 7, 3: 4})
    talk.push(b"ours", b"another of ours")
    talk.side.told.clear()

    talk.master.position = 18
    talk.master.say_update(0, 6, b"after it")
    say_sum(talk, 18, b"body", 4, {0: 5, 3: 6})
    for position in (13, 12):
        talk.network.run_for(1.0)
        assert talk.side.about("sum") == []
        talk.master.position = position
        talk.master.say_update(0, position - 10, b"before it")
    talk.side.wait_for("update", 3)

    assert [told for told in talk.side.told if told[0] != "delivered"] == [
        ("update", 0, 2),
        ("update", 0, 3),
        ("sum", {0: 5}, [(5, b"ours"), (6, b"another of ours")]),
        ("update", 0, 6),
    ]


def test_with_own_updates_that_are_not_kept_any_more_in_a_sum_it_comes_back_without() -> None:
    talk = Conversation().live(rank=3, sequence=4, versions={0: 1, 3: 4})
    talk.push(b"ours", b"another of ours")
    talk.worker.own_updates.forget(5)

    say_sum(talk, 11, b"body", 6, {0: 5, 3: 6})
    resume = talk.master.wait_for(Join, 2).resume

    assert talk.side.about("sum") == []
    assert resume is not None
    assert (resume.place, resume.versions) == (Place(LOG, 5), {0: 1, 3: 4})
    assert (resume.sequence, resume.kept_from) == (6, 6)


def test_own_updates_that_are_stable_are_kept_until_we_have_what_the_master_had() -> None:
    talk = Conversation().live(rank=3, versions={0: 1})
    talk.push(b"ours")
    stable = Stable(5, {0: 4, 3: 1})
    talk.master.say(stable)
    talk.side.wait_for("stable")
    kept = len(talk.worker.own_updates)

    say_sum(talk, 5, b"body", 4, {0: 4, 3: 1})
    talk.side.wait_for("sum")
    talk.master.say(stable)
    talk.side.wait_for("stable", 2)

    assert (kept, len(talk.worker.own_updates)) == (1, 0)


# A master that has lost everything.


def restarted(talk: Conversation) -> ScriptedPeer:
    """Put another master in the place of this one, and let it hear the worker."""
    talk.network.kill(talk.master.host)
    talk.network.run_for(60.0)
    talk.master = ScriptedPeer(talk.network, MASTER)
    talk.master.wait_for(Join)
    return talk.master


def test_a_restarted_master_is_given_the_log_and_then_the_replica_as_it_was_there() -> None:
    talk = Conversation().live(rank=3, sequence=4, versions={0: 1, 3: 4})
    talk.push(b"ours", b"another of ours", based_on=1)
    say_sum(talk, 7, b"a sum", 2, {0: 3})
    say_sum(talk, 9, b"single", 1, {0: 4}, start=7)
    talk.side.wait_for("update")

    master = restarted(talk)
    resume = master.wait_for(Join).resume
    following = LogName(2 << 32, LOG.id, 9)
    master.say(welcome_to(founder=True, place=Place(following, 7)))
    talk.side.wait_for("replica wanted")
    talk.act(talk.worker.found_again, VALUES.astype("<i4").tobytes(), 5)
    contents = master.wait_for(Contents)
    master.wait_for(Snapshot)
    talk.side.wait_for("back")

    assert resume is not None
    assert (resume.place, resume.versions) == (Place(LOG, 9), {0: 4, 3: 5})
    assert (resume.sequence, resume.kept_after, resume.kept_from) == (6, 5, 5)
    assert talk.side.about("replica wanted") == [("replica wanted", 5)]
    own = Span(7, {3: 5}, 1, 1, {3: 1})
    assert [each.entries for each in master.all(EntriesReceived)] == [
        Entries(8, b"ours", own),
        Entries(9, b"single", Span(8, {0: 4}, 1, 1, {})),
    ]
    assert contents == Contents({0: 4, 3: 5})
    talk.network.run(lambda: bool(master.all(UpdateReceived)), seconds=60)
    assert [each.update.sequence for each in master.all(UpdateReceived)] == [6]
    master.position = 9
    master.say_update(0, 5, b"in the next log")
    talk.side.wait_for("update", 2)
    assert talk.worker.state.log.place == Place(following, 10)


def test_what_is_dropped_before_a_restarted_master_asks_for_it_is_told_to_it_again() -> None:
    """The training thread goes on, and its log is bounded."""
    talk = Conversation().live(rank=3)
    talk.push(b"ours")
    say_sum(talk, 2, b"single", 1, {0: 1}, start=0)
    talk.side.wait_for("update")
    master = restarted(talk)

    talk.worker.own_updates.forget(1)
    master.say(welcome_to(founder=True, place=Place(LogName(2 << 32, LOG.id, 2), 0)))

    kept = [
        join.resume.kept_after
        for join in (master.wait_for(Join), master.wait_for(Join, 2))
        if join.resume
    ]
    assert kept == [0, 1]
    assert "replica wanted" not in talk.side.topics


def test_a_replica_that_did_not_come_leaves_us_with_what_we_had() -> None:
    talk = Conversation().live(rank=3, versions={0: 4})
    master = restarted(talk)
    master.say(welcome_to(versions={0: 9}), Blocks(9, {0: 9}, bytes(8)))
    talk.side.wait_for("blocks")
    master.position = 9
    master.say_update(0, 10, b"after it")
    talk.side.wait_for("update")

    resume = restarted(talk).wait_for(Join).resume

    assert resume is not None
    assert (resume.place, resume.versions) == (Place(LOG, 4), {0: 4})


# A replica that is compared with the master's.

BLOCKS = Blocks(4, {0: 4}, bytes(8))


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
    talk.master.say(Blocks(0, {}, bytes(16)))
    talk.side.wait_for("blocks")
    if asked:
        talk.worker.want(talk.side.told[-1][1], (1,), talk.network.now)

    talk.master.say_block(0, zeros(BLOCK_ELEMENTS))

    assert talk.side.message_of() == naming("block", "not asked")


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
            replace(welcome_to(versions={0: 6}), resumed=False), Blocks(6, {0: 6}, bytes(8))
        )
        assert talk.master.wait_for(Want) == Want(())
        assert talk.master.wait_for(Leave).reason == "done"
        talk.master.position = 6
        talk.master.say_update(0, 7, b"late")
        talk.network.run_for(1.0)

    assert [resume.place for resume in resumes] == [Place(LOG, 4), Place()]
    assert [resume.versions for resume in resumes] == [{0: 4}, {}]
    assert [resume.sequence for resume in resumes] == [1, 1]
    assert [(resume.kept_after, resume.kept_from) for resume in resumes] == [(4, 1), (0, 1)]
    assert [resume.leaving for resume in resumes] == [True, True]
    assert "update" not in talk.side.topics


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
        (lambda talk: talk.master.say_update(2, 11, b"less"), ("our updates up to 11", 10)),
        (lambda talk: say_sum(talk, 16, b"body", 3, {1: 6}), ("Entries 14 to 16", 14)),
        (lambda talk: talk.master.say(Blocks(0, {}, bytes(16))), ("digests", 2, 1)),
        (lambda talk: talk.master.say(Blocks(0, {}, bytes(12))), ("digests", 1.5, 1)),
    ],
    ids=[
        "a second welcome",
        "an update of ours that we have not sent",
        "a sum of what came before",
        "digests of too many blocks",
        "a part of a digest",
    ],
)
def test_what_cannot_be_ends_it(
    say: Callable[[Conversation], None], named: tuple[object, ...]
) -> None:
    talk = Conversation().live(rank=2, sequence=10, versions={1: 4, 2: 10})

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
    talk.master.say(Promise(5), Stable(0, {3: 0}))
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
