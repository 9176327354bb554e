"""Repairs: what differs is found at whatever versions, and what does not is left alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.replica.repair import DIGEST_SECONDS, Repair
from gradwire.worker.inbox import Inbox, Rebase, complete
from gradwire.worker.sums import Sum
from gradwire.worker.update_log import ENTRY_BYTES, OwnUpdate, OwnUpdateLog
from gradwire_codecs import BlockDigests, LocalFeedback, Replica, encode
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.replicas import Blocks, Digest
from gradwire_protocol.messages.updates import Span
from support.wording import naming

ELEMENTS = 100
BLOCK = 16
LAYOUT = Layout((Tensor("weights", (ELEMENTS,)),))
RANK = 1


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", BLOCK)


class Side:
    """A worker's training thread, and the master's replica beside it."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.now = 0.0
        values = self.random.integers(-999, 999, ELEMENTS).astype(np.int32)
        self.master = Replica(values.copy())
        self.versions: dict[int, int] = {0: 0, RANK: 0, 2: 0}
        """What the worker has."""
        self.accepted = dict(self.versions)
        """What the master has."""
        self.feedback = LocalFeedback(np.zeros(ELEMENTS, np.float32), Replica(values))
        self.feedback.drop_residual()
        self.own = OwnUpdateLog()
        self.sent: list[bytes] = []
        self.repair = Repair(self.feedback, RANK, self.versions, self.own, LAYOUT, clock=self.clock)

    def clock(self) -> float:
        return self.now

    def update(self) -> bytes:
        change = np.zeros(ELEMENTS, np.float32)
        while not change.any():
            change = self.random.choice([0.0, 0.01], ELEMENTS, p=[0.9, 0.1]).astype(np.float32)
        [body] = encode(change, Replica.zeros(ELEMENTS), threshold=0.01)
        return body

    def push(self, *, accepted: bool) -> None:
        """Send an update of our own, which the master may have by then."""
        body = self.update()
        self.feedback.replica.apply(body)
        self.versions[RANK] += 1
        self.own.append(OwnUpdate(self.versions[RANK], 0, body))
        self.sent.append(body)
        if accepted:
            self.master.apply(body)
            self.accepted[RANK] += 1

    def receive(self, rank: int, *, accepted: bool) -> int:
        """Apply an update that the master may not speak of yet; return its size in bytes."""
        body = self.update()
        total = self.entries_of(body, {rank: self.versions[rank] + 1})
        self._apply(total)
        if accepted:
            self.master.apply(body)
            self.accepted[rank] += 1
        return len(body)

    def receive_sum(self) -> None:
        """Apply two updates of ranks 0 and 2 as one, of which the master may have a part only."""
        total = self.entries_of(self.update(), {each: self.versions[each] + 1 for each in (0, 2)})
        self._apply(total)

    def entries_of(self, body: bytes, after: dict[int, int]) -> Sum:
        """Return what follows in the log as this body: one update of each rank."""
        before = {each: self.versions[each] for each in after}
        stop = sum(self.versions.values()) + len(after)
        return Sum(stop, [body], Span(0, after, len(after), 1, {}), before, (), RANK)

    def _apply(self, total: Sum) -> None:
        changes = total.changes(ELEMENTS)
        for change in changes:
            self.feedback.apply(change)
        self.repair.note_applied(total, changes)
        self.versions |= total.span.after

    @property
    def blocks(self) -> Blocks:
        digests = BlockDigests.of(self.master.values, BLOCK).values
        position = sum(self.accepted.values())
        return Blocks(position, dict(self.accepted), digests.astype("<u8").tobytes())

    def rebase(self, blocks: Blocks, numbers: tuple[int, ...], *, missed: bool = False) -> Rebase:
        values = {n: self.master.values[n * BLOCK :][:BLOCK].tobytes() for n in numbers}
        return Rebase(blocks, values, missed)


@given(
    seed=st.integers(0, 2**32),
    before=st.integers(0, 4),
    after=st.integers(0, 4),
    damaged=st.sets(st.integers(0, ELEMENTS - 1), max_size=4),
)
def test_the_damaged_blocks_are_found_and_nothing_else(
    seed: int, before: int, after: int, damaged: set[int]
) -> None:
    """Also where updates were applied, and sent, that the master does not speak of yet."""
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", BLOCK)
        side = Side(seed)
        for _ in range(before):
            side.push(accepted=True)
            side.receive(2, accepted=True)
        for _ in range(after):
            side.push(accepted=False)
            side.receive(0, accepted=False)
        right = side.feedback.replica.values.copy()
        for i in damaged:
            side.feedback.replica.values[i] += 77

        blocks = side.blocks
        numbers = side.repair.compare(blocks, side.versions, missed=False)
        assert numbers is not None
        side.repair.mend(side.rebase(blocks, numbers))

        assert numbers == tuple(sorted({i // BLOCK for i in damaged}))
        assert side.feedback.replica.values.tolist() == right.tolist()
        assert side.repair.repairs == bool(damaged)
        assert side.repair.blocks_repaired == len(numbers)


def test_a_comparison_waits_for_updates_that_are_on_their_way() -> None:
    side = Side(1)
    side.accepted[2] = 1

    assert side.repair.compare(side.blocks, side.versions, missed=False) is None


def test_a_comparison_with_what_cannot_be_told_any_more_is_given_up() -> None:
    side = Side(1)
    side.receive(2, accepted=False)
    side.repair.note_sum({2: 1})
    side.feedback.replica.values[0] += 1

    assert side.repair.compare(side.blocks, side.versions, missed=False) == ()
    side.accepted[2] = 1
    assert side.repair.compare(side.blocks, side.versions, missed=False) != ()


def test_a_sum_is_taken_back_as_a_whole_or_not_at_all() -> None:
    side = Side(1)
    side.receive_sum()
    side.feedback.replica.values[0] += 1

    def differing() -> tuple[int, ...] | None:
        return side.repair.compare(side.blocks, side.versions, missed=False)

    assert differing() == (0,)
    side.accepted[2] = 1
    assert differing() == (), "the master's replica has a part of it"


def test_no_more_of_peers_is_kept_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small updates count with what their objects take, which is more than they are."""
    bound = 5 * (ENTRY_BYTES + 20)
    monkeypatch.setattr("gradwire.replica.repair.RECENT_BYTES_MAX", bound)
    side = Side(1)
    sizes = [side.receive(2, accepted=False) + ENTRY_BYTES for _ in range(20)]

    def differing(accepted: int) -> tuple[int, ...] | None:
        side.accepted[2] = accepted
        return side.repair.compare(side.blocks, side.versions, missed=False)

    first = next(n for n in range(21) if differing(n))  # all after it can still be taken back
    assert sum(sizes[first:]) <= bound < sum(sizes[first - 1 :])
    assert differing(20) == tuple(range(7))


def test_own_updates_that_were_forgotten_cannot_be_taken_back() -> None:
    side = Side(1)
    side.push(accepted=False)
    side.own.forget(1)

    assert side.repair.compare(side.blocks, side.versions, missed=False) == ()


def test_a_replica_that_has_missed_updates_gets_the_blocks_that_these_have_changed() -> None:
    side = Side(3)
    missed = np.zeros(ELEMENTS, np.float32)
    missed[[3, 50]] = 0.01
    [body] = encode(missed, Replica.zeros(ELEMENTS), threshold=0.01)
    side.master.apply(body)
    side.accepted[2] = 9
    side.push(accepted=False)
    [own] = side.own.after(0)
    side.feedback.parameters += np.float32(1e-3)
    residual = side.feedback.residual()

    blocks = side.blocks
    numbers = side.repair.compare(blocks, side.versions, missed=True)
    assert numbers == (0, 3)
    side.repair.mend(side.rebase(blocks, numbers, missed=True))

    side.master.apply(own.body)
    assert side.feedback.replica.digest() == side.master.digest()
    assert np.abs(side.feedback.residual() - residual).max() < 2.0**-24
    assert side.repair.repairs == 0


def test_blocks_for_a_comparison_that_is_over_change_nothing() -> None:
    side = Side(1)
    side.feedback.replica.values[0] += 1
    before = side.feedback.replica.values.copy()
    first, second = side.blocks, side.blocks
    side.repair.compare(first, side.versions, missed=False)
    side.repair.compare(second, side.versions, missed=False)

    side.repair.mend(side.rebase(first, (0,)))

    assert side.feedback.replica.values.tolist() == before.tolist()
    side.repair.mend(side.rebase(second, (0,)))
    assert side.feedback.replica.values.tolist() != before.tolist()


def test_a_block_that_is_damaged_itself_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    side = Side(1)
    side.feedback.replica.values[0] += 1
    blocks = side.blocks
    numbers = side.repair.compare(blocks, side.versions, missed=False)
    assert numbers == (0,)

    side.repair.mend(Rebase(blocks, {0: bytes(4 * BLOCK)}, missed=False))

    assert side.repair.repairs == 0
    assert naming("block 0", "from the master") in caplog.messages


def test_many_damaged_blocks_are_not_all_named(caplog: pytest.LogCaptureFixture) -> None:
    side = Side(1)
    side.feedback.replica.values += 1

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("gradwire.replica.repair.BLOCKS_NAMED_MAX", 2)
        side.repair.compare(side.blocks, side.versions, missed=False)

    named = ("0 (weights[0] to weights[15])", "1 (weights[16] to weights[31])", "5 more")
    assert naming("blocks", *named) in caplog.messages


@given(
    seed=st.integers(0, 2**32),
    missing=st.sets(st.integers(0, 6)),
    n=st.integers(0, 6),
    conflated=st.booleans(),
)
def test_of_a_part_the_missing_blocks_are_wanted_and_no_others(
    seed: int, missing: set[int], n: int, conflated: bool
) -> None:
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr("gradwire_protocol.messages.snapshots.BLOCK_ELEMENTS", BLOCK)
        side = Side(seed)
        side.master.values[:] += 1  # nowhere all zeros
        part = side.master.values.copy()
        for number in missing:
            part[number * BLOCK :][:BLOCK] = 0
        inbox = Inbox(ELEMENTS, bytes_max=0 if conflated else 10_000)
        for sequence in range(1, n + 1):
            body = side.update()
            side.master.apply(body)
            inbox.put(side.entries_of(body, {2: sequence}))

        values = memoryview(bytearray(part.astype("<i4").tobytes()))
        wanted = complete(values, inbox.take_all(), side.blocks)

        assert set(wanted) == missing
        have = np.frombuffer(values, "<i4")
        for number in set(range(7)) - missing:
            span = slice(number * BLOCK, (number + 1) * BLOCK)
            assert have[span].tolist() == side.master.values[span].tolist()


# Digests.


def test_a_digest_is_that_of_the_replica_at_a_position_of_the_log() -> None:
    """It lacks those own updates that the log has later; it is told seldom."""
    side = Side(1)
    side.push(accepted=True)
    side.receive(2, accepted=True)
    side.push(accepted=False)

    early = side.repair.digest(2, 1)
    side.now += DIGEST_SECONDS
    due = side.repair.digest(2, 1)

    assert (early, due) == (None, Digest(2, side.master.digest()))
    assert side.repair.digest(2, 1) is None
    side.now += DIGEST_SECONDS
    side.own.forget(2)
    assert side.repair.digest(2, 1) is None, "what is forgotten cannot be subtracted"


def test_a_restarted_master_gets_the_replica_without_what_the_log_has_not() -> None:
    side = Side(2)
    side.push(accepted=True)
    side.receive(2, accepted=True)
    side.push(accepted=False)
    side.push(accepted=False)

    values, last = side.repair.values_without(1)
    assert (values.tolist(), last) == (side.master.values.tolist(), 1)
    side.own.forget(2)
    side.master.apply(side.sent[1])
    values, last = side.repair.values_without(1)
    assert (values.tolist(), last) == (side.master.values.tolist(), 2), "no more can be subtracted"
