"""Recovery: a restarted master goes on with what the most advanced worker has, and keeps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_codecs import Update, decode
from gradwire_codecs.arrays import Int64Array
from gradwire_codecs.format.update import pack_update
from gradwire_codecs.replica.merging import merge
from gradwire_protocol import Connection, InvalidMessageError, ShapedMessage
from gradwire_protocol.messages.admission import LogName, Place, Resume, Welcome
from gradwire_protocol.messages.link import Control, EntriesReceived, Link
from gradwire_protocol.messages.replicas import Blocks, Contents, Snapshot
from gradwire_protocol.messages.updates import Entries, Span
from gradwire_server.replica.founding import (
    add_returned,
    receive_block,
    receive_contents,
    receive_entries,
)
from gradwire_server.replica.recovery import can_follow
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member, Phase, Roster
from gradwire_server.state.run import Run
from support.members import member
from support.peer import LAYOUT, LOG, join_request, resume_of

ELEMENTS = LAYOUT.elements
FORMER = 9
"""Rank of a worker that does not come back."""

pytestmark = pytest.mark.usefixtures("handshakes_are_over")


@pytest.fixture(scope="module")
def handshakes_are_over() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "sender", SimpleNamespace(fragment_bytes=1_200))
        yield


class Recording(Link):
    """A link that keeps what is sent."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.controls: list[Control] = []
        self.entries: list[Entries] = []

    def send(self, record: Control, packed: bytes | None = None) -> int:
        self.controls.append(record)
        return len(self.controls)

    def send_entries(self, message: ShapedMessage) -> None:
        self.entries.append(Entries.parse(message.payload))


@dataclass(frozen=True)
class History:
    """What a log has: by position, from 1 on, the rank and the update of each entry."""

    name: LogName
    entries: Sequence[tuple[int, Update]] = field(repr=False)

    def values_at(self, position: int) -> Int64Array:
        return total([update for _, update in self.entries[:position]])

    def versions_at(self, position: int) -> dict[int, int]:
        ranks = [rank for rank, _ in self.entries[:position]]
        return {rank: ranks.count(rank) for rank in set(ranks)}

    def messages(self, start: int, stop: int, *, as_sum: bool = False) -> list[EntriesReceived]:
        """Return what is between two positions, as a worker sends it."""
        bounds = [start, stop] if as_sum and start < stop else list(range(start, stop + 1))
        messages = []
        for first, last in pairwise(bounds):
            inside = self.entries[first:last]
            merged = merge([update for _, update in inside], ELEMENTS)
            assert merged is not None
            versions = self.versions_at(last)
            after = {rank: versions[rank] for rank, _ in inside}
            span = Span(first, after, last - first, 1, dict.fromkeys(after, 0))
            messages.append(EntriesReceived(Entries(last, pack_update(merged), span), last))
        return messages


def total(updates: Sequence[Update]) -> Int64Array:
    values = np.zeros(ELEMENTS, np.int64)
    for update in updates:
        values[update.index] += update.change
    return values


def update_of(seed: int) -> Update:
    random = np.random.default_rng(seed)
    index = np.flatnonzero(random.random(ELEMENTS) < 0.7).astype(np.uint32)
    return Update(0, ELEMENTS, 3, index, random.choice([-2, 1, 5], len(index)).astype(np.int32))


def history(ranks: Sequence[int], name: LogName = LOG, seed: int = 0) -> History:
    return History(name, [(rank, update_of(seed + i)) for i, rank in enumerate(ranks)])


def continuation(of: History, parts_at: int, ranks: Sequence[int], now: float) -> History:
    """Return the log of a master that has gone on from a position of another one."""
    later = history(ranks, seed=int(1_000 * now)).entries
    return History(of.name.continued(parts_at, now), [*of.entries[:parts_at], *later])


@dataclass(frozen=True)
class Worker:
    """A worker that comes back."""

    history: History
    position: int
    kept_after: int

    def resume(self, rank: int, sequence: int, workers: int) -> Resume:
        return replace(
            resume_of(
                rank,
                sequence,
                self.history.versions_at(self.position),
                workers,
                Place(self.history.name, self.position),
                kept_from=1,
            ),
            kept_after=min(self.kept_after, self.position),
        )


class Recovered:
    """A master that is started a second time: the workers of the first one come back to it."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = workers
        self.run = Run.begin("alpha", join_request(layout=LAYOUT))
        self.run.recovery = self.recovery = RunRecovery(5.0, 5.0)
        self.roster = Roster()
        self.members: list[Member] = []
        self.links: list[Recording] = []
        known = [worker.history.versions_at(worker.position) for worker in workers]
        for rank, worker in enumerate(workers):
            sequence = max(versions.get(rank, 0) for versions in known)
            self.enter(rank, worker.resume(rank, sequence, len(workers)))

    def enter(self, rank: int, resume: Resume) -> None:
        entered = member(rank, Phase.WAITING)
        entered.join = replace(entered.join, resume=resume)
        link = entered.link = Recording(entered.link.connection)
        self.links.append(link)
        self.members.append(entered)
        self.roster.add_member(entered)
        add_returned(entered, resume, self.run, self.roster, 1.0)

    @property
    def heir(self) -> int:
        """Its rank."""
        assert self.recovery.heir is not None
        return self.recovery.heir.rank

    def welcome_of(self, rank: int) -> Welcome:
        """Return the last one of a worker."""
        return [each for each in self.links[rank].controls if isinstance(each, Welcome)][-1]

    def is_sent_blocks(self, rank: int) -> bool:
        return any(isinstance(each, Blocks) for each in self.links[rank].controls)

    def send_entries(self, *messages: EntriesReceived) -> None:
        heir = self.members[self.heir]
        for message in messages:
            receive_entries(heir, message, self.run, self.roster, 2.0)

    def send_all(self, *, as_sum: bool = False) -> None:
        """Let the heir send what it was asked for."""
        rank = self.heir
        heir, worker = self.members[rank], self.workers[rank]
        asked = self.welcome_of(rank)
        assert asked.founder
        versions = worker.history.versions_at(worker.position)
        values = worker.history.values_at(worker.position).astype("<i4").tobytes()
        receive_contents(heir, Contents(versions), self.run, self.roster, 2.0)
        receive_block(heir, Snapshot(0, values), self.run, self.roster, 2.0)
        after = asked.place.position
        assert self.run.founded == (after == worker.position), "it waits for the log"
        self.send_entries(*worker.history.messages(after, worker.position, as_sum=as_sum))
        self.run.relay.serve(3.0)

    def values_of(self, rank: int) -> list[int]:
        """Return what a worker has that kept its replica, with all that it was sent."""
        worker = self.workers[rank]
        values = worker.history.values_at(worker.position)
        entries = self.workers[self.heir_was].history.entries
        told = worker.position
        for each in self.links[rank].entries:
            assert each.span is not None
            assert each.span.start == told
            told = each.stop
            if each.body:
                values += total([decode(each.body, ELEMENTS)])
            inside = entries[each.stop - each.span.updates : each.stop]
            values -= total([update for origin, update in inside if origin == rank])
        head = self.run.relay.log.head
        own = [update for origin, update in entries[worker.position : head] if origin == rank]
        return [int(value) for value in values + total(own)]

    @property
    def heir_was(self) -> int:
        """The rank of the worker whose replica was taken."""
        return next(rank for rank in range(len(self.workers)) if self.welcome_of(rank).founder)


POSITIONS = st.integers(0, 8)
RANKS = st.sampled_from([0, 1, 2, FORMER])
ENTRIES = st.lists(RANKS, min_size=8, max_size=8)


@st.composite
def returning(draw: st.DrawFn) -> list[Worker]:
    """Return workers with one log, or with two that have gone on from one place."""
    before = history(draw(ENTRIES))
    logs = [before]
    if draw(st.booleans()):
        logs = [
            continuation(before, draw(POSITIONS), draw(st.lists(RANKS, max_size=4)), now)
            for now in (1.0, 2.0)
        ]
    workers = []
    for _ in range(draw(st.integers(1, 4))):
        log = draw(st.sampled_from(logs))
        position = draw(st.integers(0, len(log.entries)))
        workers.append(Worker(log, position, draw(POSITIONS)))
    return workers


@given(returning(), st.booleans())
def test_all_workers_go_on_with_what_the_heir_has(workers: list[Worker], as_sum: bool) -> None:
    recovered = Recovered(workers)
    asked = recovered.recovery.after
    recovered.send_all(as_sum=as_sum)

    heir = workers[recovered.heir_was]
    expected = heir.history.values_at(heir.position).tolist()
    run = recovered.run
    assert run.founded
    assert run.replica.values.tolist() == expected
    assert run.relay.versions == heir.history.versions_at(heir.position)
    name = run.relay.log.name
    assert (name.base, name.parts_at) == (heir.history.name.id, heir.position)
    assert run.relay.log.head == heir.position
    for rank, worker in enumerate(workers):
        if rank == recovered.heir_was:
            assert recovered.members[rank].phase is Phase.LIVE
            continue
        lacks_boundary = as_sum and asked < worker.position < heir.position
        shares = worker.history.name == heir.history.name
        can_go_on = shares and worker.position >= asked and not lacks_boundary
        assert recovered.is_sent_blocks(rank) == (not can_go_on)
        welcome = recovered.welcome_of(rank)
        assert welcome.resumed == can_go_on
        assert welcome.place == run.relay.log.place
        if can_go_on:
            assert recovered.members[rank].phase is Phase.LIVE
            assert recovered.values_of(rank) == expected


def test_a_worker_of_a_log_that_has_parted_is_sent_blocks_though_it_is_not_behind() -> None:
    """Two masters have served the run at once; more workers have followed the other one."""
    before = history([0, 1, 2, FORMER])
    [ours, theirs] = [continuation(before, 4, [0, 1], now) for now in (1.0, 2.0)]
    recovered = Recovered([Worker(ours, 6, 0), Worker(theirs, 5, 0), Worker(theirs, 6, 0)])

    recovered.send_all()

    assert recovered.heir_was == 2
    assert [recovered.is_sent_blocks(rank) for rank in range(3)] == [True, False, False]


def test_of_the_heir_only_what_it_was_asked_for_is_taken() -> None:
    log = history([0, 1, 0, 1])
    [first, second, third, _] = log.messages(0, 4)
    recovered = Recovered([Worker(log, 3, 0), Worker(log, 1, 0)])
    assert recovered.heir == 0

    wrong = [
        (0, first, "from 0 to 1"),
        (0, log.messages(0, 4, as_sum=True)[0], "from 0 to 4"),
        (1, second, "nobody asked for"),
        (0, replaced_body(second, b"nonsense"), "up to 2: unknown format"),
    ]
    for rank, message, says in wrong:
        recovered = Recovered([Worker(log, 3, 0), Worker(log, 1, 0)])
        sender = recovered.members[rank]
        with pytest.raises(InvalidMessageError, match=says):
            receive_entries(sender, message, recovered.run, recovered.roster, 2.0)
    recovered = Recovered([Worker(log, 3, 0), Worker(log, 1, 0)])
    recovered.send_entries(third)
    assert not recovered.recovery.has_log, "it waits for what comes before"
    recovered.send_entries(second)
    assert recovered.recovery.has_log


def replaced_body(received: EntriesReceived, body: bytes) -> EntriesReceived:
    return replace(received, entries=replace(received.entries, body=body))


def test_a_worker_whose_updates_are_lost_is_sent_blocks(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has them any more, not even itself; the others go on without them."""
    log = history([0, 0, 0, 1])
    recovered = Recovered([Worker(log, 4, 0)])
    run, recovery = recovered.run, recovered.recovery
    assert recovered.heir == 0
    recovery.gathering = True  # one more comes in time
    recovery.heir = None
    resume = replace(resume_of(1, 7, {0: 3}, 2, Place(LOG, 3)), kept_from=5)
    [heir] = recovered.members
    heir.phase = Phase.WAITING
    recovered.workers = [*recovered.workers, Worker(log, 3, 3)]

    recovered.enter(1, resume)
    recovered.send_all()

    assert run.accepted(1) == 4
    assert recovered.is_sent_blocks(1)
    assert "updates 2 to 4 of rank 1" in caplog.text


@pytest.mark.parametrize(
    ("position", "kept_from", "follows"),
    [
        (1, 2, True),
        (1, 3, False),  # it could not subtract its second one from a sum
        (3, 3, True),  # it lacks nothing
        (4, 3, False),
    ],
)
def test_a_worker_can_follow_that_keeps_what_it_has_to_subtract(
    position: int, kept_from: int, follows: bool
) -> None:
    log = history([1, 0, 1])
    recovered = Recovered([Worker(log, 3, 0), Worker(log, 0, 0)])
    recovered.send_all()

    back = member(1)
    has = log.versions_at(position)
    resume = resume_of(1, 2, has, place=Place(LOG, position), kept_from=kept_from)
    back.join = replace(back.join, resume=resume)

    assert can_follow(back, recovered.run) == follows
