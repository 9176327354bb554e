"""The simulator finds bugs: with a rule of the code broken, histories fail, and say what is wrong.

Each fault is planted where a mistake would be made. Some seed out of a few has to find it: the one
that did is pinned beside it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradwire_udp.files.checkpoints
from gradwire.features.buffers import BufferSharing
from gradwire.features.clock_lags import ClockLags
from gradwire.participant.participant import Participant
from gradwire.replica.push import ResidualFlush
from gradwire.replica.repair import Repair
from gradwire.replica.scaled_change import ScaledChange
from gradwire.worker.inbox import Inbox, Rebase
from gradwire.worker.sums import Sum
from gradwire.worker.update_log import OwnUpdate, OwnUpdateLog
from gradwire.worker.worker import Worker
from gradwire_protocol.delivery.incoming import Reassembly
from gradwire_protocol.messages.admission import Place
from gradwire_protocol.messages.buffers.agreement import Standing, mean_of
from gradwire_protocol.messages.buffers.layout import BufferValues
from gradwire_protocol.messages.updates import EntriesAssembly
from gradwire_server.log.cursor import Cursor
from gradwire_server.log.dense_sums import DenseSum
from gradwire_server.log.log import Log
from gradwire_server.log.segments import Segment
from gradwire_server.log.sums import Sums
from gradwire_server.master.buffer_relay import BufferRelay
from gradwire_server.master.intake import Intake
from gradwire_server.master.stability import Stability
from gradwire_server.state.relay import Relay
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.state.restart import RunRecovery
from gradwire_server.state.roster import Member
from gradwire_server.state.run import Run
from support.disk import SimulatedDisk
from support.playing import HistoryFailed, play
from support.simulated_worker import SimulatedWorker
from support.tiers import IS_DEEP

SEEDS = range(400)
"""Tried one after the other, until one finds it."""

Plant = Callable[[pytest.MonkeyPatch], None]


# An update is applied once.


def who_lost_its_connection_asks_again_for_what_it_has(patch: pytest.MonkeyPatch) -> None:
    comes_back = Worker._reconnect

    def forgetful(self: Worker, event: Any, now: float) -> bool:
        is_back = comes_back(self, event, now)
        copy = self._log._copy
        last = copy.kept[-1] if copy.kept else None
        if last is not None and last.span is not None and last.span.updates == 1:
            copy.position = last.start
            copy.versions.update({r: s - 1 for r, s in last.span.after.items()})
        return is_back

    patch.setattr(Worker, "_reconnect", forgetful)


def a_message_that_comes_again_is_delivered_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reassembly, "_finish", lambda self, stream, number: None)


# What was acknowledged is there.


def an_update_is_dropped_that_was_acknowledged(patch: pytest.MonkeyPatch) -> None:
    take = Intake.accept_update

    def all_but_the_third(
        self: Intake, run: Run, member: Member, received: Any, now: float
    ) -> None:
        if received.update.sequence == 3:
            member.link.connection.release(received.charge)
        else:
            take(self, run, member, received, now)

    patch.setattr(Intake, "accept_update", all_but_the_third)


def own_updates_are_kept_until_they_are_sent(patch: pytest.MonkeyPatch) -> None:
    put = OwnUpdateLog.append

    def put_and_forget(self: OwnUpdateLog, update: OwnUpdate) -> None:
        put(self, update)
        self.forget(update.sequence)

    patch.setattr(OwnUpdateLog, "append", put_and_forget)


def the_least_advanced_replica_is_taken(patch: pytest.MonkeyPatch) -> None:
    def least_advanced(self: RunRecovery) -> Member | None:
        self.gathering = False
        self.heir = min(self.returned, key=lambda each: self.place(each).position)
        self.after = self.start.position
        return self.heir

    patch.setattr(RunRecovery, "choose", least_advanced)
    patch.setattr("gradwire_server.replica.founding.may_keep_replica", lambda *_: False)


# All have the same bits.


def one_entry_is_skipped_for_who_is_back(patch: pytest.MonkeyPatch) -> None:
    subscribe = Log.subscribe

    def later(self: Log, rank: int, now: float, position: int | None = None, **others: Any) -> Any:
        if position is not None:
            position = min(position + 1, self.head)
        return subscribe(self, rank, now, position, **others)

    patch.setattr(Log, "subscribe", later)


def the_heir_sends_what_is_not_in_the_log(patch: pytest.MonkeyPatch) -> None:
    def with_all(self: Repair, accepted: int) -> Any:
        return self._feedback.replica.values.copy(), accepted

    patch.setattr(Repair, "values_without", with_all)


def a_joiner_gets_an_old_snapshot(patch: pytest.MonkeyPatch) -> None:
    copies: dict[int, ReplicaCopy] = {}
    copy = Run.copy

    def first(self: Run) -> ReplicaCopy:
        return copies.setdefault(id(self), copy(self))

    patch.setattr(Run, "copy", first)


def a_copy_follows_the_replica(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicaCopy, "on_update", lambda self, update: None)


def conflation_loses_an_update(patch: pytest.MonkeyPatch) -> None:
    conflate = Inbox._conflate

    def without_every_third(self: Inbox, total: Sum) -> None:
        before = None if self._sum is None else self._sum.values.copy()
        conflate(self, total)
        if total.stop % 3 == 0 and before is not None:
            assert self._sum is not None
            self._sum.values[:] = before

    patch.setattr(Inbox, "_conflate", without_every_third)
    patch.setattr(SimulatedWorker, "inbox_bytes_max", 1)


def what_was_sent_again_is_no_part_of_another_replica(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnUpdateLog, "after", lambda self, sequence: [*self._updates][1:])


def own_updates_in_a_sum_are_applied_again(patch: pytest.MonkeyPatch) -> None:
    changes = Sum.changes
    patch.setattr(Sum, "changes", lambda self, elements: changes(replace(self, own=()), elements))


def entries_are_taken_before_what_comes_before_them(patch: pytest.MonkeyPatch) -> None:
    def any_of_them(self: EntriesAssembly, position: int) -> int | None:
        complete = (s for s, each in self._spans.items() if len(self._bodies[s]) == each.parts)
        return max(complete, default=None)

    patch.setattr(EntriesAssembly, "after", any_of_them)


def the_log_is_merged_across_the_places_of_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cursor, "positions", property(lambda self: iter(())))


def a_sum_is_made_for_one_and_sent_to_who_is_elsewhere(patch: pytest.MonkeyPatch) -> None:
    def find(self: Sums, start: int, stop: int) -> Segment | None:
        return next((each for each in self._from.values() if each.stop == stop), None)

    patch.setattr(Sums, "find", find)


def a_sum_has_updates_twice(patch: pytest.MonkeyPatch) -> None:
    def overlapping(self: Sums, parts: Sequence[Segment]) -> list[Segment]:
        return [self._from.get(part.start, part) for part in parts]

    patch.setattr(Sums, "shorten", overlapping)


def a_dense_sum_lacks_its_last_elements(patch: pytest.MonkeyPatch) -> None:
    within = DenseSum.within
    patch.setattr(DenseSum, "within", lambda self, start, stop: within(self, start, stop // 2))


def a_merged_segment_has_but_half_of_the_elements(patch: pytest.MonkeyPatch) -> None:
    merge = Log._merge

    def careless(self: Log, bytes_max: float) -> None:
        before = {id(each) for each in self}
        merge(self, bytes_max)
        for segment in self:
            if id(segment) not in before:
                total = segment.decoded(self.elements)
                segment._decoded = total.within(0, max(total.stop // 2, 1))

    patch.setattr(Log, "_merge", careless)


# What was trained is sent or kept.


def the_residual_is_dropped_with_the_replica(patch: pytest.MonkeyPatch) -> None:
    mend = Repair.mend

    def forgetful(self: Repair, rebase: Rebase) -> None:
        mend(self, rebase)
        if rebase.missed:
            self._feedback.drop_residual()

    patch.setattr(Repair, "mend", forgetful)


def a_scaled_change_is_multiplied_again_while_it_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ScaledChange, "note", lambda self: None)


def the_end_sends_but_half_of_the_residual(patch: pytest.MonkeyPatch) -> None:
    note_sent = ResidualFlush.note_sent

    def with_half_left_out(self: ResidualFlush, stop: int, sequence: int, size_bytes: int) -> None:
        note_sent(self, stop, sequence, size_bytes)
        self.left = 0

    patch.setattr(ResidualFlush, "range", property(lambda self: (0, self.left // 2 + 1)))
    patch.setattr(ResidualFlush, "note_sent", with_half_left_out)


# Buffers are averaged exactly.


def a_mean_overshoots(patch: pytest.MonkeyPatch) -> None:
    def overshooting(values: Sequence[BufferValues]) -> BufferValues:
        mean = mean_of(values)
        return mean._replace(floats=2 * mean.floats - values[0].floats)

    patch.setattr("gradwire_protocol.messages.buffers.agreement.mean_of", overshooting)


def buffers_of_rank_0_are_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    tell_all = BufferRelay._tell_all

    def all_others(self: BufferRelay, rank: int) -> None:
        if rank != 0:
            tell_all(self, rank)

    patch.setattr(BufferRelay, "_tell_all", all_others)


def buffers_of_who_is_gone_still_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BufferRelay, "forget", lambda self, member: None)


def own_buffers_are_those_of_the_moment_at_the_end(patch: pytest.MonkeyPatch) -> None:
    def before_finish(self: BufferSharing) -> None:
        sent = self._module.read()
        self._tell(Standing(leaves=False, final=True, rank=self._rank))
        self._sent = sent._replace(floats=sent.floats + 1)

    patch.setattr(BufferSharing, "before_finish", before_finish)


def everyone_leads(patch: pytest.MonkeyPatch) -> None:
    """Each keeps its own of what is not averaged."""
    agree = BufferSharing._agree

    def keep(self: BufferSharing, own: BufferValues | None) -> None:
        agree(self, own)
        if own is not None:
            self._module.write(self._module.read()._replace(others=own.others))

    patch.setattr(BufferSharing, "_agree", keep)


# Memory is bounded.


def the_log_forgets_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "_drop", lambda self: None)
    patch.setattr(Log, "_merge", lambda self, bytes_max: None)


def the_inbox_conflates_nothing(patch: pytest.MonkeyPatch) -> None:
    def put(self: Inbox, total: Sum) -> None:
        self._waiting.append(total)
        self._bytes += total.nbytes

    patch.setattr(Inbox, "put", put)
    patch.setattr(SimulatedWorker, "inbox_bytes_max", 100)


# Waits end.


def nobody_dials_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "next_timer", lambda self: None)


def who_is_alone_waits_although_it_is_called(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Participant, "_may_go_on", lambda self: False)


def a_new_master_waits_for_all_for_ever(patch: pytest.MonkeyPatch) -> None:
    def patient(seconds: float, deadline: float, **others: Any) -> RunRecovery:
        return RunRecovery(1e6, deadline + 1e6, **others)

    patch.setattr("gradwire_server.master.reception.RunRecovery", patient)


def nobody_is_told_what_is_stable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Stability, "handle_timer", lambda self: setattr(self, "_due", None))


# Nobody is too far ahead, and nobody waits too long.


def one_step_more_is_allowed(patch: pytest.MonkeyPatch) -> None:
    begin = ClockLags.__init__

    def generous(self: ClockLags, bound: int, timeout_seconds: float) -> None:
        begin(self, bound + 1, timeout_seconds)

    patch.setattr(ClockLags, "__init__", generous)


def steps_are_told_before_they_are_made(patch: pytest.MonkeyPatch) -> None:
    push = Worker.push

    def boastful(self: Worker, updates: Sequence[OwnUpdate], now: float) -> None:
        push(self, [replace(each, clock=each.clock and each.clock + 1) for each in updates], now)

    patch.setattr(Worker, "push", boastful)


def whoever_makes_no_step_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClockLags, "set_late_aside", lambda self, now: [])


# What is on the disk is the last of it, and whole.


def the_oldest_checkpoint_is_taken(patch: pytest.MonkeyPatch) -> None:
    names_in = gradwire_udp.files.checkpoints.names_in
    patch.setattr("gradwire_udp.files.checkpoints.names_in", lambda folder: names_in(folder)[::-1])


def a_checkpoint_gets_its_name_before_it_is_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    fsync = SimulatedDisk.fsync

    def only_folders(self: SimulatedDisk, descriptor: int) -> None:
        if self._open[descriptor] is None:
            fsync(self, descriptor)

    patch.setattr(SimulatedDisk, "fsync", only_folders)


def a_checkpoint_says_more_than_it_has(patch: pytest.MonkeyPatch) -> None:
    start_from = Relay.start_from

    def further(self: Relay, place: Place, versions: Mapping[int, int], *others: Any) -> None:
        more = {rank: sequence + 1 for rank, sequence in versions.items()}
        start_from(self, place, more, *others)

    patch.setattr(Relay, "start_from", further)


FAULTS: list[tuple[Plant, str, int]] = [
    (who_lost_its_connection_asks_again_for_what_it_has, "twice", 7),
    (a_message_that_comes_again_is_delivered_again, "I1: message .* came twice", 25),
    (an_update_is_dropped_that_was_acknowledged, "acknowledged: updates? 3 ", 0),
    (own_updates_are_kept_until_they_are_sent, "were sent and 0 are kept", 49),
    (the_least_advanced_replica_is_taken, "acknowledged: updates .* are missing", 215),
    (one_entry_is_skipped_for_who_is_back, "waits: .* has {.*; master has {|out:", 5),
    (the_heir_sends_what_is_not_in_the_log, "bits: |a replica is not the sum", 2),
    (a_joiner_gets_an_old_snapshot, "bits: .* has another replica", 7),
    (a_copy_follows_the_replica, "bits: .* has another|conservation", 76),
    (conflation_loses_an_update, "bits: .* has another replica", 2),
    (what_was_sent_again_is_no_part_of_another_replica, "bits|waits|nonsense", 2),
    (own_updates_in_a_sum_are_applied_again, "bits: .* has another replica", 29),
    (entries_are_taken_before_what_comes_before_them, "never|out: |waits", 6),
    (the_log_is_merged_across_the_places_of_members, "out: .* Entries|waits", 14),
    (a_sum_is_made_for_one_and_sent_to_who_is_elsewhere, "out: .* Entries|waits|never", 65),
    (a_sum_has_updates_twice, "bits: .* has another replica|conservation: .* neither", 80),
    (a_dense_sum_lacks_its_last_elements, "bits: .* has another replica", 53),
    (a_merged_segment_has_but_half_of_the_elements, "bits: .* has another replica", 38),
    (the_residual_is_dropped_with_the_replica, "conservation: .* neither sent nor kept", 1),
    (a_scaled_change_is_multiplied_again_while_it_waits, "conservation: .* neither", 6),
    (the_end_sends_but_half_of_the_residual, "left: .* has finished with", 0),
    (a_mean_overshoots, "buffers: .* is not between", 0),
    (buffers_of_rank_0_are_not_passed_on, "buffers: they end with different ones", 5),
    (buffers_of_who_is_gone_still_count, "buffers: not all are the last ones", 33),
    (own_buffers_are_those_of_the_moment_at_the_end, "buffers: ", 2),
    (everyone_leads, "buffers: they end with different ones", 7),
    (the_log_forgets_nothing, "memory: .* bytes logged", 0),
    (the_inbox_conflates_nothing, "memory: .* bytes wait in an inbox", 5),
    (nobody_dials_again, "waits: ", 1),
    (who_is_alone_waits_although_it_is_called, "waits: .* keeps", 11),
    (a_new_master_waits_for_all_for_ever, "waits: ", 0),
    (nobody_is_told_what_is_stable, "waits: ", 0),
    (one_step_more_is_allowed, "staleness: .* begins a step", 6),
    (steps_are_told_before_they_are_made, "staleness: .* begins a step", 6),
    (whoever_makes_no_step_is_waited_for, "deadline: .* waits (for rank|beyond)", 15),
    (the_oldest_checkpoint_is_taken, "a checkpoint with .* was written; found", 19),
    (a_checkpoint_gets_its_name_before_it_is_on_the_disk, "was written; found|can be used", 19),
    (a_checkpoint_says_more_than_it_has, "a checkpoint is not the sum|waits: .* has {", 2),
]
"""What is planted, what a history that finds it says, and the seed of one that does."""


@pytest.mark.parametrize(
    ("plant", "says", "pinned"), FAULTS, ids=[plant.__name__ for plant, _, _ in FAULTS]
)
def test_a_broken_rule_is_found(
    plant: Plant, says: str, pinned: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its pinned seed in the quick tier; the deep tier searches all seeds from the first one."""
    plant(monkeypatch)

    said = complaints(tmp_path, SEEDS if IS_DEEP else [pinned])

    assert any(re.search(says, complaint) for complaint in said), (
        f"seed {pinned} does not find it: pin one that does, DEEP=1 looks for it"
    )


def complaints(folder: Path, seeds: Iterable[int]) -> Iterator[str]:
    """Play one history after the other; return what is wrong with those that fail."""
    for seed in seeds:
        try:
            play(seed, folder=folder)
        except HistoryFailed as failure:
            yield str(failure).partition("\n")[0]


def test_a_history_that_fails_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nobody_dials_again(monkeypatch)

    with pytest.raises(HistoryFailed) as failed:
        play_all(tmp_path)

    first, *_, last = str(failed.value).splitlines()
    seed = int(re.findall("of seed ([0-9]+)", first)[0])
    assert last == f"again: python tests/simulation {seed}"
    trace = (tmp_path / f"short-{seed}.txt").read_text()
    assert trace.startswith(f"   0.0000  plan       seed {seed}, short: ")
    assert trace.splitlines()[-1].endswith(first.partition(": ")[2])
    assert trace.splitlines()[-1] in str(failed.value)


def play_all(folder: Path) -> None:
    for seed in SEEDS:
        play(seed, folder=folder)
